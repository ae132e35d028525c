"""A local engine as a process of its own, for `sandkeeper up` and for host applications.

It ends with whoever started it, also when that is killed; the sandboxes in it live on, and the next
engine on the same data takes them back. An engine that ends by itself is started again.

`borrow_engine` is for programs that need *an* engine over a folder: the one that runs there, or one
that is started, shared by all borrowers of this process, and stopped by the last of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import structlog

from sandkeeper.domain.errors import SandkeeperError

log = structlog.get_logger(__name__)

HOST = "127.0.0.1"
START_S = 60
STOP_S = 10
FIND_S = 5
PR_SET_PDEATHSIG = 1


class EngineFailedError(SandkeeperError):
    """The local engine did not start."""

    hint = "Run `sandkeeper doctor`, and look at engine.log in the data folder."


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine that answers, and the key that it takes."""

    url: str
    key: str

    @property
    def preview_url(self) -> str:
        """How a browser reaches a port of a sandbox."""
        return f"http://{{port}}-{{instance}}.localhost:{self.url.rpartition(':')[2]}"

    @property
    def env(self) -> dict[str, str]:
        """What the official SDKs need in their environment."""
        return {
            "E2B_API_URL": self.url,
            "E2B_SANDBOX_URL": self.url,
            "E2B_API_KEY": self.key,
        }

    def sdk_options(self) -> dict[str, Any]:
        """What the Python SDK's calls take as keyword arguments."""
        return {"api_key": self.key, "api_url": self.url, "sandbox_url": self.url}


class LocalEngine:
    """One engine on one data folder."""

    def __init__(self, *, data: Path, port: int) -> None:
        self.data = data
        self.port = port or _free_port()
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._log_start = 0

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def preview_url(self) -> str:
        """How a browser reaches a port of a sandbox."""
        return RunningEngine(self.url, "").preview_url

    @property
    def log_file(self) -> Path:
        return self.data / "engine.log"

    @property
    def key(self) -> str:
        """The engine's key; there once it has started."""
        return os.environ.get("E2B_API_KEY") or (self.data / "engine.key").read_text().strip()

    async def launch(self) -> None:
        """Start the process; it answers a moment later."""
        self._process = await self._start()

    async def wait_until_ready(self) -> None:
        """Wait until it answers; from then on it is kept running."""
        assert self._process is not None
        await self._wait_until_it_answers(self._process)
        self._keeping = asyncio.create_task(self._keep(), name="local-engine")

    async def stop(self) -> None:
        """Stop the engine. Its sandboxes stay as they are."""
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.log_file.open("ab") as output:
            self._log_start = output.tell()
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "sandkeeper.cli.main",
                "engine",
                "--data",
                str(self.data),
                "--port",
                str(self.port),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    async def _wait_until_it_answers(self, process: asyncio.subprocess.Process) -> None:
        async with httpx.AsyncClient() as client:
            for _ in range(START_S * 20):
                if (code := process.returncode) is not None:
                    raise EngineFailedError(f"The engine ended ({code}): {self._read_log_tail()}.")
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.get(f"{self.url}/health")).is_success:
                        return
                await asyncio.sleep(0.05)
        raise EngineFailedError(f"The engine did not answer within {START_S} s.")

    def _read_log_tail(self) -> str:
        """The last line that this start wrote to the log: why it ended."""
        with self.log_file.open("rb") as log_file:
            log_file.seek(self._log_start)
            said = log_file.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(said) if line), "it said nothing")

    async def _keep(self) -> None:
        while True:
            assert self._process is not None
            code = await self._process.wait()
            log.warning("engine_ended", code=code)
            await asyncio.sleep(1)
            try:
                self._process = await self._start()
                await self._wait_until_it_answers(self._process)
                log.info("engine_started_again", url=self.url)
            except EngineFailedError as error:
                log.warning("engine_did_not_start", error=str(error))


@dataclass(slots=True)
class _EngineRef:
    """An engine of this process, or one being started, and how many use it."""

    engine: LocalEngine
    starting: asyncio.Task[RunningEngine]
    loop: asyncio.AbstractEventLoop
    borrowers: int = 0


_engine_refs: dict[Path, _EngineRef] = {}


@contextlib.asynccontextmanager
async def engine_context(data: Path) -> AsyncIterator[RunningEngine]:
    """An engine over this folder for the length of a block, found or started."""
    folder = _name(data)
    loan = _find_ref(folder)
    if loan is None:
        found = await find_engine(folder)
        if found is not None:
            yield found
            return
        loan = _find_ref(folder) or _acquire(folder)
    loan.borrowers += 1
    try:
        yield await asyncio.shield(loan.starting)
    finally:
        loan.borrowers -= 1
        if loan.borrowers == 0:
            if _engine_refs.get(folder) is loan:
                del _engine_refs[folder]
            await loan.engine.stop()


async def find_engine(data: Path) -> RunningEngine | None:
    """The engine that works over this folder now, whoever started it, or None."""
    try:
        url = (data / "engine.url").read_text().strip()
        kept = (data / "engine.key").read_text().strip()
    except OSError:
        return None
    async with httpx.AsyncClient(timeout=FIND_S) as client:
        for key in dict.fromkeys([kept, os.environ.get("E2B_API_KEY", kept)]):
            try:
                answer = await client.get(
                    f"{url}/v2/sandboxes", params={"limit": 1}, headers={"X-API-KEY": key}
                )
            except httpx.HTTPError:
                return None
            if answer.is_success:
                return RunningEngine(url, key)
    return None


def _name(data: Path) -> Path:
    """One name for one folder, however it was written."""
    return data.expanduser().absolute()


def _find_ref(folder: Path) -> _EngineRef | None:
    """The loan of this very event loop: another loop's engine is found by its address."""
    loan = _engine_refs.get(folder)
    return loan if loan is not None and loan.loop is asyncio.get_running_loop() else None


def _acquire(folder: Path) -> _EngineRef:
    engine = LocalEngine(data=folder, port=0)
    loan = _EngineRef(engine, asyncio.create_task(_start(engine)), asyncio.get_running_loop())
    _engine_refs[folder] = loan
    return loan


async def _start(engine: LocalEngine) -> RunningEngine:
    """Start it. If another process was faster with the same folder, theirs is as good."""
    try:
        await engine.launch()
        await engine.wait_until_ready()
    except EngineFailedError:
        found = await find_engine(engine.data)
        if found is None:
            raise
        return found
    return RunningEngine(engine.url, engine.key)


def _end_with_parent() -> None:
    """Have the kernel stop this process when the one that started it dies, however it dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])

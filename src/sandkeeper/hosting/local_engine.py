"""A local engine in a separate process, for `sandkeeper up` and for host applications.

It stops with its parent process, even when that is killed; its sandboxes keep running, and the
next engine on the same data finds them. An engine that exits unexpectedly is restarted.

`engine_context` is for programs that need *an* engine on a folder: the one that runs there, or a
new one, shared by all users in this process and stopped by the last of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import structlog

from sandkeeper.common.private_files import open_private
from sandkeeper.domain.errors import SandkeeperError

log = structlog.get_logger(__name__)

HOST = "127.0.0.1"
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 10
FIND_TIMEOUT_S = 5


class EngineFailedError(SandkeeperError):
    """The local engine did not start."""

    hint = "Run `sandkeeper doctor`, and check engine.log in the data folder."


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """A running engine: its URL and its API key."""

    url: str
    key: str

    @property
    def preview_url(self) -> str:
        """Return the URL pattern of a sandbox's port for browsers."""
        return f"http://{{port}}-{{instance}}.localhost:{self.url.rpartition(':')[2]}"

    @property
    def env(self) -> dict[str, str]:
        """Return the environment variables for the official SDKs."""
        return {
            "E2B_API_URL": self.url,
            "E2B_SANDBOX_URL": self.url,
            "E2B_VOLUME_API_URL": self.url,
            "E2B_API_KEY": self.key,
        }

    def sdk_options(self) -> dict[str, Any]:
        """Return the keyword arguments for calls of the Python SDK."""
        return {"api_key": self.key, "api_url": self.url, "sandbox_url": self.url}


class LocalEngine:
    """One engine on one data folder. The keys that its keeper accepts stay out of sandboxes."""

    def __init__(
        self, *, data: Path, port: int, keys: Iterable[str] = (), runtimes: Sequence[str] = ()
    ) -> None:
        """Take `runtimes`, choices of the engine's option of that name."""
        self.data = data
        self._runtimes = runtimes
        self.port = port or _free_port()
        self._key_digests = ",".join(hashlib.sha256(key.encode()).hexdigest() for key in keys)
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._log_start = 0

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def preview_url(self) -> str:
        """Return the URL pattern of a sandbox's port for browsers."""
        return RunningEngine(self.url, "").preview_url

    @property
    def log_file(self) -> Path:
        return self.data / "engine.log"

    @property
    def key(self) -> str:
        """Return the engine's key, which exists once it has started."""
        return os.environ.get("E2B_API_KEY") or (self.data / "engine.key").read_text().strip()

    async def launch(self) -> None:
        """Start the process without waiting until it is ready."""
        self._process = await self._start()

    async def wait_until_ready(self) -> None:
        """Wait until the engine is healthy; from then on restart it when it exits."""
        assert self._process is not None
        await self._wait_until_healthy(self._process)
        self._supervisor = asyncio.create_task(self._restart_forever(), name="local-engine")

    async def stop(self) -> None:
        """Stop the engine. Its sandboxes keep their state."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open_private(self.log_file, "ab") as output:
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
                "--parent",
                str(os.getpid()),
                *(word for choice in self._runtimes for word in ("--runtime", choice)),
                env={**os.environ, "SANDKEEPER_KEY_DIGESTS": self._key_digests},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    async def _wait_until_healthy(self, process: asyncio.subprocess.Process) -> None:
        async with httpx.AsyncClient() as client:
            for _ in range(START_TIMEOUT_S * 20):
                if (code := process.returncode) is not None:
                    raise EngineFailedError(f"The engine exited ({code}): {self._read_log_tail()}.")
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.get(f"{self.url}/health")).is_success:
                        return
                await asyncio.sleep(0.05)
        raise EngineFailedError(f"The engine did not respond within {START_TIMEOUT_S} s.")

    def _read_log_tail(self) -> str:
        """Return the last line that this start wrote to the log: why it exited."""
        with self.log_file.open("rb") as log_file:
            log_file.seek(self._log_start)
            lines = log_file.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line), "no output")

    async def _restart_forever(self) -> None:
        while True:
            assert self._process is not None
            code = await self._process.wait()
            log.warning("engine_exited", code=code)
            await asyncio.sleep(1)
            try:
                self._process = await self._start()
                await self._wait_until_healthy(self._process)
                log.info("engine_restarted", url=self.url)
            except EngineFailedError as error:
                log.warning("engine_restart_failed", error=str(error))


@dataclass(slots=True)
class _EngineRef:
    """An engine started by this process, and the number of its users."""

    engine: LocalEngine
    starting: asyncio.Task[RunningEngine]
    loop: asyncio.AbstractEventLoop
    users: int = 0


_engine_refs: dict[Path, _EngineRef] = {}


@contextlib.asynccontextmanager
async def engine_context(data: Path, *, keys: Iterable[str] = ()) -> AsyncIterator[RunningEngine]:
    """Provide an engine on this folder during the block: find it or start it.

    One that is started here keeps these keys of its keeper out of sandboxes.
    """
    folder = _normalize(data)
    ref = _find_ref(folder)
    if ref is None:
        found = await find_engine(folder)
        if found is not None:
            yield found
            return
        ref = _find_ref(folder) or _start_ref(folder, keys)
    ref.users += 1
    try:
        yield await asyncio.shield(ref.starting)
    finally:
        ref.users -= 1
        if ref.users == 0:
            if _engine_refs.get(folder) is ref:
                del _engine_refs[folder]
            await ref.engine.stop()


async def find_engine(data: Path) -> RunningEngine | None:
    """Return the engine that runs on this folder, from any process, or None."""
    try:
        url = (data / "engine.url").read_text().strip()
        saved = (data / "engine.key").read_text().strip()
    except OSError:
        return None
    async with httpx.AsyncClient(timeout=FIND_TIMEOUT_S) as client:
        for key in dict.fromkeys([saved, os.environ.get("E2B_API_KEY", saved)]):
            try:
                response = await client.get(
                    f"{url}/v2/sandboxes", params={"limit": 1}, headers={"X-API-KEY": key}
                )
            except httpx.HTTPError:
                return None
            if response.is_success:
                return RunningEngine(url, key)
    return None


def _normalize(data: Path) -> Path:
    """Return the same path for the same folder, however it was given."""
    return data.expanduser().absolute()


def _find_ref(folder: Path) -> _EngineRef | None:
    """Return the reference of this event loop; another loop's engine is found by its URL."""
    ref = _engine_refs.get(folder)
    return ref if ref is not None and ref.loop is asyncio.get_running_loop() else None


def _start_ref(folder: Path, keys: Iterable[str]) -> _EngineRef:
    engine = LocalEngine(data=folder, port=0, keys=keys)
    ref = _EngineRef(engine, asyncio.create_task(_start(engine)), asyncio.get_running_loop())
    _engine_refs[folder] = ref
    return ref


async def _start(engine: LocalEngine) -> RunningEngine:
    """Start the engine; if another process was faster on the same folder, use that one."""
    try:
        await engine.launch()
        await engine.wait_until_ready()
    except EngineFailedError:
        found = await find_engine(engine.data)
        if found is None:
            raise
        return found
    return RunningEngine(engine.url, engine.key)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])

"""A local engine as a process of its own, for `sandkeeper up` and for host applications.

It ends with whoever started it, also when that is killed; the sandboxes in it live on, and the next
engine on the same data takes them back. An engine that ends by itself is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

import httpx
import structlog

from sandkeeper.domain.errors import SandkeeperError

if TYPE_CHECKING:
    from pathlib import Path

log = structlog.get_logger(__name__)

START_S = 60
STOP_S = 10
PR_SET_PDEATHSIG = 1


class EngineFailedError(SandkeeperError):
    """The local engine did not start."""

    hint = "Run `sandkeeper doctor`, and look at engine.log in the data folder."


class LocalEngine:
    """One engine on one data folder."""

    def __init__(self, *, data: Path, port: int) -> None:
        self.data = data
        self.port = port or _free_port()
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def preview_url(self) -> str:
        """How a browser reaches a port of a sandbox."""
        return f"http://{{port}}-{{instance}}.localhost:{self.port}"

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
                if process.returncode is not None:
                    raise EngineFailedError(f"The engine ended with code {process.returncode}.")
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.get(f"{self.url}/health")).is_success:
                        return
                await asyncio.sleep(0.05)
        raise EngineFailedError(f"The engine did not answer within {START_S} s.")

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


def _end_with_parent() -> None:
    """Have the kernel stop this process when the one that started it dies, however it dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

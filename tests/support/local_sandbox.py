"""A simulated provider whose sandboxes have an inside: a folder of the test, and a real shell.

One sandbox at a time. What Sandkeeper sends into it runs here as it would there, so that wakes and
restored files are tested in milliseconds. Starts of an app are only counted: nothing is to run on
the machine of the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import e2b
from e2b import AsyncSandbox

from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.providers.base import CreateSpec, Instance
from sandkeeper.testing.providers import SimulatedProvider


class LocalProvider(SimulatedProvider):
    """Instances over one folder, which is empty after each creation.

    `sent` has the verb of everything that went into the sandbox: `run`, `write` or `send`. `starts`
    has the environment of each start of the app, and `answers` is what its port does.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.answers = True
        self.starts: list[dict[str, str]] = []
        self.sent: list[str] = []
        self.sandbox_ids: set[str] = set()

    async def create(self, spec: CreateSpec) -> Instance:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.sandbox_ids.add(spec.tag.sandbox_id)
        return await super().create(spec)

    async def probe_port(self, instance_id: str, port: int) -> bool:
        return self.answers and await super().probe_port(instance_id, port)

    async def open_sdk_sandbox(self, instance_id: str) -> AsyncSandbox:
        self._get(instance_id)
        return cast("AsyncSandbox", LocalSandbox(self, instance_id))

    def translate(self, error: Exception, *, instance_id: str) -> SandkeeperError:
        if isinstance(error, SandkeeperError):
            return error
        return super().translate(error, instance_id=instance_id)

    async def before(self, what: str) -> None:
        """Note what goes into the sandbox; a test may make it wait."""
        self.sent.append(what)


class LocalSandbox:
    """As much of `AsyncSandbox` as Sandkeeper uses."""

    def __init__(self, provider: LocalProvider, instance_id: str) -> None:
        self.sandbox_id = instance_id
        self.commands = self.files = self
        self._provider = provider

    async def run(self, line: str, *, background: bool = False, **options: Any) -> Any:
        await self._provider.before("run")
        envs = options.get("envs") or {}
        if "SK_COMMAND" in envs:
            self._provider.starts.append(envs)
            return e2b.CommandResult("", "", 0, None)
        if envs:
            return e2b.CommandResult("", "\n", 0, None)
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", line),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        handle = LocalHandle(self._provider, process, options.get("on_stdout"))
        return handle if background else await handle.wait()

    async def write(self, path: str, data: AsyncIterator[bytes], **_options: Any) -> None:
        await self._provider.before("write")
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with Path(path).open("wb") as file:
            async for piece in data:
                file.write(piece)

    async def read(self, path: str, **_options: Any) -> AsyncIterator[bytes]:
        async def pieces() -> AsyncIterator[bytes]:
            yield Path(path).read_bytes()

        return pieces()


class LocalHandle:
    """A command under way."""

    def __init__(
        self,
        provider: LocalProvider,
        process: asyncio.subprocess.Process,
        on_stdout: Callable[[str], None] | None,
    ) -> None:
        self._provider = provider
        self._process = process
        self._on_stdout = on_stdout
        self._reading = asyncio.gather(self._read(), self._drain())

    async def send_stdin(self, text: str) -> None:
        await self._provider.before("send")
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode())
        await self._process.stdin.drain()

    async def wait(self) -> e2b.CommandResult[str]:
        said, complained = await asyncio.shield(self._reading)
        code = await self._process.wait()
        if code:
            raise e2b.CommandExitException(complained, said, code, None)
        return e2b.CommandResult(complained, said, 0, None)

    async def kill(self) -> bool:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        return True

    async def _read(self) -> str:
        assert self._process.stdout is not None
        said = b""
        while piece := await self._process.stdout.read(65536):
            said += piece
            if self._on_stdout is not None:
                self._on_stdout(piece.decode())
        return said.decode()

    async def _drain(self) -> str:
        assert self._process.stderr is not None
        return (await self._process.stderr.read()).decode()

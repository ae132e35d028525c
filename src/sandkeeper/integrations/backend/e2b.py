"""A backend in E2B's cloud, in a self-hosted E2B, or on another server with E2B's API."""

from __future__ import annotations

import asyncio
import logging
import posixpath
import secrets
import shlex
from collections.abc import Awaitable, Mapping
from typing import Any, Self, TypeVar

import e2b
from e2b import exceptions as sdk

from sandkeeper.common.cancellation import count_cancellations
from sandkeeper.domain.errors import InvalidRequestError, SandkeeperError
from sandkeeper.integrations.backend.cloning import plan_clone
from sandkeeper.integrations.backend.commands import check as check_output
from sandkeeper.integrations.backend.commands import run_command
from sandkeeper.integrations.backend.contract import (
    BackendConfig,
    CommandOutput,
    FileInfo,
    Repository,
)
from sandkeeper.integrations.backend.errors import (
    AgentSetupFailedError,
    BackendNotReadyError,
    CloneFailedError,
    NoSuchFileError,
)
from sandkeeper.providers.e2b.mapping import ERRORS, judge

log = logging.getLogger(__name__)
T = TypeVar("T")

# Written into the sandbox after setup, so that a reconnecting backend skips it.
SETUP_MARKER = "/tmp/.sandkeeper-setup"  # noqa: S108  A path in the sandbox.


class E2BBackend:
    """One sandbox at E2B. See `contract`."""

    def __init__(
        self, config: BackendConfig | None = None, *, sandbox_id: str | None = None
    ) -> None:
        self.config = config or BackendConfig()
        self._known_id = sandbox_id
        self._sandbox: e2b.AsyncSandbox | None = None
        self._options: dict[str, Any] | None = None

    @property
    def sandbox_id(self) -> str | None:
        return self._sandbox.sandbox_id if self._sandbox is not None else self._known_id

    @property
    def native(self) -> e2b.AsyncSandbox:
        if self._sandbox is None:
            raise BackendNotReadyError
        return self._sandbox

    async def connect(self) -> None:
        """Connect to the sandbox of this backend; resume it if it is paused."""
        if self._known_id is None:
            raise BackendNotReadyError
        options = await self._get_options()
        try:
            self._sandbox = await self._translate_errors(
                e2b.AsyncSandbox.connect(self._known_id, timeout=self.config.timeout_s, **options)
            )
        except BaseException:
            await self._release_options()
            raise

    async def setup(self) -> None:
        if self._sandbox is not None:
            await self._prepare()
        elif self._known_id is not None:
            await self.connect()
            await self._prepare()
        else:
            await self._create()
            try:
                await self._prepare()
            except BaseException:
                # Shielded: a cancelled setup must not leave a sandbox behind.
                await asyncio.shield(asyncio.ensure_future(self._discard()))
                raise
        log.info("The backend %r is ready in %s.", self.config.name, self.sandbox_id)

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        check: bool = True,
    ) -> CommandOutput:
        output = await self._run(
            command,
            timeout_s=self.config.exec_timeout_s if timeout_s is None else timeout_s,
            env=env or {},
            cwd=self._absolute(cwd or "."),
        )
        return check_output(output) if check else output

    async def read_file(self, path: str) -> bytes:
        content = await self._translate_errors(
            self.native.files.read(self._absolute(path), format="bytes")
        )
        return bytes(content)

    async def write_file(self, path: str, content: bytes | str) -> None:
        await self._translate_errors(self.native.files.write(self._absolute(path), content))

    async def list_files(self, directory: str = ".") -> list[FileInfo]:
        entries = await self._translate_errors(
            self.native.files.list(self._absolute(directory), depth=1)
        )
        found = [
            FileInfo(one.name, one.path, one.type is e2b.FileType.DIR, one.size) for one in entries
        ]
        return sorted(found, key=lambda one: one.name)

    async def set_timeout(self, timeout_s: int) -> None:
        await self._translate_errors(self.native.set_timeout(timeout_s))

    async def pause(self) -> None:
        sandbox = self.native
        await self._translate_errors(sandbox.pause())
        await self.close()

    async def teardown(self) -> None:
        sandbox_id = self.sandbox_id
        if sandbox_id is None:
            return
        try:
            options = await self._get_options()
            await self._translate_errors(e2b.AsyncSandbox.kill(sandbox_id, **options))
        finally:
            await self.close()
        self._known_id = None
        log.info("The sandbox %s was killed.", sandbox_id)

    async def close(self) -> None:
        self._known_id = self.sandbox_id
        self._sandbox = None
        await self._release_options()

    async def __aenter__(self) -> Self:
        await self.setup()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.teardown()

    async def _acquire_options(self) -> dict[str, Any]:
        """Return the SDK's connection options for the provider."""
        config = self.config
        return {
            "api_key": config.api_key,
            "api_url": config.api_url,
            "sandbox_url": config.sandbox_url,
            "domain": config.domain,
        }

    async def _release(self) -> None:
        """Release what `_acquire_options` acquired."""

    async def _get_options(self) -> dict[str, Any]:
        if self._options is None:
            self._options = await self._acquire_options()
        return self._options

    async def _release_options(self) -> None:
        if self._options is not None:
            self._options = None
            await self._release()

    async def _create(self) -> None:
        config = self.config
        network: dict[str, Any] = {}
        if config.allow_out or config.deny_out:
            network = {
                "network": {"allow_out": list(config.allow_out), "deny_out": list(config.deny_out)}
            }
        named = {"name": config.name} if config.name else {}
        options = await self._get_options()
        try:
            self._sandbox = await self._translate_errors(
                e2b.AsyncSandbox.create(
                    template=config.template,
                    timeout=config.timeout_s,
                    envs=dict(config.env),
                    metadata={**named, **config.metadata},
                    allow_internet_access=config.allow_internet,
                    **network,
                    **options,
                )
            )
        except BaseException:
            await self._release_options()
            raise

    async def _discard(self) -> None:
        """Kill the sandbox of a failed setup. Log errors: the caller gets the setup's error."""
        sandbox_id = self.sandbox_id
        try:
            await self.teardown()
        except SandkeeperError as error:
            log.warning("The sandbox %s was left behind: %s", sandbox_id, error)

    async def _prepare(self) -> None:
        """Clone the repository and prepare the agent, unless already done."""
        if await self._translate_errors(self.native.files.exists(SETUP_MARKER)):
            return
        if self.config.repository is not None:
            await self._clone(self.config.repository)
        else:
            await self._translate_errors(self.native.files.make_dir(self.config.workdir))
        if self.config.agent_script is not None:
            await self._prepare_agent(self.config.agent_script)
        await self._translate_errors(self.native.files.write(SETUP_MARKER, ""))

    async def _clone(self, repository: Repository) -> None:
        cloning = plan_clone(repository, self.config.workdir)
        output = await self._run(
            cloning.command, timeout_s=self.config.setup_timeout_s, env=cloning.env, cwd="/"
        )
        if output.exit_code != 0:
            raise CloneFailedError(
                exit_code=output.exit_code,
                stdout=cloning.redact(output.stdout),
                stderr=cloning.redact(output.stderr),
            )

    async def _prepare_agent(self, script: str) -> None:
        path = f"/tmp/agent-setup-{secrets.token_hex(4)}.sh"  # noqa: S108  Inside the sandbox.
        await self._translate_errors(self.native.files.write(path, script))
        output = await self._run(
            f"bash {shlex.quote(path)}; code=$?; rm -f {shlex.quote(path)}; exit $code",
            timeout_s=self.config.setup_timeout_s,
            env={},
            cwd=self.config.workdir,
        )
        if output.exit_code != 0:
            raise AgentSetupFailedError(
                exit_code=output.exit_code, stdout=output.stdout, stderr=output.stderr
            )

    async def _run(
        self, command: str, *, timeout_s: float, env: Mapping[str, str], cwd: str | None
    ) -> CommandOutput:
        if not command.strip() or "\x00" in command:
            raise InvalidRequestError("The command is empty or contains a NUL character.")
        return await self._translate_errors(
            run_command(
                self.native,
                command,
                timeout_s=timeout_s,
                output_max=self.config.output_max,
                env=env,
                cwd=cwd,
            )
        )

    def _absolute(self, path: str) -> str:
        if not path or "\x00" in path:
            raise InvalidRequestError("The path is empty or contains a NUL character.")
        return posixpath.normpath(posixpath.join(self.config.workdir, path))

    async def _translate_errors(self, call: Awaitable[T]) -> T:
        """Await the call; raise SDK errors as ours."""
        cancellations = count_cancellations()
        try:
            return await call
        except SandkeeperError:
            raise
        except sdk.FileNotFoundException as error:
            raise NoSuchFileError(str(error)) from error
        except Exception as error:
            verdict, _ = judge(error)
            raise ERRORS[verdict](str(error) or type(error).__name__) from error
        finally:
            # The SDK's RPC library sometimes swallows a cancellation.
            if count_cancellations() > cancellations:
                raise asyncio.CancelledError

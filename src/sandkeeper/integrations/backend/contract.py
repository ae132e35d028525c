"""The contract of an agent's workspace, for every implementation.

- `setup` creates the sandbox, clones the repository and prepares the agent. It is atomic: a failure
  kills the sandbox it created. A second call does nothing.
- Commands and relative paths start in the work folder, which is the clone.
- A command that fails raises an error with its exit code, stdout and stderr.
- `teardown` kills the sandbox. It is idempotent and works in any state of the sandbox. `close`
  disconnects and leaves the sandbox running, for `connect_backend`.
- No token is ever in a log, an error, a command line or the clone's configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

from e2b import AsyncSandbox

WORKDIR = "/home/user/project"


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository to clone. Credentials in the URL are used like `token` and `username`."""

    url: str
    branch: str | None = None
    token: str | None = field(default=None, repr=False)
    username: str = "x-access-token"
    """The user name for the token; this one works for GitHub, and most others accept any."""
    depth: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """Options of the sandbox. The connection defaults to E2B's environment variables."""

    name: str = ""
    template: str = "base"
    timeout_s: int = 3600
    """Time to live at the provider; `set_timeout` changes it."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict)
    allow_internet: bool = True
    allow_out: Sequence[str] = ()
    deny_out: Sequence[str] = ()
    repository: Repository | None = None
    agent_script: str | None = None
    """A Bash script that prepares the agent; it runs in the work folder after the clone."""
    workdir: str = WORKDIR
    exec_timeout_s: float = 300
    setup_timeout_s: float = 900
    output_max: int = 16 * 1024 * 1024
    """Maximum characters of a command's output, both streams together. Higher lets one command fill
    the caller's memory; lower kills commands that are only verbose."""
    api_key: str | None = field(default=None, repr=False)
    api_url: str | None = None
    sandbox_url: str | None = None
    domain: str | None = None
    data: Path | None = None
    """For the local backend: the engine's data folder; defaults to the user's."""


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """The output and exit code of a command."""

    stdout: str
    stderr: str
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class FileInfo:
    """An entry of a folder; `path` is absolute."""

    name: str
    path: str
    is_dir: bool
    size: int


class Backend(Protocol):
    """A sandbox as a workspace. `async with` sets it up and tears it down."""

    @property
    def sandbox_id(self) -> str | None:
        """Return the id for `connect_backend`; None before `setup` and after `teardown`."""
        ...

    @property
    def native(self) -> AsyncSandbox:
        """Return the official SDK's object, for everything else."""
        ...

    async def setup(self) -> None:
        """Create the sandbox, clone the repository, prepare the agent."""
        ...

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        check: bool = True,
    ) -> CommandOutput:
        """Run a Bash command to its end.

        Raise CommandFailedError for a non-zero exit code unless `check` is False, and
        CommandTimedOutError or OutputTooLongError when the command was killed.
        """
        ...

    async def read_file(self, path: str) -> bytes:
        """Return a file's content. Raise NoSuchFileError."""
        ...

    async def write_file(self, path: str, content: bytes | str) -> None:
        """Write a file; create its folders and replace an existing file."""
        ...

    async def list_files(self, directory: str = ".") -> list[FileInfo]:
        """Return the entries of a folder, sorted by name. Raise NoSuchFileError."""
        ...

    async def set_timeout(self, timeout_s: int) -> None:
        """Set the time to live, counted from now."""
        ...

    async def pause(self) -> None:
        """Pause the sandbox and close the backend; `connect_backend` resumes it."""
        ...

    async def teardown(self) -> None:
        """Kill the sandbox."""
        ...

    async def close(self) -> None:
        """Disconnect and leave the sandbox as it is."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

"""A place where an agent works: what it asks, and what it may rely on.

The contract, for every implementation:

- `setup` makes the sandbox, clones the repository and prepares the agent. It is whole or it is not:
  a failure on the way ends the sandbox that it made. A second call finds the work done.
- Commands and relative paths start in the work folder, which is the clone.
- A command that fails raises, with its exit code and both outputs in the error.
- `teardown` ends the sandbox for good, however often it is called and whatever has happened to the
  sandbox meanwhile. `close` lets go of it and leaves it running, for `connect_backend`.
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
    """What to clone. Credentials in the URL are taken out of it and used as if given apart."""

    url: str
    branch: str | None = None
    token: str | None = field(default=None, repr=False)
    username: str = "x-access-token"
    """The name that goes with the token; this one suits GitHub, and most others take any."""
    depth: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """What the sandbox should be. What says how to reach E2B defaults to E2B's own variables."""

    name: str = ""
    template: str = "base"
    timeout_s: int = 3600
    """How long the sandbox may live before the provider acts; `set_timeout` changes it."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict)
    allow_internet: bool = True
    allow_out: Sequence[str] = ()
    deny_out: Sequence[str] = ()
    repository: Repository | None = None
    agent_script: str | None = None
    """A Bash script that prepares the agent, run in the work folder after the clone."""
    workdir: str = WORKDIR
    exec_timeout_s: float = 300
    setup_timeout_s: float = 900
    output_max: int = 16 * 1024 * 1024
    """Characters of a command's output, both streams together, that are kept. Higher lets one
    command fill the caller's memory; lower ends commands that are merely talkative."""
    api_key: str | None = field(default=None, repr=False)
    api_url: str | None = None
    sandbox_url: str | None = None
    domain: str | None = None
    data: Path | None = None
    """For the local backend: the engine's data folder, by default the user's own."""


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a command printed, and how it ended."""

    stdout: str
    stderr: str
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One entry of a folder; `path` is absolute."""

    name: str
    path: str
    is_dir: bool
    size: int


class Backend(Protocol):
    """One sandbox and the work in it. `async with` sets it up and tears it down."""

    @property
    def sandbox_id(self) -> str | None:
        """The id for `connect_backend`; None before `setup` and after `teardown`."""
        ...

    @property
    def native(self) -> AsyncSandbox:
        """The official SDK's own object, for whatever is not here."""
        ...

    async def setup(self) -> None:
        """Make the sandbox, clone, prepare the agent."""
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

        Raises CommandFailedError for another exit code than 0 unless `check` is False,
        CommandTimedOutError and OutputTooLongError when it had to be ended.
        """
        ...

    async def read_file(self, path: str) -> bytes:
        """A file's content. Raises NoSuchFileError."""
        ...

    async def write_file(self, path: str, content: bytes | str) -> None:
        """Write a file with its folders, over the one that is there."""
        ...

    async def list_files(self, directory: str = ".") -> list[FileInfo]:
        """What lies in a folder, by name. Raises NoSuchFileError."""
        ...

    async def set_timeout(self, timeout_s: int) -> None:
        """Let the sandbox live so long, counted from now."""
        ...

    async def pause(self) -> None:
        """Put the sandbox to sleep; `connect_backend` wakes it. The backend is closed."""
        ...

    async def teardown(self) -> None:
        """End the sandbox for good."""
        ...

    async def close(self) -> None:
        """Let go of the sandbox and leave it as it is."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

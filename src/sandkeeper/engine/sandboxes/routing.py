"""What envd and the port proxy need to know about a sandbox.

The lifecycle implements `SandboxLookup`. Every request that may resume a paused sandbox goes
through `get_ready`, so the auto-resume rule is in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol


class SandboxNotRoutableError(Exception):
    """No sandbox with this id takes traffic: it does not exist, or it stays paused."""


@dataclass(frozen=True, slots=True)
class RunningSandbox:
    """A running sandbox, as envd and the port proxy see it."""

    sandbox_id: str
    token: str
    """The X-Access-Token that envd requests must carry."""
    traffic_token: str | None
    """The token that user ports require when public traffic is off; None means open ports."""
    env: Mapping[str, str]
    default_user: str = "user"
    default_workdir: str = "/home/user"
    mask_host: str | None = None
    services: tuple[str, ...] = ()
    """The engine's own programs that start inside when their port is first requested."""


class RunningSandboxes(Protocol):
    """Finds running sandboxes without resuming any."""

    def find(self, sandbox_id: str) -> RunningSandbox | None:
        """Return the sandbox if it runs now."""
        ...

    def running(self) -> Iterable[RunningSandbox]:
        """Return every running sandbox, to resolve signed URLs without a sandbox id."""
        ...


class SandboxLookup(RunningSandboxes, Protocol):
    """Finds sandboxes for traffic, and resumes a paused one where its policy allows that."""

    async def get_ready(
        self, sandbox_id: str, may_enter: Callable[[RunningSandbox], bool]
    ) -> RunningSandbox:
        """Return the sandbox ready for traffic; resume a paused one with auto-resume first.

        `may_enter` checks the caller's token before anything is resumed. For a caller it refuses,
        return the still paused sandbox; the application answers 401 or 403. Wait for a transition
        in progress. Raise SandboxNotRoutableError.
        """
        ...

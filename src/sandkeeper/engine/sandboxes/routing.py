"""What envd and the port proxy need to know of a sandbox, and who answers it.

The lifecycle implements `Residents`; envd and the proxy only ask. A request that may wake a
paused sandbox goes through `admit`, so the rule for auto-resume has one home.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol


class SandboxNotRoutableError(Exception):
    """No sandbox of that id can take traffic: there is none, or it is paused and stays so."""


@dataclass(frozen=True, slots=True)
class RunningSandbox:
    """One running sandbox, as those who serve its traffic see it."""

    sandbox_id: str
    token: str
    """What envd requests carry as X-Access-Token."""
    traffic_token: str | None
    """What user ports ask for when public traffic is not allowed; None means they are open."""
    env: Mapping[str, str]
    default_user: str = "user"
    default_workdir: str = "/home/user"
    mask_host: str | None = None
    services: tuple[str, ...] = ()
    """The engine's own programs that start inside when their port is first called."""


class SandboxLookup(Protocol):
    """The running sandboxes."""

    def find(self, sandbox_id: str) -> RunningSandbox | None:
        """The sandbox if it runs now. Never wakes anything."""
        ...

    def running(self) -> Iterable[RunningSandbox]:
        """Every running sandbox, to resolve signed URLs that name none."""
        ...

    async def get_ready(
        self, sandbox_id: str, may_enter: Callable[[RunningSandbox], bool]
    ) -> RunningSandbox:
        """The sandbox, ready for traffic; a paused one with auto-resume is resumed first.

        `may_enter` checks the caller's token before anything is woken: a refused caller gets the
        resident of the still paused sandbox back and answers 401 or 403 itself. Raises
        UnknownSandboxError. Waits for a transition under way.
        """
        ...

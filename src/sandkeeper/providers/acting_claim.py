"""The claim under which the current task acts: nothing goes out after its deadline.

A process that stood still (a suspended container, a frozen machine) does not know it, and another
one may have done its work since. So each outward call asks here right before it is made. The
deadline is the holder's own, counted from before the claim was requested: it is never later than
the database's. What is sent into a sandbox also carries the claim's number, and is refused there if
a newer claim has been.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sandkeeper.common.elapsed import now_s
from sandkeeper.domain.errors import SandboxBusyError


class ActingClaim:
    """A claim as its holder knows it.

    `number` grows with each claim of the same sandbox. `confirm` asks the database whether the
    holder still has it. `may_act` is False when others take the whole process for dead.
    """

    def __init__(
        self,
        *,
        number: int,
        until_s: float,
        confirm: Callable[[], Awaitable[bool]],
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        self.number = number
        self.until_s = until_s
        self.confirm = confirm
        self._may_act = may_act

    def check(self) -> None:
        """Raise SandboxBusyError after the deadline."""
        if now_s() >= self.until_s or not self._may_act():
            raise SandboxBusyError("The claim ran out before this could be done.")


async def _never() -> bool:
    return False


_current: ContextVar[ActingClaim | None] = ContextVar("acting_claim", default=None)


def find_acting_claim() -> ActingClaim | None:
    """Return the claim under which this task acts."""
    return _current.get()


def check_deadline() -> None:
    """Raise SandboxBusyError if this task acts under a claim that has run out."""
    claim = _current.get()
    if claim is not None:
        claim.check()


@contextmanager
def acting_for(within_s: float) -> Iterator[ActingClaim]:
    """Let nothing in the block go out later than `within_s` from now; for work without a claim."""
    with acting_under(ActingClaim(number=0, until_s=now_s() + within_s, confirm=_never)) as acting:
        yield acting


@contextmanager
def acting_under(claim: ActingClaim) -> Iterator[ActingClaim]:
    """Let everything in the block, and the tasks that it starts, act under the claim."""
    token = _current.set(claim)
    try:
        yield claim
    finally:
        _current.reset(token)

"""How fast one provider may be asked.

Three bounds, each with both failure directions beside it. Time is the event loop's, so a change of
the wall clock moves nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sandkeeper.domain.errors import ProviderRateLimitedError

#: How long a creation queues here at most. Longer outlasts the claim under which it is made,
#: shorter refuses bursts that would have been served in time.
QUEUE_S = 30.0


class RateLimiter:
    """Bounds concurrency and the rate of creation, and keeps quiet when told to.

    `concurrency_max`: too high and one sweep uses up the account's limit, too low and a slow
    provider delays the fleet. `creates_per_s`: E2B allows 1 or 5 a second by plan; above it creates
    are refused, below it they queue here. `patience_s`: how long a call may wait for a named quiet
    time inside this process; longer ones are the caller's to plan.
    """

    def __init__(
        self, *, concurrency_max: int = 32, creates_per_s: float = 5.0, patience_s: float = 5.0
    ) -> None:
        self.patience_s = patience_s
        self._slots = asyncio.Semaphore(concurrency_max)
        self._create_every_s = 1.0 / creates_per_s
        self._next_create = 0.0
        self._quiet_until = 0.0

    @property
    def quiet_s(self) -> float:
        """How long nothing may be sent from now on; 0 when asking is allowed."""
        return max(0.0, self._quiet_until - asyncio.get_running_loop().time())

    def keep_quiet(self, seconds: float) -> None:
        """Send nothing for so long. A shorter time never cuts a longer one."""
        until = asyncio.get_running_loop().time() + seconds
        self._quiet_until = max(self._quiet_until, until)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """One of the concurrent calls, after any quiet time that is short enough to wait for."""
        async with self._slots:
            quiet = self.quiet_s
            if 0 < quiet <= self.patience_s:
                await asyncio.sleep(quiet)
            yield

    async def wait_to_create(self) -> None:
        """Wait for the turn of one creation. Turns are given in the order of asking.

        No burst is saved up: after a pause the first goes at once and the next one step later. Who
        would wait for longer than `QUEUE_S` is told so at once instead.
        """
        now = asyncio.get_running_loop().time()
        turn = max(now, self._next_create)
        if turn - now > QUEUE_S:
            raise ProviderRateLimitedError(
                "More sandboxes are being created than the provider's plan allows.",
                retry_after_s=turn - now - QUEUE_S,
            )
        self._next_create = turn + self._create_every_s
        if turn > now:
            await asyncio.sleep(turn - now)

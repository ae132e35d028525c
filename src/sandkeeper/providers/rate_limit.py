"""How fast one provider may be called.

Three bounds, each with the effect of a higher and a lower value. Time is the event loop's, so a
change of the wall clock has no effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sandkeeper.domain.errors import ProviderRateLimitedError

#: How long a creation queues here at most. Higher outlasts the claim under which it is made; lower
#: refuses bursts that would have been served in time.
QUEUE_S = 30.0


class RateLimiter:
    """Bound concurrency and the rate of creation, and send nothing during a quiet time.

    `concurrency_max`: higher lets one sweep use up the account's limit; lower lets a slow provider
    delay the fleet. `creates_per_s`: E2B allows 1 or 5 a second by plan; above it creates are
    refused, below it they queue here. `patience_s`: how long a call may wait for a named quiet time
    inside this process; the caller has to plan for longer ones.
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
        """Return how long nothing may be sent from now on; 0 when calls are allowed."""
        return max(0.0, self._quiet_until - asyncio.get_running_loop().time())

    def keep_quiet(self, seconds: float) -> None:
        """Send nothing for this long. A shorter time never cuts a longer one."""
        until = asyncio.get_running_loop().time() + seconds
        self._quiet_until = max(self._quiet_until, until)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold one of the concurrent calls, after any quiet time short enough to wait for."""
        async with self._slots:
            quiet = self.quiet_s
            if 0 < quiet <= self.patience_s:
                await asyncio.sleep(quiet)
            yield

    async def wait_to_create(self) -> None:
        """Wait for the turn of one creation. Turns follow the order of the calls.

        No burst is saved up: after a pause the first goes at once and the next one step later. A
        call that would wait longer than `QUEUE_S` raises `ProviderRateLimitedError` at once
        instead.
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

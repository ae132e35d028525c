"""Record observations that arrive together in one transaction.

A sweep that pauses hundreds of sandboxes gets as many replies in a moment, and a transaction each
would take longer than the pauses. While one batch is written, the next one gathers; an observation
that comes alone is written at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sandkeeper.domain.errors import VersionConflictError
from sandkeeper.domain.observe.observation import Observation
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.services.observe.observations import Observations, Recorded

# Rows of one transaction. Higher delays other writers; lower costs more commits.
BATCH_MAX = 50


@dataclass(frozen=True, slots=True)
class PendingRecord:
    """An observation that waits, the row as its caller holds it, and what to do with the row."""

    seen: Observation
    known: Sandbox
    finish: Callable[[Sandbox], Sandbox]
    done: asyncio.Future[Recorded]


class BatchedRecords:
    """Write the observations of many holders of claims, a batch at a time."""

    def __init__(self, observations: Observations) -> None:
        self._observations = observations
        self._waiting: list[PendingRecord] = []
        self._writing: asyncio.Task[None] | None = None

    async def record(
        self, seen: Observation, *, known: Sandbox, finish: Callable[[Sandbox], Sandbox]
    ) -> Recorded:
        """Do the same as `Observations.record`, together with others."""
        done: asyncio.Future[Recorded] = asyncio.get_running_loop().create_future()
        self._waiting.append(PendingRecord(seen, known, finish, done))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())
        return await done

    async def _write_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
            try:
                await self._write(batch)
            except VersionConflictError:
                for one in batch:
                    await self._write_alone(one)
            except Exception as error:  # noqa: BLE001  It is the callers', whatever it is.
                for one in batch:
                    if not one.done.done():
                        one.done.set_exception(error)

    async def _write(self, batch: Sequence[PendingRecord]) -> None:
        if len(batch) == 1:
            await self._write_alone(batch[0])
            return
        together = [(one.known, one.seen, one.finish) for one in batch]
        for one, recorded in zip(
            batch, await self._observations.record_held(together), strict=True
        ):
            if not one.done.done():
                one.done.set_result(recorded)

    async def _write_alone(self, one: PendingRecord) -> None:
        try:
            recorded = await self._observations.record(one.seen, known=one.known, finish=one.finish)
        except Exception as error:  # noqa: BLE001  It is the caller's, whatever it is.
            if not one.done.done():
                one.done.set_exception(error)
        else:
            if not one.done.done():
                one.done.set_result(recorded)

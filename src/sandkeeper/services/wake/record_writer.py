"""The writes of a wake to its sandbox's record: few, and none by a driver that was replaced.

One transaction saves the record, the wake's row and the events. For a resume, with a start command
and a port, these are:

    write                claim     step               record
    1  Claims.hold_long  acquire   -                  -
    2  step()            keep      RESUMING           -
    3  announce()        keep      RESTORING_FILES    RUNNING, as the provider replied
    4  step()            keep      STARTING_APP       -
    5  step()            release   WAITING_FOR_PORT   -
    6  finish()          -         finished           ready, URL, receipt

- Write 3 belongs to the observation: `announce` hands the step to it. If the sandbox is ready right
  after its resume, it is the last one: `finish_with` hands it the end, with the receipt.
- Writes 4 and 5 are left out without a start command or a port. The first write after
  `release_with_next` releases the claim; without a port that is write 6. A failure before it
  releases the claim by a write of its own.
- Each write also carries the outcome of the step before it and the receipt so far, in the wake's
  row. It starts from the record that the last one left, so that nothing is read between them.
- The other methods follow the same order. A reboot adds a write for REBOOTING. A recreation writes
  RECREATING first, and then the new generation by a write of its own.

If another writer was faster, the record is read and written again, but only by a driver that still
has the claim, of a wake that is not over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from sandkeeper.common.tracing import TRACING
from sandkeeper.domain.decisions.wake import Wake
from sandkeeper.domain.errors import SandboxBusyError, VersionConflictError
from sandkeeper.domain.events import Event
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.services.lifecycle.claims import without_claim
from sandkeeper.store import Store

RACES_MAX = 20


class WakeTakenOverError(Exception):
    """Another process drives this wake, or has ended it: this one must not touch it any more."""


class RecordWriter:
    """The record of one wake's sandbox, as the last write left it, and the claim on it."""

    def __init__(self, store: Store, sandbox_id: str) -> None:
        self._store = store
        self._sandbox_id = sandbox_id
        self._known: Sandbox | None = None
        self._held: Sandbox | None = None
        self._is_leaving = False

    def hold(self, held: Sandbox) -> None:
        """Let the next writes require the claim under which `held` was read."""
        self._held = self._known = held
        self._is_leaving = False

    def release_with_next(self) -> None:
        """Release the claim with the next write."""
        self._is_leaving = True

    def drop_claim(self) -> None:
        """Write without a claim from now on: it was released, or never acquired."""
        self._held = self._known = None
        self._is_leaving = False

    def remember(self, record: Sandbox) -> None:
        """Keep the record as another write left it, so that the next write needs no read."""
        self._known = record

    def pop_known(self) -> Sandbox | None:
        """Return the remembered record, once: the caller is about to write it."""
        known, self._known = self._known, None
        return known

    def apply_claim(self, record: Sandbox) -> Sandbox:
        """Return the record with the claim kept or released; raise if another holder has it."""
        held = self._held
        if held is None or held.claim is None:
            return record
        if self._is_leaving:
            return without_claim(record, held)
        if record.claim is None or record.claim.holder != held.claim.holder:
            raise SandboxBusyError("The claim was lost.", sandbox_id=record.id)
        return record

    async def write(
        self,
        change: Callable[[Sandbox], tuple[Sandbox, Sequence[Event]]],
        *,
        wake: Wake,
        now: datetime,
    ) -> Sandbox:
        """Save the record as `change` returns it, with its events and the wake, all or nothing."""
        known = self.pop_known()
        for _ in range(RACES_MAX):
            fresh = known or await self._read(wake)
            changed, events = change(fresh)
            try:
                with TRACING.span("record", sandkeeper__sandbox_id=changed.id):
                    self._known = await self._store.sandboxes.save(
                        self.apply_claim(changed),
                        events,
                        expect_version=fresh.version,
                        now=now,
                        wake=wake,
                    )
            except VersionConflictError:
                known = None
                continue
            if self._is_leaving:
                self._held, self._is_leaving = None, False
            return self._known
        raise VersionConflictError(sandbox_id=self._sandbox_id)

    async def _read(self, wake: Wake) -> Sandbox:
        """Read the record after the wake: a wake that ends later writes the record as well."""
        found = await self._store.wakes.find(wake.id)
        if found is not None and found.is_over:
            raise WakeTakenOverError
        return await self._store.sandboxes.get(self._sandbox_id)

"""Bring everything that is stored under the current data key, in small steps.

This is how data of an older version is encrypted for the first time, and how a new data key takes
over. Any replica may do it, several at once, and stop at any point: each step finds what is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog

from sandkeeper.domain.errors import FilesDamagedError
from sandkeeper.hosting.data_keys import open_data_keys
from sandkeeper.services.deps import Deps
from sandkeeper.services.files.sealed_packs import SealedPacks

log = structlog.get_logger(__name__)

STEP_ROWS: Final = 200
"""Rows in one transaction. Higher delays other writers; lower costs more transactions."""
STEPS_MAX: Final = 25
"""Steps in one run of the task, which repeats every few seconds while something is left."""
PACKS_MAX: Final = 8
"""Packs in one run, of 16 MiB each if their files are small. Higher slows other work down."""
SETTLING: Final = timedelta(minutes=2)
"""Other replicas may encrypt with the key before for so long after a new one became active."""


@dataclass(frozen=True, slots=True)
class ReencryptionRun:
    """What one run of the task did."""

    values: int = 0
    packs: int = 0
    damaged: int = 0


class Reencryption:
    """Refreshes the data keys, then re-encrypts what the current one did not encrypt."""

    def __init__(self, deps: Deps, packs: SealedPacks) -> None:
        self._packs = packs
        self._store = deps.store
        self._settings = deps.settings
        self._clock = deps.clock
        self._key_id = ""
        self._since: datetime | None = None
        self._after_id = ""
        self._after_pack = ""
        self._are_values_done = False
        self._are_packs_done = False

    async def run(self) -> ReencryptionRun:
        """Do a bounded part of the work; nothing when all is done."""
        await open_data_keys(self._store, self._settings, now=self._clock())
        self._follow_current_key()
        values = packs = damaged_values = damaged_packs = 0
        if not self._are_values_done:
            values, damaged_values = await self._reseal_values()
        if not self._are_packs_done:
            packs, damaged_packs = await self._reseal_packs()
        return ReencryptionRun(values, packs, damaged_values + damaged_packs)

    def _follow_current_key(self) -> None:
        current = self._store.database.keyring.current_id
        if current != self._key_id:
            self._key_id, self._since = current, self._clock()
            self._after_id = self._after_pack = ""
            self._are_values_done = self._are_packs_done = False

    async def _reseal_values(self) -> tuple[int, int]:
        values = damaged = 0
        for _ in range(STEPS_MAX):
            step = await self._store.sealed_values.reseal(after_id=self._after_id, limit=STEP_ROWS)
            values += step.changed
            damaged += len(step.damaged)
            self._after_id = step.next_id or ""
            for sandbox_id in step.damaged:
                log.error("environment_does_not_decrypt", sandbox_id=sandbox_id)
            if step.next_id is None:
                self._are_values_done = self._is_settled
                break
        if values:
            await self._store.sealed_values.erase_plain()
            log.info("values_encrypted", values=values, data_key=self._key_id)
        return values, damaged

    async def _reseal_packs(self) -> tuple[int, int]:
        done = damaged = 0
        if await self._store.files.are_packs_held(self._clock()):
            return 0, 0
        found = await self._store.files.list_packs_of_other_keys(
            self._key_id, after_id=self._after_pack, limit=PACKS_MAX
        )
        for name in found:
            try:
                done += await self._reseal_pack(name)
            except FilesDamagedError as error:
                damaged += 1
                log.error("pack_not_encrypted", pack=name, error=str(error))  # noqa: TRY400
            self._after_pack = name
        if len(found) < PACKS_MAX:
            self._after_pack = ""
            self._are_packs_done = self._is_settled
        if done:
            log.info("packs_encrypted", packs=done, data_key=self._key_id)
        return done, damaged

    async def _reseal_pack(self, name: str) -> bool:
        """Write the pack with the current key in place of the one that is there.

        Readers see either of the two, whole. The plain one goes before the pack counts as
        encrypted, so that none is ever left behind.
        """
        key_id = self._packs.key_id
        await self._packs.put_stream(name, self._packs.read(name))
        await self._packs.delete_plain(name)
        if await self._store.files.set_pack_key(name, key_id):
            return True
        await self._packs.delete([name])
        return False

    @property
    def _is_settled(self) -> bool:
        return self._since is not None and self._clock() - self._since >= SETTLING

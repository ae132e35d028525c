"""Retention: old versions go, and with them the contents that no version needs any more."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog

from sandkeeper.services.deps import Deps
from sandkeeper.services.files.sealed_packs import SealedPacks

log = structlog.get_logger(__name__)

# Content that a commit under way may still count on is left alone for so long.
UNUSED: Final = timedelta(hours=1)
# A capture that has not been committed after so long never will be.
UNFINISHED: Final = timedelta(days=1)
BATCH: Final = 500


@dataclass(frozen=True, slots=True)
class FilesPruned:
    """What was removed."""

    versions: int
    packs: int


class FileRetention:
    """Any replica may do it at any time, and stop at any point."""

    def __init__(self, deps: Deps, packs: SealedPacks) -> None:
        self._store = deps.store
        self._packs = packs
        self._clock = deps.clock
        self._versions_kept = deps.settings.files_versions_kept
        self._abandoned = timedelta(seconds=deps.settings.retention_ended_s)

    async def prune(self) -> FilesPruned:
        now = self._clock()
        versions = packs = 0
        while True:
            count = await self._store.files.prune_versions(
                keep=self._versions_kept, abandoned_before=now - self._abandoned, limit=BATCH
            )
            versions += count
            if count < BATCH:
                break
        while True:
            dying = await self._store.files.mark_packs_unused(
                unused_before=now - UNUSED,
                unfinished_before=now - UNFINISHED,
                now=self._clock(),
                limit=BATCH,
            )
            if dying:
                await self._packs.delete(dying)
                await self._store.files.delete_packs(dying)
            packs += len(dying)
            if len(dying) < BATCH:
                break
        log.info("files_pruned", versions=versions, packs=packs)
        return FilesPruned(versions, packs)

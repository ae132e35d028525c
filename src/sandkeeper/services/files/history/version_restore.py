"""Restore saved files as they were: one file, a folder, or a whole version.

A restore is an edit and makes a new version, so the versions before it stay as they are. The
present files of a running sandbox are captured first, under the same number of work, so that a
restore can itself be undone. What was changed inside since that capture, or was never saved, is
left alone and named. A sandbox that is paused is refused: its disk may hold changes that no capture
has seen. One that has ended has no disk, so its newest version is all there is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import structlog

from sandkeeper.domain.errors import (
    SandboxBusyError,
    SavedFileNotFoundError,
    VersionConflictError,
    WrongStateError,
)
from sandkeeper.domain.files.manifest import (
    Kind,
    Manifest,
    ManifestEntry,
    PathChange,
    find_difference,
    find_folders,
    put_entries,
    validate_path,
)
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.providers.acting_claim import acting_for, check_deadline
from sandkeeper.services.deps import Deps
from sandkeeper.services.files.agent.client import FencedError
from sandkeeper.services.files.capture import RECEIPT_PATHS_MAX, FileCapture
from sandkeeper.services.files.contract import SkippedFile
from sandkeeper.services.files.file_api import ATTEMPTS, FREE_WAIT_S
from sandkeeper.services.files.unclaimed import STANDSTILL_MAX_S
from sandkeeper.services.files.versions import FileVersions

log = structlog.get_logger(__name__)

SOURCE: Final = "restore"


@dataclass(frozen=True, slots=True)
class VersionRestored:
    """What a restore did. `undo_version` has the files as they were before; 0 if there were none.

    `left` are paths that were left alone, at most a hundred; `left_count` says how many.
    """

    version: int
    from_version: int
    undo_version: int
    changed: int
    removed: int
    is_inside: bool
    left: tuple[SkippedFile, ...] = ()
    left_count: int = 0


class VersionRestore:
    """Restore what a version has under a path, and remove what it has not."""

    def __init__(self, deps: Deps, versions: FileVersions, capture: FileCapture) -> None:
        self._versions = versions
        self._capture = capture
        self._store = deps.store
        self._clock = deps.clock

    async def restore(
        self, owner: Owner, number: int, path: str = "", *, actor: str
    ) -> VersionRestored:
        """Make the files under `path` what they are in a version; an empty path is all of them."""
        if path:
            validate_path(path)
        target = (await self._versions.open(owner, number)).manifest
        if path and target.find(path) is None and not target.has_under(path):
            raise SavedFileNotFoundError(f"{path!r} is not in version {number}.", path=path)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async with self._enter(owner) as sandbox:
                    return await self._restore_once(
                        owner, sandbox, target, number, path, actor=actor
                    )
            except VersionConflictError:
                if attempt == ATTEMPTS:
                    raise
            except FencedError:
                check_deadline()
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def _enter(self, owner: Owner) -> AsyncIterator[Sandbox | None]:
        """Yield the sandbox that runs, or None for an owner without one."""
        sandbox = await self._store.sandboxes.find_by_owner(owner)
        with acting_for(FREE_WAIT_S + STANDSTILL_MAX_S):
            if sandbox is None or sandbox.state.is_ended:
                if sandbox is not None and sandbox.is_waking(self._clock()):
                    raise SandboxBusyError(held_for="wake", retry_after_s=1)
                yield None
                return
            entering = self._capture.unclaimed.enter(sandbox.id, wait_s=FREE_WAIT_S, is_edit=True)
            async with entering as fresh:
                if fresh.is_waking(self._clock()):
                    # It compares the disk with the newest version: another one would mislead it.
                    raise SandboxBusyError(held_for="wake", retry_after_s=1)
                if fresh.state is not State.RUNNING:
                    raise WrongStateError(
                        f"The sandbox is {fresh.state.value}, and its disk may hold changes that "
                        "are not saved. Wake it first, then restore.",
                        status=fresh.state.value,
                    )
                yield fresh

    async def _restore_once(
        self,
        owner: Owner,
        sandbox: Sandbox | None,
        target: Manifest,
        number: int,
        path: str,
        *,
        actor: str,
    ) -> VersionRestored:
        if sandbox is not None:
            await self._capture.capture(sandbox, actor=actor, reason="before a restore")
        present = await self._versions.open(owner)
        changes = await asyncio.to_thread(plan_restore, present.manifest, target, path)
        if not changes:
            return VersionRestored(
                present.number, number, present.number, 0, 0, is_inside=sandbox is not None
            )
        lost: tuple[SkippedFile, ...] = ()
        if sandbox is not None:
            lost = await self._place(sandbox, changes)
        manifest = _apply(
            present.manifest, changes, {one.path for one in lost}, is_inside=sandbox is not None
        )
        packing = self._versions.pack()
        check_deadline()
        version = await self._versions.commit(
            present,
            manifest,
            packing,
            source=SOURCE,
            actor=actor,
            reason=f"{path or 'all'} of version {number}",
        )
        removed = sum(one.new is None for one in changes)
        log.info(
            "version_restored",
            owner=str(owner),
            from_version=number,
            changes=len(changes),
            left=len(lost),
        )
        return VersionRestored(
            version=present.number if version is None else version.number,
            from_version=number,
            undo_version=present.number,
            changed=len(changes) - removed - len(lost),
            removed=removed,
            is_inside=sandbox is not None,
            left=lost[:RECEIPT_PATHS_MAX],
            left_count=len(lost),
        )

    async def _place(
        self, sandbox: Sandbox, changes: Sequence[PathChange]
    ) -> tuple[SkippedFile, ...]:
        """Bring the changes inside; return what could not be, or was changed in between."""
        remote = await self._capture.reach(sandbox)
        in_the_way = find_replaced(changes)
        if in_the_way:
            await self._capture.place(remote, (), remove=_removals(changes, in_the_way))
        looks = {}
        for one in changes:
            if one.old is None:
                looks[one.path] = ""
            elif one.old.stamp and one.path not in in_the_way:
                looks[one.path] = one.old.stamp
        gone = {one.path for one in changes if one.new is None} - in_the_way
        placed = await self._capture.place(
            remote,
            [one.new for one in changes if one.new is not None],
            remove=_removals(changes, gone),
            seen_as=looks,
        )
        return placed.lost


def plan_restore(present: Manifest, target: Manifest, path: str) -> list[PathChange]:
    """Return what has to change so that everything under `path` is as in `target`.

    New entries have the present time: a sandbox that comes back with an older disk gets them.
    Raise InvalidRequestError if a file would have to be a folder too.
    """
    at = time.time_ns()
    above = find_folders([path]) if path else set()
    changes = []
    for one in find_difference(present, target):
        is_missing_folder = one.path in above and one.old is None
        if is_missing_folder or not path or one.path == path or one.path.startswith(f"{path}/"):
            new = None if one.new is None else one.new.evolve(mtime_ns=at, stamp="")
            changes.append(PathChange(one.path, one.old, new))
    touched = {one.path for one in changes}
    rest = {name: one for name, one in present.entries.items() if name not in touched}
    put_entries(
        Manifest({name: one for name, one in rest.items() if one.kind is not Kind.GONE}),
        [one.new for one in changes if one.new is not None],
    )
    return changes


def find_replaced(changes: Sequence[PathChange]) -> set[str]:
    """Return what has to go first: folders that become files, with all in them, and files that
    become folders.
    """
    kinds = {
        one.path
        for one in changes
        if one.old is not None
        and one.new is not None
        and (one.old.kind is Kind.FOLDER) is not (one.new.kind is Kind.FOLDER)
    }
    below = {one.path for one in changes if one.new is None and find_folders([one.path]) & kinds}
    return kinds | below


def _removals(changes: Sequence[PathChange], paths: set[str]) -> list[tuple[str, int]]:
    """Return these with their times, what lies in a folder before the folder."""
    found = [one for one in changes if one.path in paths and one.old is not None]
    return [(one.path, one.old.mtime_ns) for one in reversed(found) if one.old is not None]


def _apply(
    present: Manifest, changes: Sequence[PathChange], left: set[str], *, is_inside: bool
) -> Manifest:
    """Return the present files with these changes, less those that were left alone."""
    entries = {name: one for name, one in present.entries.items() if one.kind is not Kind.GONE}
    at = time.time_ns()
    for one in changes:
        if one.path in left:
            continue
        if one.new is not None:
            entries[one.path] = one.new.evolve(is_pending=not is_inside)
        elif is_inside:
            del entries[one.path]
        else:
            entries[one.path] = ManifestEntry(one.path, Kind.GONE, mtime_ns=at, is_pending=True)
    return Manifest.of(entries.values(), present.not_kept)

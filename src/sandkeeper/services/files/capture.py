"""Capture, restore, verify: the joint between a running sandbox and its kept files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, get_args

import structlog
from e2b import AsyncSandbox

from sandkeeper.domain.errors import (
    CaptureUnsupportedError,
    InstanceGoneError,
    SandboxDiskFullError,
    VersionConflictError,
    WrongStateError,
)
from sandkeeper.domain.events import FilesCaptured
from sandkeeper.domain.files.manifest import Kind, ManifestEntry
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.providers.acting_claim import check_deadline, find_acting_claim
from sandkeeper.services.deps import Deps
from sandkeeper.services.files.agent.client import AgentClient, CaptureLimits, FencedError
from sandkeeper.services.files.agent.fingerprints import Fingerprints
from sandkeeper.services.files.agent.inside.safe_replace import CHANGED
from sandkeeper.services.files.agent.intake import CaptureIntake
from sandkeeper.services.files.contract import (
    FILES_ACTOR,
    CaptureResult,
    RestoreReport,
    RunCheck,
    SkippedFile,
    VerifyReport,
)
from sandkeeper.services.files.diff import (
    Comparison,
    compare,
    describe_look,
    is_under,
)
from sandkeeper.services.files.keyed_limiter import KeyedLimiter
from sandkeeper.services.files.restorer import FileRestorer, RestoreResult
from sandkeeper.services.files.unclaimed import UnclaimedWork
from sandkeeper.services.files.versions import FileVersions, VersionHandle

log = structlog.get_logger(__name__)

WALKS: Final = 64
"""Captures at a time. Most find nothing new, and then hold no more than a list of names."""
TRANSFERS: Final = 12
"""So many may move contents at a time, either way: each holds a few parcels in memory."""
ATTEMPTS: Final = 4
FREE_WAIT_S: Final = 15.0
"""How long a capture that was asked for waits for an operation that holds the sandbox."""
KEPT_KINDS: Final = frozenset({OwnerKind.PROJECT, OwnerKind.JOB})
"""Owners whose files are captured; files of sessions and pools are not."""
HISTORY_PATHS_MAX: Final = 10
"""Unreadable paths that the history names."""
RECEIPT_PATHS_MAX: Final = 100
"""Paths that a receipt names; the number says how many there are beyond."""

OnChecked = Callable[[Sandbox, RunCheck], Awaitable[None]]


async def nothing_on_checked(_sandbox: Sandbox, _checked: RunCheck) -> None:
    """Do nothing: the default listener."""


class FileCapture:
    """Implements `WorkingFiles`. Captures of one owner wait for each other in this process.

    Of two processes the faster one commits, and the other captures again.
    """

    def __init__(self, deps: Deps, versions: FileVersions) -> None:
        self._versions = versions
        self._providers = deps.providers
        self._clock = deps.clock
        self._limits = CaptureLimits.from_settings(deps.settings)
        self._folder = deps.settings.files_folder
        self._keeps_secrets = deps.settings.keep_secret_files
        self._hash_bytes_max = deps.settings.files_hash_bytes_max
        self._turns = KeyedLimiter(WALKS)
        self._transfers = asyncio.Semaphore(TRANSFERS)
        self._fingerprints = Fingerprints(deps.providers)
        self.unclaimed = UnclaimedWork(deps)
        self._on_checked: OnChecked = nothing_on_checked

    def listen(self, on_checked: OnChecked) -> None:
        """Call `on_checked` after the files of a run were compared for the first time."""
        self._on_checked = on_checked

    async def has_pending(self, owner: Owner) -> bool:
        """Return whether the API changed files that the sandbox does not have yet."""
        handle = await self._versions.open(owner)
        return any(one.is_pending for one in handle.manifest.entries.values())

    async def check_new_run(self, sandbox: Sandbox) -> bool:
        """Compare the files of a run, if none did since it began, and restore what it lost.

        Return whether it looked inside. The sandbox may be in use: what is changed inside after the
        comparison is left alone.
        """
        async with self._enter(sandbox) as fresh:
            return await self._check_new_run(fresh, await self._open_native(fresh))

    async def capture(
        self,
        sandbox: Sandbox,
        native: AsyncSandbox | None = None,
        *,
        actor: str = FILES_ACTOR,
        reason: str = "",
    ) -> CaptureResult:
        """See `WorkingFiles.capture`."""
        started = time.monotonic()
        async with self._enter(sandbox) as fresh:
            fingerprint, unchanged = await self._find_unchanged(fresh, started)
            if unchanged is not None:
                return unchanged
            native = native or await self._open_native(fresh)
            await self._check_new_run(fresh, native)
            remote = await self.reach(fresh, native)
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    captured = await self._capture(
                        fresh, remote, started, fingerprint, actor=actor, reason=reason
                    )
                except VersionConflictError:
                    if attempt == ATTEMPTS:
                        raise
                except FencedError:
                    await remote.insist()
                else:
                    _log_and_count(sandbox, captured)
                    return captured
        raise AssertionError("the last attempt returns or raises")

    async def restore(
        self,
        sandbox: Sandbox,
        native: AsyncSandbox,
        *,
        paths: Sequence[str] | None = None,
        seen_as: Mapping[str, str] | None = None,
    ) -> RestoreReport:
        """See `WorkingFiles.restore`."""
        started = time.monotonic()
        handle = await self._versions.open(sandbox.owner)
        remote = await self.reach(sandbox, native)
        wanted = None if paths is None else set(paths)
        chosen = [
            one for path, one in handle.manifest.entries.items() if wanted is None or path in wanted
        ]
        remove = [(one.path, one.mtime_ns) for one in chosen if one.kind is Kind.GONE]
        entries = [one for one in chosen if one.kind is not Kind.GONE]
        placed = await self.place(remote, entries, remove=remove, seen_as=seen_as)
        lost = tuple(one for one in placed.lost if one.reason != CHANGED)
        left = tuple(one.path for one in placed.lost if one.reason == CHANGED)
        files = [one for one in entries if one.kind is not Kind.FOLDER]
        if not lost:
            await self._versions.mark_seen(handle)
        log.info("files_restored", sandbox_id=sandbox.id, files=len(files), lost=len(lost))
        return RestoreReport(
            version=handle.number,
            files=len(files) - len(placed.lost),
            bytes=sum(one.size for one in files),
            removed=placed.removed,
            lost=lost[:RECEIPT_PATHS_MAX],
            lost_count=len(lost),
            left=left,
            is_proven=placed.is_proven,
            not_kept=handle.manifest.not_kept,
            duration_s=time.monotonic() - started,
        )

    async def verify(
        self, sandbox: Sandbox, native: AsyncSandbox, *, everything: bool
    ) -> VerifyReport:
        """See `WorkingFiles.verify`."""
        started = time.monotonic()
        handle = await self._versions.open(sandbox.owner)
        found: dict[Comparison, list[str]] = {name: [] for name in get_args(Comparison)}
        hashed = 0
        problems: tuple[SkippedFile, ...] = ()
        looks: dict[str, str] = {}
        if handle.manifest.entries:
            remote = await self.reach(sandbox, native)
            tree = await remote.list_tree(hash_bytes=-1 if everything else self._hash_bytes_max)
            problems = tree.problems
            blind = [problem.path for problem in problems]
            for path, kept in handle.manifest.entries.items():
                seen = tree.seen.get(path)
                hashed += bool(seen and seen.sha256)
                if seen is not None or not is_under(path, blind):
                    result = compare(kept, seen, exact=everything)
                    found[result].append(path)
                    if result not in ("whole", "newer"):
                        looks[path] = describe_look(seen)
        return VerifyReport(
            version=handle.number,
            checked=len(handle.manifest.entries),
            hashed=hashed,
            missing=tuple(found["missing"]),
            older=tuple(found["older"]),
            damaged=tuple(found["damaged"]),
            newer=tuple(found["newer"]),
            stale=tuple(found["stale"]),
            unreadable=problems[:RECEIPT_PATHS_MAX],
            seen_as=looks,
            duration_s=time.monotonic() - started,
        )

    async def place(
        self,
        remote: AgentClient,
        entries: Sequence[ManifestEntry],
        *,
        remove: Sequence[tuple[str, int]] = (),
        seen_as: Mapping[str, str] | None = None,
    ) -> RestoreResult:
        """Put entries whose contents are kept into a sandbox, and delete what is to go."""
        async with self._transfers:
            return await FileRestorer(remote, self._versions, seen_as).restore(entries, remove)

    async def capture_before_pause(self, sandbox: Sandbox) -> None:
        """Capture before a pause. What can never be captured does not keep a sandbox awake.

        An instance that is gone or does not run is for the pause itself to find out.
        """
        if sandbox.owner.kind not in KEPT_KINDS:
            return
        try:
            await self.capture(sandbox, reason="before it stops")
        except (CaptureUnsupportedError, SandboxDiskFullError) as error:
            log.warning(
                "files_not_captured", sandbox_id=sandbox.id, code=error.code, error=str(error)
            )
        except (InstanceGoneError, WrongStateError) as error:
            log.info("files_not_captured", sandbox_id=sandbox.id, code=error.code)

    async def finish_capture(self, sandbox: Sandbox) -> RestoreReport | None:
        """Put into a running sandbox what the API changed while it could not; None if nothing."""
        handle = await self._versions.open(sandbox.owner)
        waiting = [path for path, one in handle.manifest.entries.items() if one.is_pending]
        if not waiting:
            return None
        native = await self._open_native(sandbox)
        verified = await self.verify(sandbox, native, everything=False)
        lost = sorted(set(verified.lost) & set(waiting))
        return await self.restore(sandbox, native, paths=lost) if lost else None

    async def reach(self, sandbox: Sandbox, native: AsyncSandbox | None = None) -> AgentClient:
        """Return the far side of a sandbox."""
        return AgentClient(
            native or await self._open_native(sandbox),
            self._providers.get(sandbox),
            sandbox_id=sandbox.id,
            root=find_root(sandbox, self._folder),
            limits=self._limits,
        )

    @asynccontextmanager
    async def _enter(self, sandbox: Sandbox) -> AsyncIterator[Sandbox]:
        """Yield the row when no operation holds it, and it is this owner's turn.

        In this order: the operation that holds it may itself wait for its turn to capture.
        """
        async with self._fence(sandbox) as fresh, self._turns.slot(str(sandbox.owner)):
            yield fresh

    @asynccontextmanager
    async def _fence(self, sandbox: Sandbox) -> AsyncIterator[Sandbox]:
        """Yield the row under the claim in force; without one, as the work of no claim."""
        if find_acting_claim() is not None:
            yield sandbox
            return
        async with self.unclaimed.enter(sandbox.id, wait_s=FREE_WAIT_S) as fresh:
            yield fresh

    async def _open_native(self, sandbox: Sandbox) -> AsyncSandbox:
        if sandbox.instance_id is None:
            raise WrongStateError("The sandbox has no instance.", sandbox_id=sandbox.id)
        return await self._providers.get(sandbox).open_sdk_sandbox(sandbox.instance_id)

    async def _check_new_run(self, sandbox: Sandbox, native: AsyncSandbox) -> bool:
        """Restore lost files before the first capture of a run that was not checked yet.

        Its disk may be older or empty. Without this, missing files would be recorded as deletions.
        """
        handle = await self._versions.open(sandbox.owner)
        began_at = sandbox.run.run_started_at
        if handle.version is None or began_at is None or handle.version.seen_at >= began_at:
            return False
        if sandbox.wake is not None and sandbox.wake.has_compared(since=began_at):
            return False
        found = await self.verify(sandbox, native, everything=False)
        if found.is_whole:
            await self._versions.mark_seen(handle)
            await self._on_checked(sandbox, RunCheck(found))
            return True
        log.warning("files_lost_in_new_run", sandbox_id=sandbox.id, files=len(found.lost))
        put = await self.restore(sandbox, native, paths=found.lost, seen_as=found.seen_as)
        await self._on_checked(sandbox, RunCheck(found, put))
        return True

    async def _find_unchanged(
        self, sandbox: Sandbox, started: float
    ) -> tuple[str | None, CaptureResult | None]:
        """Return the folder's fingerprint, and the result of a capture that has nothing to do."""
        seen_at = self._clock()
        handle, found = await asyncio.gather(
            self._versions.open(sandbox.owner),
            self._fingerprints.read(sandbox, find_root(sandbox, self._folder)),
        )
        with_secrets = self._is_with_secrets(sandbox)
        if not self._fingerprints.is_same(sandbox, handle, found, with_secrets=with_secrets):
            return found, None
        check_deadline()
        await self._versions.mark_seen(handle, seen_at)
        return found, CaptureResult(
            version=handle.number,
            is_new=False,
            files=handle.manifest.file_count,
            bytes=handle.manifest.bytes,
            changed=0,
            removed=0,
            travelled_bytes=0,
            unreadable=(),
            unreadable_count=0,
            not_kept=handle.manifest.not_kept,
            duration_s=time.monotonic() - started,
        )

    def _is_with_secrets(self, sandbox: Sandbox) -> bool:
        return sandbox.policy.keeps_secret_files(default=self._keeps_secrets)

    async def _capture(
        self,
        sandbox: Sandbox,
        remote: AgentClient,
        started: float,
        fingerprint: str | None,
        *,
        actor: str,
        reason: str,
    ) -> CaptureResult:
        handle = await self._versions.open(sandbox.owner)
        seen_at = self._clock()
        with_secrets = self._is_with_secrets(sandbox)
        packing = self._versions.pack()
        try:
            taking = CaptureIntake(handle, packing, remote, self._limits)
            found = await taking.take_all(self._transfers, with_secrets=with_secrets)
            event = FilesCaptured(
                sandbox_id=sandbox.id,
                owner=sandbox.owner,
                at=self._clock(),
                actor=actor,
                reason=reason,
                files_version=handle.number + 1,
                changed=found.changed,
                removed=found.removed,
                unreadable_count=len(found.unkept),
                unreadable=tuple(one.path for one in found.unkept[:HISTORY_PATHS_MAX]),
            )
            check_deadline()
            version = await self._versions.commit(
                handle,
                found.manifest,
                packing,
                source="capture",
                actor=actor,
                reason=reason,
                seen_at=seen_at,
                published=(sandbox, [event]),
            )
        finally:
            await packing.close()
        if found.unkept:
            fingerprint = None  # The next capture says again what cannot be read.
        handled = VersionHandle(sandbox.owner, version, found.manifest)
        self._fingerprints.remember(sandbox, handled, fingerprint, with_secrets=with_secrets)
        return CaptureResult(
            version=0 if version is None else version.number,
            is_new=version is not None and version.number != handle.number,
            files=found.manifest.file_count,
            bytes=found.manifest.bytes,
            changed=found.changed,
            removed=found.removed,
            travelled_bytes=found.travelled_bytes,
            unreadable=tuple(found.unkept[:RECEIPT_PATHS_MAX]),
            unreadable_count=len(found.unkept),
            not_kept=found.manifest.not_kept,
            duration_s=time.monotonic() - started,
        )


def _log_and_count(sandbox: Sandbox, captured: CaptureResult) -> None:
    log.info(
        "files_captured",
        sandbox_id=sandbox.id,
        version=captured.version,
        changed=captured.changed,
        removed=captured.removed,
        unreadable=captured.unreadable_count,
        not_kept=captured.not_kept.count,
        duration_s=round(captured.duration_s, 3),
    )


def find_root(sandbox: Sandbox, folder: str) -> str:
    """Return the work folder: the sandbox's own, or the one that the settings name."""
    chosen = sandbox.launch.workdir or folder
    return chosen if chosen.startswith("/") else f"{folder.rstrip('/')}/{chosen}"

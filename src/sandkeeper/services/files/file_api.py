"""Kept files by hand: read, written and deleted through the API, one by one or as an archive.

A change goes to the saved versions and, if the sandbox runs, into the sandbox as well. If it does
not run or cannot be reached, the change is *pending*: the next wake or checkpoint brings it inside,
and no capture in between mistakes it for something that was undone there.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import IO, Final

import structlog

from sandkeeper.domain.errors import (
    InvalidRequestError,
    PayloadTooLargeError,
    ProviderError,
    SandboxBusyError,
    SavedFileNotFoundError,
    VersionConflictError,
    WrongStateError,
)
from sandkeeper.domain.files.ignore_rules import (
    DEFAULT_RULES,
    IGNORE_FILE,
    SECRET_RULES,
    KeptPaths,
    read_rules,
)
from sandkeeper.domain.files.manifest import (
    Kind,
    Manifest,
    ManifestEntry,
    put_entries,
    validate_path,
)
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.providers.acting_claim import acting_for, check_deadline
from sandkeeper.services.deps import Deps
from sandkeeper.services.files.agent.client import SMALL_BYTES, CaptureLimits, FencedError
from sandkeeper.services.files.archive import read_archive
from sandkeeper.services.files.capture import FileCapture
from sandkeeper.services.files.pack_writer import PackWriter, cut_pieces
from sandkeeper.services.files.unclaimed import STANDSTILL_MAX_S
from sandkeeper.services.files.versions import FileVersions, VersionHandle
from sandkeeper.store import BlobLocation, FileVersion

log = structlog.get_logger(__name__)

ATTEMPTS: Final = 5
FREE_WAIT_S: Final = 5.0
"""How long an edit waits for an operation that holds the sandbox; after that it is pending."""
IGNORE_BYTES_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileEditResult:
    """A change that is kept. `is_inside` is True if the running sandbox has it too."""

    version: int
    changed: int
    is_inside: bool
    ignored: tuple[str, ...] = ()


class FileApi:
    """The verbs of the API on kept files."""

    def __init__(self, deps: Deps, versions: FileVersions, capture: FileCapture) -> None:
        self._versions = versions
        self._capture = capture
        self._store = deps.store
        self._limits = CaptureLimits.from_settings(deps.settings)
        self._keeps_secrets = deps.settings.keep_secret_files

    async def open(self, owner: Owner, number: int | None = None) -> VersionHandle:
        """Return the kept files as a list."""
        return await self._versions.open(owner, number)

    async def list_versions(self, owner: Owner) -> list[FileVersion]:
        """Return the versions that are still kept, newest first."""
        return await self._store.files.list_versions(owner)

    async def find(self, owner: Owner, path: str, number: int | None = None) -> ManifestEntry:
        """Return the entry of one kept file; a folder is an error of its own."""
        validate_path(path)
        manifest = (await self._versions.open(owner, number)).manifest
        entry = manifest.find(path)
        if (entry is not None and entry.kind is Kind.FOLDER) or (
            entry is None and manifest.has_under(path)
        ):
            raise InvalidRequestError(f"{path!r} is a folder.", path=path)
        if entry is None:
            raise SavedFileNotFoundError(f"{path!r} is not among the kept files.", path=path)
        return entry

    def stream(self, entry: ManifestEntry) -> AsyncIterator[bytes]:
        """Yield the content of a kept file."""
        return self._versions.stream(entry)

    async def put(
        self, owner: Owner, path: str, chunks: AsyncIterator[bytes], *, mode: int | None = None
    ) -> FileEditResult:
        """Keep a file under this path, new or in place of the one that is there."""
        validate_path(path)
        handle = await self._versions.open(owner)
        rules = await self._read_rules(handle)
        if rules.skips_deeply(path):
            raise InvalidRequestError(_explain_skip(path, rules), path=path)
        present = handle.manifest.find(path)
        known_mode = present.mode if present is not None and present.kind is Kind.FILE else 0o644
        # Asked before the content is taken: a wrong path should not cost a long upload.
        put_entries(handle.manifest, [ManifestEntry(path, Kind.FILE)])
        packing = self._versions.pack()
        place = await self._keep(packing, chunks)
        entry = _make_file(path, place, mode=known_mode if mode is None else mode & 0o7777)
        return await self._apply(owner, packing, lambda _: [entry])

    async def delete(self, owner: Owner, path: str) -> FileEditResult:
        """Keep a file no longer; inside it goes too."""
        await self.find(owner, path)
        gone = ManifestEntry(path, Kind.GONE, mtime_ns=time.time_ns())
        return await self._apply(owner, self._versions.pack(), lambda _: [gone])

    async def put_archive(self, owner: Owner, file: IO[bytes], *, replace: bool) -> FileEditResult:
        """Keep all files of a tar; with `replace` they become the whole, else they are added."""
        handle = await self._versions.open(owner)
        rules = await self._read_rules(handle)
        packing = self._versions.pack()
        entries: dict[str, ManifestEntry] = {}
        ignored: list[str] = []
        total = 0
        async for member in read_archive(file, self._limits):
            if rules.skips_deeply(member.path, member.kind is Kind.FOLDER):
                ignored.append(member.path)
                continue
            if member.kind is not Kind.FILE:
                entries[member.path] = member.to_entry()
                continue
            total += member.size
            if total > self._limits.total_bytes:
                raise PayloadTooLargeError(
                    f"The archive holds more than {self._limits.total_bytes} bytes."
                )
            if member.copies:
                source = entries.get(member.copies)
                if source is None or source.kind is not Kind.FILE:
                    raise InvalidRequestError(
                        f"{member.path!r} links to {member.copies!r}, which is no file before it."
                    )
                entries[member.path] = source.evolve(path=member.path)
                continue
            place = await self._keep(packing, member.read())
            entries[member.path] = _make_file(
                member.path, place, mode=member.mode, mtime_ns=member.mtime_ns
            )

        def change(manifest: Manifest) -> list[ManifestEntry]:
            added = list(entries.values())
            if not replace:
                return added
            at = time.time_ns()
            old = [one for one in manifest.files if one.path not in entries]
            return [ManifestEntry(one.path, Kind.GONE, mtime_ns=at) for one in old] + added

        edited = await self._apply(owner, packing, change)
        return FileEditResult(
            edited.version, edited.changed, edited.is_inside, tuple(ignored[:100])
        )

    async def _apply(
        self, owner: Owner, packing: PackWriter, change: Callable[[Manifest], list[ManifestEntry]]
    ) -> FileEditResult:
        """Bring the change inside if the sandbox runs, then put it in force."""
        await packing.flush()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async with self._enter(owner) as sandbox:
                    try:
                        return await self._apply_once(owner, sandbox, packing, change)
                    except FencedError:
                        check_deadline()  # Another edit was faster, or this one is from long ago.
                        raise
            except (VersionConflictError, FencedError):
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _apply_once(
        self,
        owner: Owner,
        sandbox: Sandbox | None,
        packing: PackWriter,
        change: Callable[[Manifest], list[ManifestEntry]],
    ) -> FileEditResult:
        handle = await self._versions.open(owner)
        changed = change(handle.manifest)
        put_entries(_without(handle.manifest, changed), _existing(changed))
        is_inside = sandbox is not None and await self._push(sandbox, changed)
        entries = [one.evolve(is_pending=not is_inside) for one in changed]
        kept = entries if not is_inside else _existing(entries)
        base = _without(handle.manifest, changed)
        existing = put_entries(base, _existing(kept))
        entries = [*existing.entries.values(), *_gone(kept)]
        manifest = Manifest.of(entries, handle.manifest.not_kept)
        check_deadline()
        version = await self._versions.commit(handle, manifest, packing, source="api")
        return FileEditResult(version.number if version else 0, len(changed), is_inside)

    @asynccontextmanager
    async def _enter(self, owner: Owner) -> AsyncIterator[Sandbox | None]:
        """Yield the sandbox if it runs and no operation holds it: the change goes inside then."""
        sandbox = await self._store.sandboxes.find_by_owner(owner)
        async with AsyncExitStack() as stack:
            stack.enter_context(acting_for(FREE_WAIT_S + STANDSTILL_MAX_S))
            if sandbox is not None and sandbox.state is State.RUNNING:
                entering = self._capture.unclaimed.enter(
                    sandbox.id, wait_s=FREE_WAIT_S, is_edit=True
                )
                try:
                    sandbox = await stack.enter_async_context(entering)
                except SandboxBusyError:
                    sandbox = None
            is_there = sandbox is not None and sandbox.state is State.RUNNING
            yield sandbox if is_there else None

    async def _push(self, sandbox: Sandbox, changed: Sequence[ManifestEntry]) -> bool:
        """Return whether the sandbox has it now. A full disk is an error; being away is not."""
        remove = [(one.path, one.mtime_ns) for one in changed if one.kind is Kind.GONE]
        try:
            remote = await self._capture.reach(sandbox)
            placed = await self._capture.place(remote, _existing(changed), remove=remove)
        except (ProviderError, WrongStateError) as error:
            log.info("files_pending", sandbox_id=sandbox.id, code=error.code)
            return False
        return not placed.lost

    async def _keep(self, packing: PackWriter, chunks: AsyncIterator[bytes]) -> BlobLocation:
        """Take a content of unknown size: in memory while it is small, streamed beyond."""
        head = bytearray()
        async for chunk in chunks:
            head += chunk
            if len(head) > SMALL_BYTES:
                break
        else:
            if len(head) > self._limits.file_bytes:
                raise PayloadTooLargeError(
                    f"A kept file has at most {self._limits.file_bytes} bytes."
                )
            return await packing.add_new(bytes(head))

        async def whole() -> AsyncIterator[bytes]:
            yield bytes(head)
            async for chunk in chunks:
                yield chunk

        return await packing.add_stream(cut_pieces(whole()), size_max=self._limits.file_bytes)

    async def _read_rules(self, handle: VersionHandle) -> KeptPaths:
        """Return the rules in force; without a sandbox, the setting stands for its policy."""
        sandbox = await self._store.sandboxes.find_by_owner(handle.owner)
        keeps_secrets = self._keeps_secrets
        if sandbox is not None:
            keeps_secrets = sandbox.policy.keeps_secret_files(default=keeps_secrets)
        secret_rules = () if keeps_secrets else SECRET_RULES
        own = handle.manifest.find(IGNORE_FILE)
        if own is None or own.kind is not Kind.FILE or own.size > IGNORE_BYTES_MAX:
            return KeptPaths(DEFAULT_RULES, secret_rules)
        text = (await self._versions.read([own]))[own.sha256].decode(errors="replace")
        return KeptPaths([*DEFAULT_RULES, *read_rules(text)], secret_rules)


def _explain_skip(path: str, rules: KeptPaths) -> str:
    if path in rules.secret_files:
        return (
            f"{path!r} may hold secrets and is not kept. Set `keepSecretFiles` in the sandbox's "
            f"policy, or add `!{path}` to {IGNORE_FILE}."
        )
    return f"{path!r} is ignored by the rules in force."


def _make_file(path: str, place: BlobLocation, *, mode: int, mtime_ns: int = 0) -> ManifestEntry:
    return ManifestEntry(
        path=path,
        kind=Kind.FILE,
        mode=mode,
        size=place.size,
        sha256=place.sha256,
        mtime_ns=mtime_ns or time.time_ns(),
        pack=place.pack,
        offset=place.start,
        holes=place.holes,
    )


def _existing(entries: Sequence[ManifestEntry]) -> list[ManifestEntry]:
    return [one for one in entries if one.kind is not Kind.GONE]


def _gone(entries: Sequence[ManifestEntry]) -> list[ManifestEntry]:
    return [one for one in entries if one.kind is Kind.GONE]


def _without(manifest: Manifest, changed: Sequence[ManifestEntry]) -> Manifest:
    """Return the manifest less what the change deletes, so that a file may become a folder."""
    gone = {one.path for one in changed if one.kind is Kind.GONE}
    return Manifest({path: one for path, one in manifest.entries.items() if path not in gone})

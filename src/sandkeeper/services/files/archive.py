"""Archives: a stranger's tar is read with suspicion, and ours is written as it is read."""

from __future__ import annotations

import asyncio
import tarfile
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import IO, Final, cast

from sandkeeper.domain.errors import InvalidRequestError, PayloadTooLargeError
from sandkeeper.domain.files.manifest import Kind, ManifestEntry, leads_out, validate_path
from sandkeeper.services.files.agent.client import CaptureLimits

CHUNK_BYTES: Final = 1024 * 1024


class SmallReads:
    """A file that refuses to be read in large pieces: a header's length is a stranger's number."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek = file.seek
        self.tell = file.tell

    def read(self, size: int = -1) -> bytes:
        """Return at most a few megabytes at once."""
        if not 0 <= size <= 4 * CHUNK_BYTES:
            raise tarfile.ReadError("a header is longer than any honest one")
        return self._file.read(size)


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a tar, its name checked. `copies` names the file that a hard link repeats."""

    path: str
    kind: Kind
    mode: int
    size: int
    mtime_ns: int
    target: str
    copies: str
    read: Callable[[], AsyncIterator[bytes]]

    def to_entry(self) -> ManifestEntry:
        """Return a folder or a link as it is kept."""
        return ManifestEntry(
            self.path, self.kind, mode=self.mode, target=self.target, mtime_ns=self.mtime_ns
        )


async def read_archive(file: IO[bytes], limits: CaptureLimits) -> AsyncIterator[Member]:
    """Yield the members of a plain tar; raises InvalidRequestError at the first bad one.

    To be read in order: a member's content must be taken before the next one.
    """
    try:
        tar = await asyncio.to_thread(_open, file)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InvalidRequestError(f"The body is not an uncompressed tar: {error}") from error
    count = 0
    with tar:
        while True:
            try:
                info = await asyncio.to_thread(tar.next)
            except (tarfile.TarError, EOFError, OSError) as error:
                raise InvalidRequestError(f"The archive is damaged: {error}") from error
            if info is None:
                return
            # The members already read are of no use here, and would grow without bound.
            tar.members = []  # type: ignore[attr-defined]  # Not in the stubs, and there since 2.3.
            count += 1
            if count > limits.entries:
                raise PayloadTooLargeError(f"The archive has more than {limits.entries} members.")
            member = _check(tar, info, limits)
            if member is not None:
                yield member


def _open(file: IO[bytes]) -> tarfile.TarFile:
    return tarfile.open(fileobj=cast("IO[bytes]", SmallReads(file)), mode="r:")


def _check(tar: tarfile.TarFile, info: tarfile.TarInfo, limits: CaptureLimits) -> Member | None:
    name = info.name
    while name.startswith("./"):
        name = name[2:]
    name = name.rstrip("/") if info.isdir() else name
    if name in ("", ".") and info.isdir():
        return None
    path = validate_path(name)
    kind = Kind.FOLDER if info.isdir() else Kind.SYMLINK if info.issym() else Kind.FILE
    if info.issparse() or not (info.isreg() or info.isdir() or info.issym() or info.islnk()):
        raise InvalidRequestError(f"{path!r} is neither a file nor a folder nor a link.", path=path)
    if info.issym() and leads_out(path, info.linkname):
        raise InvalidRequestError(
            f"The link {path!r} leads out of the work folder, to {info.linkname!r}.", path=path
        )
    if info.size > limits.file_bytes:
        raise PayloadTooLargeError(f"{path!r} is larger than {limits.file_bytes} bytes.", path=path)
    return Member(
        path=path,
        kind=kind,
        mode=info.mode & 0o777 if kind is not Kind.SYMLINK else 0o777,
        size=info.size if info.isreg() else 0,
        mtime_ns=max(1, int(info.mtime * 1_000_000_000)),
        target=info.linkname if info.issym() else "",
        copies=validate_path(info.linkname.removeprefix("./")) if info.islnk() else "",
        read=lambda: _read(tar, info),
    )


async def _read(tar: tarfile.TarFile, info: tarfile.TarInfo) -> AsyncIterator[bytes]:
    content = tar.extractfile(info)
    if content is None:
        return
    try:
        while piece := await asyncio.to_thread(content.read, CHUNK_BYTES):
            yield piece
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InvalidRequestError(f"The archive is damaged: {error}") from error


async def write_archive(
    entries: Iterable[ManifestEntry], stream: Callable[[ManifestEntry], AsyncIterator[bytes]]
) -> AsyncIterator[bytes]:
    """Yield a tar of these entries, made while it is sent."""
    for entry in entries:
        info = tarfile.TarInfo(entry.path)
        info.mode = entry.mode
        info.mtime = entry.mtime_ns // 1_000_000_000
        info.type = _TYPES[entry.kind]
        info.linkname = entry.target
        info.size = entry.size if entry.kind is Kind.FILE else 0
        yield info.tobuf(tarfile.PAX_FORMAT)
        if entry.kind is Kind.FILE:
            async for piece in stream(entry):
                yield piece
            yield bytes(-entry.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


_TYPES: Final = {
    Kind.FILE: tarfile.REGTYPE,
    Kind.SYMLINK: tarfile.SYMTYPE,
    Kind.FOLDER: tarfile.DIRTYPE,
}

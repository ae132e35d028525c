"""Unpacks the layers of an image into one folder, in a process of its own.

Run with the order as JSON on its input. It tells its progress in lines of JSON: unpacking takes a
processor for seconds, which the engine's requests should not wait for. Each layer's content is
checked against the digest that the image's configuration names for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import hashlib
import json
import os
import shutil
import signal
import stat
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import zstandard

from sandkeeper.engine.images import adapt
from sandkeeper.engine.images.errors import ImageError
from sandkeeper.engine.images.tree import Tree, is_missing, split_name

_ENTRIES_MAX = 5_000_000
_PIECE = 1 << 20
_WINDOW_MAX = 1 << 27
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_XATTR = "SCHILY.xattr."
_PR_SET_PDEATHSIG = 1
_DAMAGED = (tarfile.TarError, zlib.error, zstandard.ZstdError, EOFError, gzip.BadGzipFile)

_Parts = tuple[str, ...]


class Layer(NamedTuple):
    """A layer's file, and the digest of what is packed in it."""

    path: str
    diff_id: str


class _Digesting:
    """A stream that is digested and limited while it is read."""

    def __init__(self, source: IO[bytes], limit: int) -> None:
        self._source = source
        self._limit = limit
        self._digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        piece = self._source.read(size)
        self._limit -= len(piece)
        if self._limit < 0:
            raise ImageError("the image needs more space, unpacked, than is free or allowed")
        self._digest.update(piece)
        return piece

    def finish(self) -> str:
        """Read to the end and return the digest of everything."""
        while self.read(_PIECE):
            pass
        return f"sha256:{self._digest.hexdigest()}"


class LayerUnpacker:
    """Applies layers to a tree, the lowest first."""

    def __init__(self, tree: Tree, limit: int) -> None:
        self._tree = tree
        self._limit = limit
        """How many bytes may still be written."""
        self._entries = 0
        self.skipped = 0
        """Device files, which no sandbox could use."""
        self._made: set[_Parts] = set()
        """The paths of the present layer: its whiteouts are for those of the layers below."""
        self._folder: tuple[_Parts, int] | None = None
        """The last folder in use, because the files of one come together."""

    def apply(self, layer: Layer) -> None:
        """Unpack one layer. Raises ImageError, OSError."""
        self._made.clear()
        with Path(layer.path).open("rb") as file:
            stream = _Digesting(_decompress(file), self._limit)
            try:
                with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|") as tar:
                    for member in tar:
                        self._add(tar, member)
                        # Streams keep every entry in memory.
                        tar.members = []  # type: ignore[attr-defined]
                found = stream.finish()
            except _DAMAGED as error:
                raise ImageError(f"the layer {layer.diff_id} is damaged: {error}") from error
            finally:
                self._leave_folder()
        if found != layer.diff_id:
            raise ImageError(
                f"a layer's content is {found} and not {layer.diff_id}, which the image names: "
                "it is damaged or was tampered with"
            )

    def _add(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        self._entries += 1
        if self._entries > _ENTRIES_MAX:
            raise ImageError(f"the image has more than {_ENTRIES_MAX} files")
        path = split_name(member.name)
        if not path:
            self._dress(self._tree.open(".", os.O_RDONLY | os.O_DIRECTORY), member)
            return
        *above, name = path
        folder = self._enter_folder(tuple(above))
        if name == _OPAQUE:
            self._empty(tuple(above))
        elif name.startswith(_WHITEOUT):
            # Names with the mark twice are notes of a tool to itself.
            name = _name_deleted(name)
            if not name.startswith(_WHITEOUT) and (*above, name) not in self._made:
                self._tree.remove(name, folder)
        else:
            for end in range(1, len(path) + 1):
                self._made.add(path[:end])
            self._make(tar, member, name, folder)

    def _make(self, tar: tarfile.TarFile, member: tarfile.TarInfo, name: str, folder: int) -> None:
        if member.isdir():
            self._make_folder(member, name, folder)
            return
        if member.ischr() or member.isblk():
            self.skipped += 1
            return
        source = self._find_linked(member) if member.islnk() else None
        try:
            self._tree.remove(name, folder)
            if source is not None:
                os.link(
                    source[1], name, src_dir_fd=source[0], dst_dir_fd=folder, follow_symlinks=False
                )
            elif member.issym():
                os.symlink(member.linkname, name, dir_fd=folder)
                self._tree.give(name, folder, member.uid, member.gid)
            elif member.isfifo():
                os.mkfifo(name, 0o600, dir_fd=folder)
                self._tree.give(name, folder, member.uid, member.gid)
                os.chmod(name, member.mode & 0o777, dir_fd=folder)
            else:
                self._write_file(tar, member, name, folder)
        finally:
            if source is not None:
                os.close(source[0])

    def _make_folder(self, member: tarfile.TarInfo, name: str, folder: int) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(name, flags, dir_fd=folder)
        except OSError as error:
            if not is_missing(error):
                raise
            self._tree.remove(name, folder)
            os.mkdir(name, 0o700, dir_fd=folder)
            fd = os.open(name, flags, dir_fd=folder)
        self._dress(fd, member)

    def _write_file(
        self, tar: tarfile.TarFile, member: tarfile.TarInfo, name: str, folder: int
    ) -> None:
        # A file with holes may be larger than what is stored of it.
        self._limit -= member.size
        if self._limit < 0:
            raise ImageError("the image needs more space, unpacked, than is free or allowed")
        content = tar.extractfile(member)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=folder)
        if content is not None:
            with os.fdopen(os.dup(fd), "wb") as file:
                shutil.copyfileobj(content, file, _PIECE)
        self._dress(fd, member)

    def _dress(self, fd: int, member: tarfile.TarInfo) -> None:
        """Give a file or folder its owner, attributes, mode and time, in this order; close it."""
        try:
            if self._tree.uid_base is not None:
                os.fchown(fd, self._tree.map_id(member.uid), self._tree.map_id(member.gid))
            for header, value in member.pax_headers.items():
                name = header.removeprefix(_XATTR)
                # The others are the host's to give; those of overlays would change the overlay.
                if name != header and name.startswith("user.") and ".overlay." not in name:
                    with contextlib.suppress(OSError):
                        os.setxattr(fd, name, value.encode(errors="surrogateescape"))
            os.fchmod(fd, self._tree.limit_mode(member.mode, is_folder=member.isdir()))
            with contextlib.suppress(OverflowError, ValueError, OSError):
                os.utime(fd, (member.mtime, member.mtime))
        finally:
            os.close(fd)

    def _find_linked(self, member: tarfile.TarInfo) -> tuple[int, str]:
        """Return the folder and the name of the file that a hard link is to."""
        path = split_name(member.linkname)
        if path:
            try:
                folder = self._tree.open("/".join(path[:-1]), os.O_PATH | os.O_DIRECTORY)
                mode = os.lstat(path[-1], dir_fd=folder).st_mode
                if not stat.S_ISDIR(mode):
                    return folder, path[-1]
                os.close(folder)
            except OSError:
                pass
        raise ImageError(
            f"{member.name[:200]!r} links to {member.linkname[:200]!r}, which is not in the image"
        )

    def _empty(self, path: _Parts) -> None:
        """Remove from a folder what layers below put there."""
        fd = self._tree.open("/".join(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name in os.listdir(fd):  # noqa: PTH208 -- a descriptor.
                inner = (*path, name)
                if inner not in self._made:
                    self._tree.remove(name, fd)
                elif stat.S_ISDIR(os.lstat(name, dir_fd=fd).st_mode):
                    self._empty(inner)
        finally:
            os.close(fd)

    def _enter_folder(self, path: _Parts) -> int:
        if self._folder is None or self._folder[0] != path:
            self._leave_folder()
            self._folder = (path, self._tree.make_folders("/".join(path)))
        return self._folder[1]

    def _leave_folder(self) -> None:
        if self._folder is not None:
            os.close(self._folder[1])
            self._folder = None


def _name_deleted(whiteout: str) -> str:
    """Return the name that a whiteout deletes. Raises ImageError for one that leads elsewhere."""
    name = whiteout.removeprefix(_WHITEOUT)
    if name in {"", ".", ".."}:
        raise ImageError(f"a layer holds the whiteout {whiteout!r}, which names no file: refused")
    return name


def _decompress(file: IO[bytes]) -> IO[bytes]:
    """Return a layer's content; its first bytes tell how it is packed, whatever its type says."""
    first = file.read(4)
    file.seek(0)
    if first[:2] == b"\x1f\x8b":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=file))
    if first == b"\x28\xb5\x2f\xfd":
        decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_MAX)
        return cast("IO[bytes]", decompressor.stream_reader(file, read_across_frames=True))
    return file


def unpack(order: dict[str, Any], report: Callable[[int], None]) -> dict[str, Any]:
    """Unpack an image and make it fit for sandboxes; return how its programs are run."""
    root = Path(order["root"])
    root.mkdir(parents=True)
    root.chmod(0o755)
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    tree = Tree(fd, order["uid_base"])
    if tree.uid_base is not None:
        os.chown(root, tree.uid_base, tree.uid_base)
    unpacker = LayerUnpacker(tree, order["limit"])
    for number, layer in enumerate(order["layers"], 1):
        report(number)
        unpacker.apply(Layer(*layer))
    settings = adapt.adapt(tree, order["config"])
    if unpacker.skipped:
        settings["notes"].append(f"{unpacker.skipped} device files of the image were left out")
    return settings


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Carry out the order on the input."""
    _end_with_parent()
    os.umask(0o022)

    def tell(**words: Any) -> None:
        sys.stdout.write(json.dumps(words) + "\n")
        sys.stdout.flush()

    try:
        tell(done=unpack(json.load(sys.stdin), lambda number: tell(layer=number)))
    except ImageError as error:
        tell(error=error.message)
    except OSError as error:
        tell(error=f"the image could not be unpacked: {error}")


if __name__ == "__main__":
    main()

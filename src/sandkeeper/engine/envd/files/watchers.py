"""Watching folders for change.

One inotify descriptor serves every watcher of every sandbox, because a user may hold only a few.
Folders are watched through descriptors below the sandbox's root, so a watch cannot lead outside.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import secrets
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from posixpath import join

from e2b.envd.filesystem.filesystem_pb import EventType

from sandkeeper.engine.envd.files.rooted_fs import RootedFilesystem, real_path

_libc = ctypes.CDLL(None, use_errno=True)

IN_MODIFY = 0x002
IN_ATTRIB = 0x004
IN_MOVED_FROM = 0x040
IN_MOVED_TO = 0x080
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_Q_OVERFLOW = 0x4000
IN_IGNORED = 0x8000
IN_ONLYDIR = 0x01000000
IN_ISDIR = 0x40000000
MASK = IN_MODIFY | IN_ATTRIB | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE | IN_ONLYDIR

TYPES = {
    IN_CREATE: EventType.CREATE,
    IN_MOVED_TO: EventType.CREATE,
    IN_MODIFY: EventType.WRITE,
    IN_DELETE: EventType.REMOVE,
    IN_MOVED_FROM: EventType.RENAME,
    IN_ATTRIB: EventType.CHMOD,
}

EVENTS_MAX = 10_000
"""Most events kept for a watcher that is not polled; beyond it, events are lost and reported so."""

WATCHERS_MAX = 64
"""For each sandbox. More would let one sandbox use up what the host's user may watch."""

FOLDERS_MAX = 4096
"""For each recursive watcher, for the same reason."""

READ_BYTES = 256 * 1024
_EVENT = struct.Struct("iIII")


class OverflowedError(Exception):
    """More happened than a watcher keeps."""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One thing that happened; `name` is relative to the watched folder."""

    name: str
    type: EventType


@dataclass(eq=False, slots=True)
class Watcher:
    """One caller's view of one folder."""

    id: str
    sandbox_id: str
    tree: RootedFilesystem
    path: str
    recursive: bool
    include_entry: bool
    watches: dict[int, str] = field(default_factory=dict)
    """From the kernel's number of a watch to the folder's path relative to `path`."""
    _changes: deque[WatchEvent] = field(default_factory=deque)
    is_ended: bool = False
    _overflowed: bool = False
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def record(self, change: WatchEvent) -> None:
        if len(self._changes) >= EVENTS_MAX:
            self.overflow()
        else:
            self._changes.append(change)
            self._wake.set()

    def overflow(self) -> None:
        self._overflowed = True
        self._wake.set()

    def end(self) -> None:
        """Let the one who waits know that nothing more comes."""
        self.is_ended = True
        self._wake.set()

    def drain(self) -> list[WatchEvent]:
        """Return and forget what happened since the last call. Raises OverflowedError once."""
        if self._overflowed:
            self._overflowed = False
            self._changes.clear()
            raise OverflowedError
        changes = list(self._changes)
        self._changes.clear()
        return changes

    async def wait(self) -> None:
        """Wait until there is something to take, or nothing more comes."""
        while not self._changes and not self._overflowed and not self.is_ended:
            self._wake.clear()
            await self._wake.wait()


class Watchers:
    """Every watcher of every sandbox."""

    def __init__(self) -> None:
        self._inotify: int | None = None
        self._watchers: dict[str, dict[str, Watcher]] = {}
        self._by_watch: dict[int, set[Watcher]] = {}

    def add(
        self,
        sandbox_id: str,
        tree: RootedFilesystem,
        path: str,
        *,
        recursive: bool,
        include_entry: bool,
    ) -> Watcher:
        """Watch a folder. Raises NotADirectoryError, OSError (ENOSPC at a bound)."""
        held = self._watchers.setdefault(sandbox_id, {})
        if len(held) >= WATCHERS_MAX:
            raise OSError(errno.ENOSPC, f"a sandbox has at most {WATCHERS_MAX} watchers", path)
        watcher = Watcher(
            id=f"w{secrets.token_hex(8)}",
            sandbox_id=sandbox_id,
            tree=tree,
            path=path,
            recursive=recursive,
            include_entry=include_entry,
        )
        held[watcher.id] = watcher
        try:
            for _ in self._watch(watcher, ""):
                pass
        except BaseException:
            self.remove(watcher)
            raise
        return watcher

    def find(self, sandbox_id: str, watcher_id: str) -> Watcher | None:
        """Return a watcher, with all events so far already delivered to it."""
        watcher = self._watchers.get(sandbox_id, {}).get(watcher_id)
        if watcher is not None:
            self._read()
        return watcher

    def remove(self, watcher: Watcher) -> None:
        """Stop watching. The second call finds it done."""
        watcher.end()
        held = self._watchers.get(watcher.sandbox_id, {})
        held.pop(watcher.id, None)
        if not held:
            self._watchers.pop(watcher.sandbox_id, None)
        for number in list(watcher.watches):
            self._unwatch(watcher, number)

    def keep_only(self, is_alive: Callable[[str], bool]) -> None:
        """Remove the watchers of stopped sandboxes."""
        for sandbox_id in list(self._watchers):
            if not is_alive(sandbox_id):
                for watcher in list(self._watchers[sandbox_id].values()):
                    self.remove(watcher)

    def close(self) -> None:
        self.keep_only(lambda _: False)
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify)
            os.close(self._inotify)
            self._inotify = None

    def _open(self) -> int:
        if self._inotify is None:
            descriptor = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if descriptor < 0:
                raise OSError(ctypes.get_errno(), "no more watching is possible on this machine")
            asyncio.get_running_loop().add_reader(descriptor, self._read)
            self._inotify = descriptor
        return self._inotify

    def _watch(self, watcher: Watcher, folder: str) -> Iterator[str]:
        """Watch a folder, and all below it if asked; give what lies in it, by relative path."""
        path = join(watcher.path, folder) if folder else watcher.path
        descriptor = watcher.tree.open_folder(path)
        try:
            if len(watcher.watches) >= FOLDERS_MAX:
                raise OSError(errno.ENOSPC, f"a watcher has at most {FOLDERS_MAX} folders", path)
            name = os.fsencode(real_path(descriptor))
            number = _libc.inotify_add_watch(self._open(), name, MASK)
            if number < 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), path)
            watcher.watches[number] = folder
            self._by_watch.setdefault(number, set()).add(watcher)
            if not watcher.recursive:
                return
            with os.scandir(descriptor) as found:
                items = [(item.name, item.is_dir(follow_symlinks=False)) for item in found]
        finally:
            os.close(descriptor)
        for item, is_folder in items:
            below = join(folder, item)
            yield below
            if is_folder:
                try:
                    yield from self._watch(watcher, below)
                except (FileNotFoundError, NotADirectoryError):
                    continue

    def _unwatch(self, watcher: Watcher, number: int) -> None:
        watcher.watches.pop(number, None)
        others = self._by_watch.get(number)
        if others is None:
            return
        others.discard(watcher)
        if not others:
            del self._by_watch[number]
            if self._inotify is not None:
                _libc.inotify_rm_watch(self._inotify, number)

    def _read(self) -> None:
        """Deliver all events that the kernel has reported so far."""
        while self._inotify is not None:
            try:
                data = os.read(self._inotify, READ_BYTES)
            except BlockingIOError:
                return
            offset = 0
            while offset < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, offset)
                offset += _EVENT.size
                name = os.fsdecode(data[offset : offset + length].rstrip(b"\0"))
                offset += length
                self._hand_on(number, mask, name)

    def _hand_on(self, number: int, mask: int, name: str) -> None:
        if mask & IN_Q_OVERFLOW:
            for held in self._watchers.values():
                for watcher in held.values():
                    watcher.overflow()
        if mask & IN_IGNORED:
            for watcher in self._by_watch.pop(number, set()):
                watcher.watches.pop(number, None)
        kind = next((kind for bit, kind in TYPES.items() if mask & bit), None)
        if kind is None or not name:
            return
        for watcher in list(self._by_watch.get(number, ())):
            below = join(watcher.watches[number], name)
            watcher.record(WatchEvent(name=below, type=kind))
            if watcher.recursive and mask & IN_ISDIR and mask & (IN_CREATE | IN_MOVED_TO):
                self._watch_new(watcher, below)

    def _watch_new(self, watcher: Watcher, folder: str) -> None:
        """Watch a folder that has just appeared, and tell what came before the watch did."""
        try:
            for found in self._watch(watcher, folder):
                watcher.record(WatchEvent(name=found, type=EventType.CREATE))
        except OSError as error:
            if error.errno == errno.ENOSPC:
                watcher.overflow()

"""Writable layers as folders: copied, measured and deleted in the background."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
import uuid
from pathlib import Path

from sandkeeper.engine.runtime.contract import DiskFullError, RuntimeFaultError
from sandkeeper.engine.runtime.linux.removal import remove_tree

_MEASURE_EVERY_S = 20.0
_MARGIN = 0.5


class Disks:
    """The disks of one data folder, and its trash."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._trash = data / "trash"
        self._emptying: asyncio.Task[None] | None = None
        self._more = False
        self._measured: dict[Path, tuple[float, int, int]] = {}

    async def start(self) -> None:
        """Continue the deletions that an earlier engine did not finish."""
        self._trash.mkdir(exist_ok=True, mode=0o700)
        self._empty_soon()

    async def close(self) -> None:
        """Wait for the deletion in progress; a crash here is harmless."""
        if self._emptying is not None:
            await self._emptying

    async def copy(self, source: Path, target: Path) -> None:
        """Copy a layer with owners, modes, links, extended attributes and whiteouts.

        The target appears whole or not at all. Blocks are shared where the filesystem can.
        """
        draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        target.parent.mkdir(parents=True, exist_ok=True)
        process = await asyncio.create_subprocess_exec(
            *("cp", "-a", "--reflink=auto", "-T", "--", str(source), str(draft)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _output, complaint = await process.communicate()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await self.discard(draft)
            raise
        if process.returncode != 0:
            await self.discard(draft)
            reason = complaint.decode(errors="replace").strip().splitlines()
            message = f"cannot copy the disk: {reason[-1] if reason else process.returncode}"
            raise (DiskFullError if b"No space left" in complaint else RuntimeFaultError)(message)
        draft.rename(target)

    async def discard(self, folder: Path) -> None:
        """Rename a folder out of the way and delete it in the background."""
        self._measured.pop(folder, None)
        try:
            os.rename(folder, self._trash / uuid.uuid4().hex)  # noqa: PTH104 -- as quick as it gets.
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise RuntimeFaultError(f"cannot discard {folder}: {error}") from error
            await asyncio.to_thread(_delete, folder)
            return
        self._empty_soon()

    def measure(self, upper: Path, limit: int) -> int:
        """Return the bytes a layer uses.

        They are counted again only at times, but at once if the whole disk has since lost so much
        space that this layer could be what took it to its limit.
        """
        stats = os.statvfs(self._data)
        free = stats.f_bavail * stats.f_frsize
        at, used, before = self._measured.get(upper, (0.0, 0, 0))
        now = time.monotonic()
        may_be_full = before - free > (limit - used) * _MARGIN
        if not at or now - at > _MEASURE_EVERY_S or used >= limit or may_be_full:
            used = _sum_blocks(upper)
            self._measured[upper] = (now, used, free)
        return used

    def _empty_soon(self) -> None:
        self._more = True
        if self._emptying is None or self._emptying.done():
            self._emptying = asyncio.create_task(self._empty())

    async def _empty(self) -> None:
        while self._more:
            self._more = False
            for folder in list(self._trash.iterdir()):
                await asyncio.to_thread(_delete, folder)


def _delete(folder: Path) -> None:
    """Delete a folder, also where its owner has locked himself out of a part of it."""
    # What still resists stays in the trash and is tried again at the next start.
    trash = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            remove_tree(folder.name, dir_fd=trash, make_writable=True)
    finally:
        os.close(trash)


def _sum_blocks(folder: Path) -> int:
    total = 0
    folders = [str(folder)]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total

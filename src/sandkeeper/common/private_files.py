"""Files and folders that only their owner can open, whatever the umask is and was.

Imports nothing of Sandkeeper: keeper and engine both use it.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO, Final, Literal

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
OTHERS: Final = 0o077


class OpenFolderError(PermissionError):
    """Other users can open the folder, and it is not ours to close."""


def create_private_folder(folder: Path, *, own_names: Collection[str] | None = None) -> None:
    """Create the folder for its owner only, or close an existing one to others.

    `own_names` are patterns of what we put into it: a folder that others can open and that holds
    anything else is refused, because closing it could lock other programs out of their files.
    """
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    status = folder.stat()
    if sys.platform == "win32" or not status.st_mode & OTHERS:
        return
    foreign = _find_foreign(folder, own_names) if own_names is not None else None
    if foreign is not None or status.st_mode & stat.S_ISVTX:
        reason = "is sticky" if foreign is None else f"holds {foreign!r}, which is not ours"
        raise OpenFolderError(_explain(folder, reason))
    try:
        folder.chmod(FOLDER_MODE)
    except PermissionError:
        raise OpenFolderError(_explain(folder, "belongs to another user")) from None


def restrict_file(path: Path) -> None:
    """Take the rights of others from a file; a missing file is fine."""
    try:
        if path.stat().st_mode & OTHERS:
            path.chmod(FILE_MODE)
    except FileNotFoundError:
        pass


def open_private(path: Path, mode: Literal["ab", "wb"]) -> BinaryIO:
    """Open a file for writing; a new one is for its owner only, and an existing one becomes so."""

    def open_for_owner(name: str, flags: int) -> int:
        descriptor = os.open(name, flags, FILE_MODE)
        # On Windows the folder's own rights protect its files.
        if sys.platform != "win32" and os.fstat(descriptor).st_mode & OTHERS:
            os.fchmod(descriptor, FILE_MODE)
        return descriptor

    return open(path, mode, opener=open_for_owner)


def write_private(path: Path, content: bytes) -> None:
    """Write a file for its owner only; an existing one is replaced at once, never half written."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with open_private(draft, "wb") as file:
        file.write(content)
    draft.replace(path)


def _find_foreign(folder: Path, own_names: Collection[str]) -> str | None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not any(fnmatchcase(entry.name, pattern) for pattern in own_names):
                return entry.name
    return None


def _explain(folder: Path, reason: str) -> str:
    return (
        f"Other users can open {folder}, and it {reason}. Run `chmod 700 {folder}` as its owner, "
        "or choose another folder."
    )

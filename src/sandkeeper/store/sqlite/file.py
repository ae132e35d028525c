"""The file of an SQLite database: whether it is still the one that was opened.

A file that was deleted or replaced lives on without a name for as long as it is open. What is
written to it is lost at the next start.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import URL

from sandkeeper.domain.errors import StoreUnavailableError


class SqliteFile:
    """The file at a path, by its inode. A database in memory has none."""

    def __init__(self, url: URL) -> None:
        name = url.database
        self._path = Path(name) if name and name != ":memory:" else None
        self._inode: tuple[int, int] | None = None

    def check(self) -> None:
        """Raise StoreUnavailableError if the file that was seen first is no longer there."""
        if self._path is None:
            return
        try:
            found = self._path.stat()
        except FileNotFoundError:
            found = None
        inode = None if found is None else (found.st_dev, found.st_ino)
        self._inode = self._inode or inode
        if inode != self._inode:
            raise StoreUnavailableError(
                "The database file was deleted or replaced while the keeper was running. "
                "Restore it from a backup and restart the keeper.",
                path=str(self._path),
            )

"""The one parser of a sandbox's own user database, `/etc/passwd` and `/etc/group`.

The files belong to the sandbox, so they may hold anything. Commands, the files API and templates
ask here and nowhere else, so a name means the same to all of them: the first line with that name,
and only if its ids are plain numbers of the sandbox's own range. Any other line is no user; it is
never replaced by a later line or another identity.

Used by the spawner, so this module imports next to nothing.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from sandkeeper.engine.runtime.linux.paths import open_below

ID_COUNT = 65_536
"""A sandbox has the ids 0 to 65535, by its own numbers."""
ROOT_ID = 0
USER_ID = 1000
PASSWD = "/etc/passwd"  # noqa: S105 -- the name of a file.
GROUP = "/etc/group"
_BYTES_MAX = 1024 * 1024
_GROUPS_MAX = 1024
_DIGITS_MAX = 5
_PASSWD_FIELDS_MIN = 6
_GROUP_FIELDS = 4
_SHOWN_MAX = 40


class UnknownUserError(Exception):
    """The sandbox has no such user; the reason is empty where its database does not name it."""

    def __init__(self, name: str, reason: str = "") -> None:
        super().__init__(f"there is no user {name!r} in the sandbox" + (reason and f": {reason}"))
        self.reason = reason


class Account(NamedTuple):
    """A user of a sandbox, with the ids that the sandbox itself uses."""

    name: str
    uid: int
    gid: int
    home: str


class UserDatabase:
    """The users that the content of a passwd file names."""

    def __init__(self, passwd: bytes) -> None:
        self._lines = _first_lines(passwd)

    def find(self, name: str) -> Account:
        """Return the user of that name. Raises UnknownUserError."""
        fields = self._lines.get(name.encode(errors="replace"))
        if not name or fields is None:
            raise UnknownUserError(name)
        if len(fields) < _PASSWD_FIELDS_MIN:
            raise UnknownUserError(name, f"its line in {PASSWD} has too few fields")
        ids = []
        for kind, field in (("uid", fields[2]), ("gid", fields[3])):
            number = parse_id(field)
            if number is None:
                shown = field[:_SHOWN_MAX].decode(errors="replace")
                cause = f"its {kind} {shown!r} in {PASSWD} is not a number from 0 to {ID_COUNT - 1}"
                raise UnknownUserError(name, cause)
            ids.append(number)
        home = fields[5].decode(errors="replace")
        if "\0" in home:
            raise UnknownUserError(name, f"its home folder in {PASSWD} has a zero byte")
        return Account(name, ids[0], ids[1], home if home.startswith("/") else "/")

    def list(self) -> list[Account]:
        """Return every user that `find` finds."""
        found = []
        for line in self._lines:
            try:
                found.append(self.find(line.decode()))
            except (UnknownUserError, UnicodeDecodeError):
                continue
        return found


def parse_id(field: bytes) -> int | None:
    """Return a user or group id of a sandbox, None if the field is not one in plain digits."""
    # The digits of `bytes` are those of ASCII alone.
    if not field.isdigit() or len(field) > _DIGITS_MAX:
        return None
    number = int(field)
    return number if number < ID_COUNT else None


def find_groups(group: bytes, account: Account) -> list[int]:
    """Return the ids of all groups of a user in rising order; an invalid line is no group."""
    member = account.name.encode(errors="replace")
    found = {account.gid}
    for fields in _first_lines(group).values():
        if len(fields) == _GROUP_FIELDS and member in fields[3].split(b","):
            number = parse_id(fields[2])
            if number is not None and len(found) < _GROUPS_MAX:
                found.add(number)
    return sorted(found)


def map_ids(account: Account, uid_base: int | None, own: tuple[int, int]) -> tuple[int, int]:
    """Return the host's uid and gid behind a user; `own` are those of an engine without a range.

    Raises UnknownUserError for a user who needs an id that such an engine does not have.
    """
    if uid_base is not None:
        return uid_base + account.uid, uid_base + account.gid
    if account.uid not in {ROOT_ID, USER_ID}:
        reason = "it needs an id of its own, which only an engine that runs as root can give"
        raise UnknownUserError(account.name, reason)
    return own


def read_database(root: int, path: str) -> bytes:
    """Return the content of a database file below the sandbox's root; nothing if it is not usable.

    Usable is a plain file of bounded size. One that is too large is not cut: its last line could
    then be another id than the one that is written there.
    """
    try:
        fd = open_below(root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return b""
    try:
        return read_opened(fd)
    except OSError:
        return b""
    finally:
        os.close(fd)


def read_opened(fd: int) -> bytes:
    """Return the content of an opened database file as `read_database` does. Raises OSError."""
    found = os.fstat(fd)
    # The kernel's own files have no size, and are not read for that.
    if not stat.S_ISREG(found.st_mode) or not 0 < found.st_size <= _BYTES_MAX:
        return b""
    content = b""
    while piece := os.read(fd, found.st_size + 1):
        content += piece
        if len(content) > _BYTES_MAX:
            return b""
    return content


def _first_lines(content: bytes) -> dict[bytes, list[bytes]]:
    """Return the fields of the first line of each name. Only a newline ends a line."""
    found: dict[bytes, list[bytes]] = {}
    for line in content.split(b"\n"):
        fields = line.split(b":")
        found.setdefault(fields[0], fields)
    return found

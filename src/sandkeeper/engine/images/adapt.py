"""Makes an unpacked image fit for sandboxes, as E2B does with the images that it builds from.

There is a `user` with a home folder and `sudo`, a `/bin/bash`, `/usr/local` is open to every user,
and the network's names are the sandbox's. The image's user and folder are kept where it names
them.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from importlib import resources
from typing import Any

from sandkeeper.engine.images.tree import Tree
from sandkeeper.engine.runtime.base.rootfs import HOSTNAME
from sandkeeper.engine.runtime.bubblewrap.shown_limits import ONLINE
from sandkeeper.engine.runtime.bubblewrap.user_database import (
    GROUP,
    PASSWD,
    ROOT_ID,
    USER_ID,
    Account,
    UnknownUserError,
    UserDatabase,
    parse_id,
)
from sandkeeper.engine.runtime.egress.network import NAMESERVER

_FOLDERS = {"dev": 0o755, "proc": 0o755, "run": 0o755, "root": 0o700, "home": 0o755, "code": 0o777}
_OPEN_FOLDERS = {"tmp": 0o1777, "var/tmp": 0o1777}
_BASH = b'#!/bin/sh\n# The image has no bash.\nexec /bin/sh "$@"\n'
_HELPER = "usr/libexec/sandkeeper/setpriv"
_HELPER_MAX = 4 << 20
# The image's PATH, and what a command is given, hold in a login shell as well.
_PROFILE_BEFORE = b"given_path=$PATH\n"
_PROFILE_AFTER = b"\nPATH=${given_path:-$PATH}\nexport PATH\nunset given_path\n"


def adapt(tree: Tree, config: dict[str, Any]) -> dict[str, Any]:
    """Change the tree; return the user, the folder, and notes for the build's log."""
    notes: list[str] = []
    for path, mode in _FOLDERS.items():
        os.close(tree.make_folders(path, mode))
    for path, mode in _OPEN_FOLDERS.items():
        _set_mode(tree, path, mode)
    _add_names(tree)
    user = _add_user(tree)
    _make_home(tree, user)
    _open_local(tree)
    _add_shell(tree, notes)
    _add_sudo(tree)
    chosen = _choose_user(tree, config["user"], user, notes)
    return {
        "user": chosen.name,
        "workdir": _choose_workdir(tree, config["workdir"], chosen, user, notes),
        "notes": notes,
    }


def _choose_workdir(
    tree: Tree, wanted: str, chosen: Account, user: Account, notes: list[str]
) -> str:
    """Return the folder that the image names, made if it is missing; else the home folder."""
    if not wanted:
        return user.home
    path = posixpath.normpath(posixpath.join("/", wanted))
    fd = tree.make_folders(path.lstrip("/"))
    found = os.fstat(fd)
    os.close(fd)
    is_closed = tree.uid_base is not None and not found.st_mode & stat.S_IXOTH
    if is_closed and chosen == user and found.st_uid != tree.map_id(user.uid):
        notes.append(f"the image's folder {path} is closed to 'user': {user.home} is used")
        return user.home
    return path


def _set_mode(tree: Tree, path: str, mode: int) -> None:
    os.close(tree.make_folders(path))
    fd = tree.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fchmod(fd, mode)
    os.close(fd)


def _add_names(tree: Tree) -> None:
    hosts = f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost ip6-localhost\n"
    tree.write("etc/hosts", hosts.encode())
    tree.write("etc/hostname", f"{HOSTNAME}\n".encode())
    tree.write("etc/resolv.conf", f"nameserver {NAMESERVER}\n".encode())
    tree.write(ONLINE.lstrip("/"), b"")
    profile = tree.read("etc/profile") or b""
    tree.write("etc/profile", _PROFILE_BEFORE + profile + _PROFILE_AFTER)


def _add_user(tree: Tree) -> Account:
    """Return the user `user`, who is added unless the image has one."""
    passwd = tree.read(PASSWD) or b""
    if not _has_name(passwd, b"root"):
        passwd = b"root:x:0:0:root:/root:/bin/sh\n" + passwd
    group = tree.read(GROUP) or b""
    if not _has_name(group, b"root"):
        group = b"root:x:0:\n" + group
    number = _find_free_id(passwd + b"\n" + group) if tree.uid_base is not None else USER_ID
    if not _has_name(passwd, b"user"):
        passwd = _end_line(passwd) + f"user:x:{number}:{number}::/home/user:/bin/bash\n".encode()
        if not _has_name(group, b"user"):
            group = _end_line(group) + f"user:x:{number}:\n".encode()
        shadow = tree.read("etc/shadow")
        if shadow is not None:
            tree.write("etc/shadow", _end_line(shadow) + b"user:*:19000:0:99999:7:::\n", 0o640)
    tree.write(PASSWD, passwd)
    tree.write(GROUP, group)
    try:
        return UserDatabase(passwd).find("user")
    except UnknownUserError:
        return Account("user", USER_ID, USER_ID, "/home/user")


def _find_free_id(databases: bytes) -> int:
    """Return the first number that is no user and no group of the image, as E2B does."""
    taken = {line.split(b":")[2] for line in databases.split(b"\n") if line.count(b":") > 1}
    number = USER_ID
    while str(number).encode() in taken:
        number += 1
    return number


def _make_home(tree: Tree, user: Account) -> None:
    home = posixpath.normpath(user.home).lstrip("/")
    os.close(tree.make_folders(home))
    if tree.uid_base is None or not home.startswith("home/"):
        return
    fd = tree.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        owner = (tree.map_id(user.uid), tree.map_id(user.gid))
        for _folder, names, files, inner in os.fwalk(".", dir_fd=fd):
            for name in (*names, *files):
                os.chown(name, *owner, dir_fd=inner, follow_symlinks=False)
        os.fchown(fd, *owner)
    finally:
        os.close(fd)


def _open_local(tree: Tree) -> None:
    """Let every user install below `/usr/local`."""
    os.close(tree.make_folders("usr/local/bin"))
    fd = tree.open("usr/local", os.O_RDONLY | os.O_DIRECTORY)
    try:
        for _folder, _names, _files, inner in os.fwalk(".", dir_fd=fd):
            os.fchmod(inner, 0o777)
    finally:
        os.close(fd)


def _add_shell(tree: Tree, notes: list[str]) -> None:
    if tree.has("bin/bash"):
        return
    if tree.has("bin/sh"):
        tree.write("bin/bash", _BASH, 0o755)
        notes.append("the image has no bash: commands run in its /bin/sh")
    else:
        notes.append("the image has no shell: only programs with their full path can be run")


def _add_sudo(tree: Tree) -> None:
    """Add `sudo`, unless the image has one that can work; then allow everything with that one."""
    if tree.uid_base is not None and tree.has("usr/bin/sudo"):
        tree.write("etc/sudoers.d/user", b"user ALL=(ALL:ALL) NOPASSWD: ALL\n", 0o440)
        return
    base = resources.files("sandkeeper.engine.runtime.base")
    helper = tree.read("usr/bin/setpriv", _HELPER_MAX)
    if tree.uid_base is not None:
        if helper is None or not helper.startswith(b"\x7fELF") or _is_busybox(tree):
            return
        tree.write(_HELPER, helper, 0o4755)
    tree.write("usr/bin/sudo", base.joinpath("sudo.sh").read_bytes(), 0o755)


def _is_busybox(tree: Tree) -> bool:
    """Return whether the image's `setpriv` is a part of busybox, which knows other options."""
    with contextlib.suppress(OSError):
        fd = tree.open("usr/bin", os.O_PATH | os.O_DIRECTORY)
        try:
            return stat.S_ISLNK(os.lstat("setpriv", dir_fd=fd).st_mode)
        finally:
            os.close(fd)
    return True


def _choose_user(tree: Tree, wanted: str, user: Account, notes: list[str]) -> Account:
    """Return the user whom the image names; `user` if it names none."""
    name = wanted.partition(":")[0]
    if not name:
        return user
    passwd = tree.read(PASSWD) or b""
    number = parse_id(name.encode())
    database = UserDatabase(passwd)
    if number is not None:
        account = next((one for one in database.list() if one.uid == number), None)
        if account is None:
            group = parse_id(wanted.partition(":")[2].encode()) or ROOT_ID
            account = Account(f"uid{number}", number, group, "/")
            line = f"{account.name}:x:{number}:{group}::/:/bin/sh\n".encode()
            tree.write(PASSWD, _end_line(passwd) + line)
    else:
        try:
            account = database.find(name)
        except UnknownUserError:
            notes.append(
                f"the image's user '{name[:40]}' is not in its /etc/passwd: 'user' is used"
            )
            return user
    if tree.uid_base is None and account.uid not in {ROOT_ID, USER_ID}:
        notes.append(f"the image's user '{account.name}' needs an id of its own: 'user' is used")
        return user
    return account


def _has_name(database: bytes, name: bytes) -> bool:
    return any(line.split(b":")[0] == name for line in database.split(b"\n"))


def _end_line(content: bytes) -> bytes:
    return content if not content or content.endswith(b"\n") else content + b"\n"

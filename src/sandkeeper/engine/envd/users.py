"""The user a request runs as, and how its paths are resolved."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from posixpath import join, normpath

from sandkeeper.engine.envd.files.rooted_fs import RootedFilesystem
from sandkeeper.engine.runtime.bubblewrap import user_database
from sandkeeper.engine.runtime.contract import Runtime
from sandkeeper.engine.sandboxes.routing import RunningSandbox


class InvalidUsernameError(Exception):
    """The sandbox has no user of that name."""

    def __init__(self, name: str, reason: str = "") -> None:
        super().__init__(f"invalid username: '{name}'" + (reason and f": {reason}"))


@dataclass(frozen=True, slots=True)
class User:
    """A user of one sandbox."""

    name: str
    home: str
    workdir: str
    tree: RootedFilesystem

    def expand(self, path: str) -> str:
        """Return the absolute path that `path` means to this user."""
        if not path:
            return self.workdir
        if path == "~" or path.startswith("~/"):
            path = self.home + path[1:]
        absolute = normpath(join(self.home, path))
        # POSIX lets two leading slashes mean something else; here they do not.
        return "/" + absolute.lstrip("/")


def parse_basic(authorization: str | None) -> str | None:
    """Return the user name of a Basic authorization header, None if there is none."""
    if authorization is None or not authorization.lower().startswith("basic "):
        return None
    try:
        decoded = base64.b64decode(authorization[6:].strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise InvalidUsernameError(authorization[6:]) from None
    return decoded.partition(":")[0] or None


def find_user(runtime: Runtime, sandbox: RunningSandbox, name: str | None) -> User:
    """Return the named user, or the default one. Raises UnknownUserError, NotAliveError."""
    name = name or sandbox.default_user
    try:
        owner, home = runtime.find_account(sandbox.sandbox_id, name)
    except user_database.UnknownUserError as error:
        raise InvalidUsernameError(name, error.reason) from None
    tree = RootedFilesystem(runtime.root(sandbox.sandbox_id), owner)
    is_default = name == sandbox.default_user and tree.is_folder(sandbox.default_workdir)
    return User(
        name=name, home=home, workdir=sandbox.default_workdir if is_default else home, tree=tree
    )

"""The data folder: keys, their permissions, and the URL of the running keeper."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sandkeeper.common.private_files import (
    OpenFolderError,
    create_private_folder,
    restrict_file,
    write_private,
)
from sandkeeper.domain.errors import InvalidSettingsError

OPERATOR_KEY_FILE = "operator.key"
URL_FILE = "keeper.url"
KEEPER_ID_FILE = "keeper.id"
OWN_NAMES: Final = (
    OPERATOR_KEY_FILE,
    URL_FILE,
    KEEPER_ID_FILE,
    "encryption.key",
    "sandkeeper.db*",
    "files",
    "engine",
    ".*",
    "*.log",
)
"""What a keeper and its user's shell put into the data folder."""


def create_data_dir(data: Path) -> None:
    """Create the folder and close it to other users, with the key and the URL in it."""
    try:
        create_private_folder(data, own_names=OWN_NAMES)
    except OpenFolderError as error:
        raise InvalidSettingsError(str(error)) from None
    for name in (OPERATOR_KEY_FILE, URL_FILE):
        restrict_file(data / name)


def load_or_create_operator_key(data: Path) -> str:
    """Return the operator's key; create it on the first call.

    Two processes that start at the same time get the same key: the file appears atomically.
    """
    path = data / OPERATOR_KEY_FILE
    found = _read(path)
    if found:
        return found
    create_data_dir(data)
    draft = data / f".{OPERATOR_KEY_FILE}.{os.getpid()}.{time.monotonic_ns()}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"sk_{secrets.token_hex(24)}\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)
    except FileExistsError:
        pass  # Another process was first: use its key.
    finally:
        draft.unlink()
    return _read(path) or ""


@contextmanager
def write_url_file(data: Path, url: str) -> Iterator[None]:
    """Write the keeper's URL into its data folder while the block runs.

    Of several keepers on one folder the newest is found. A file left by a crash points to a port
    without a keeper; the connection then fails with a clear error.
    """
    path = data / URL_FILE
    write_private(path, f"{url}\n".encode())
    try:
        yield
    finally:
        if _read(path) == url:
            path.unlink(missing_ok=True)


def read_url_file(data: Path) -> str | None:
    """Return the URL that this folder's keeper wrote, or None."""
    try:
        return _read(data / URL_FILE)
    except OSError:
        return None


def read_keeper_id(data: Path) -> str | None:
    """Return the id of the keeper that uses this folder, or None."""
    return _read(data / KEEPER_ID_FILE)


def write_keeper_id(data: Path, keeper_id: str) -> None:
    """Keep the keeper's id in the folder."""
    create_data_dir(data)
    write_private(data / KEEPER_ID_FILE, f"{keeper_id}\n".encode())


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except FileNotFoundError:
        return None

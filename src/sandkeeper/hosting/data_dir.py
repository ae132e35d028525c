"""The data folder: where the keys lie and who may read them, and where its keeper listens."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OPERATOR_KEY = "operator.key"
ADDRESS = "keeper.url"


def prepare_folder(data: Path) -> None:
    """Make the folder, readable by its owner alone; one that exists keeps its mode."""
    data.mkdir(mode=0o700, parents=True, exist_ok=True)


def load_or_create_operator_key(data: Path) -> str:
    """The operator's key, made at the first call and the same ever after.

    Two processes that start at once agree: the file appears whole or not at all.
    """
    path = data / OPERATOR_KEY
    found = _read(path)
    if found:
        return found
    prepare_folder(data)
    draft = data / f".{OPERATOR_KEY}.{os.getpid()}.{time.monotonic_ns()}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"sk_{secrets.token_hex(24)}\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)
    except FileExistsError:
        pass  # Another process was first: its key is the key.
    finally:
        draft.unlink()
    return _read(path) or ""


@contextmanager
def write_url_file(data: Path, url: str) -> Iterator[None]:
    """Leave a note where the folder's keeper listens, for as long as it does.

    Of several keepers on one folder the newest is found. A note that a crash left behind leads to
    a port where nobody answers, which the caller is told.
    """
    path = data / ADDRESS
    path.write_text(f"{url}\n")
    try:
        yield
    finally:
        if _read(path) == url:
            path.unlink(missing_ok=True)


def read_url_file(data: Path) -> str | None:
    """Where the keeper of this folder said that it listens, if one runs here."""
    try:
        return _read(data / ADDRESS)
    except OSError:
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except FileNotFoundError:
        return None

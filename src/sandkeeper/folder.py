"""The data folder: where the keys lie and who may read them."""

from __future__ import annotations

import os
import secrets
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

OPERATOR_KEY = "operator.key"


def prepare_folder(data: Path) -> None:
    """Make the folder, readable by its owner alone; one that exists keeps its mode."""
    data.mkdir(mode=0o700, parents=True, exist_ok=True)


def operator_key(data: Path) -> str:
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


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except FileNotFoundError:
        return None

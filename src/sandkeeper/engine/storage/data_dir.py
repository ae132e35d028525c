"""The layout of the engine's data folder, and which ids in it are reserved.

    engine.key      the API key
    engine.url      where the last engine in this folder listened
    engine.names    its domain and certificates, for `sandkeeper engine env`
    tls/            the local certificate authority and the engine's certificate
    ledger.sqlite   the engine's database
    sandboxes/ID/   a sandbox's writable layer (`upper`) and overlayfs' scratch folder (`work`)
    layers/ID/      read-only layers of templates and snapshots
    uploads/        archives for COPY steps
    images/         layers of images as they were fetched, and image files of the operator
    volumes/ID/     the files of a volume

A folder in `sandboxes` or `layers` without a record or reservation is garbage.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sandkeeper.common.private_files import (
    create_private_folder,
    restrict_file,
    write_private,
)

DATABASE: Final = "ledger.sqlite"
OWN_FILES: Final = (
    "engine.key",
    "engine.log",
    "engine.url",
    "spawner.log",
    DATABASE,
    f"{DATABASE}-wal",
    f"{DATABASE}-shm",
)
OWN_NAMES: Final = (
    *("engine.*", "spawner.*", "ledger.*", "base-*", "*.log", ".*"),
    *("sandboxes", "layers", "uploads", "images", "trash", "run", "links", "tls", "volumes"),
)
"""Patterns of what an engine and its user's shell put into the folder."""

IMAGE_PREFIX: Final = "image-"
"""How the names of layers begin that are whole images."""

_ALPHABET = string.ascii_lowercase + string.digits


def new_id(prefix: str = "") -> str:
    """Make an id as E2B's are: 20 characters of a-z and 0-9, after the prefix."""
    return prefix + "".join(secrets.choice(_ALPHABET) for _ in range(20))


class DataDir:
    """The data folder of one engine."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.sandboxes = data / "sandboxes"
        self.layers = data / "layers"
        self.uploads = data / "uploads"
        self.images = data / "images"
        self.volumes = data / "volumes"
        self._reserved: set[str] = set()

    def create(self) -> None:
        """Create the folders, for the engine's user only, and close existing ones to others."""
        create_private_folder(self.data, own_names=OWN_NAMES)
        for folder in (self.sandboxes, self.layers, self.uploads, self.images, self.volumes):
            create_private_folder(folder)
        for name in OWN_FILES:
            restrict_file(self.data / name)

    def write_url_file(self, url: str) -> None:
        """Write where this folder's engine listens, for programs on this machine."""
        write_private(self.data / "engine.url", f"{url}\n".encode())

    @property
    def database(self) -> Path:
        return self.data / DATABASE

    def disk(self, sandbox_id: str) -> Path:
        return self.sandboxes / sandbox_id

    def upper(self, sandbox_id: str) -> Path:
        return self.sandboxes / sandbox_id / "upper"

    def work(self, sandbox_id: str) -> Path:
        return self.sandboxes / sandbox_id / "work"

    def layer(self, layer_id: str) -> Path:
        return self.layers / layer_id

    def upload(self, template_id: str, files_hash: str) -> Path:
        return self.uploads / f"{template_id}-{files_hash}.tar"

    @contextlib.contextmanager
    def headroom(self, *ids: str) -> Iterator[None]:
        """Reserve ids, so that sandboxes or layers being created are not collected as garbage."""
        self._reserved.update(ids)
        try:
            yield
        finally:
            self._reserved.difference_update(ids)

    def is_reserved(self, one_id: str) -> bool:
        return one_id in self._reserved


def read_url_file(data: Path) -> str | None:
    """Return where the engine of this folder listens, or last listened; None before the first."""
    try:
        return (data / "engine.url").read_text().strip() or None
    except FileNotFoundError:
        return None


def load_or_create_api_key(data: Path) -> str:
    """Return the API key: the environment's, else the data folder's, made at first use."""
    from_environment = os.environ.get("E2B_API_KEY")
    if from_environment:
        return from_environment
    path = data / "engine.key"
    with contextlib.suppress(FileNotFoundError):
        key = path.read_text().strip()
        if key:
            return key
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = "e2b_" + secrets.token_hex(20)
    # Written to a draft and linked, so that two concurrent first starts agree on one key.
    aside = path.with_name(f".engine.key.{os.getpid()}")
    aside.touch(mode=0o600)
    aside.write_text(key + "\n")
    try:
        os.link(aside, path)
    except FileExistsError:
        key = path.read_text().strip()
    finally:
        aside.unlink()
    return key

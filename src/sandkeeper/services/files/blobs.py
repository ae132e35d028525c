"""The place of the contents: a folder on this machine, or any bucket that obstore can reach."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import LocalStore, from_url

from sandkeeper.common.private_files import (
    FOLDER_MODE,
    OTHERS,
    create_private_folder,
    restrict_file,
)
from sandkeeper.domain.errors import FilesDamagedError, FilesUnavailableError, InvalidSettingsError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from obstore.store import ClientConfig, ObjectStore, RetryConfig

PACKS: Final = "packs"
MARK: Final = "keeper.mark"
"""The object that names the keeper whose files these are."""

CHUNK_BYTES: Final = 4 * 1024 * 1024
_CLIENT: Final[ClientConfig] = {
    "connect_timeout": timedelta(seconds=5),
    "timeout": timedelta(seconds=120),
    # A bucket on the own network may have no certificate; a URL with http is deliberate.
    "allow_http": True,
}
# A bucket that is down fails within seconds; the caller retries.
_RETRY: Final[RetryConfig] = {"max_retries": 2, "retry_timeout": timedelta(seconds=15)}


class MissingPackError(FilesDamagedError, code="files_damaged"):
    """Saved content is missing."""


def open_blobs(url: str, folder: Path) -> Blobs:
    """Return the place that a setting names; an empty one is the folder.

    A bucket's key, region and endpoint come from its own variables (`AWS_ACCESS_KEY_ID`,
    `AWS_ENDPOINT_URL` and so on).
    """
    if not url or url.startswith("file:"):
        return _open_folder(Path(unquote(urlsplit(url).path)) if url else folder)
    try:
        store = from_url(url, client_options=_CLIENT, retry_config=_RETRY)
    except (BaseError, ValueError) as error:
        raise InvalidSettingsError(f"files_url cannot be used: {error}") from error
    return Blobs(store)


def _open_folder(folder: Path) -> Blobs:
    """Return the blobs in a folder that only this user can open, with all that is in it."""
    try:
        create_private_folder(folder, own_names=[PACKS, MARK])
        packs = folder / PACKS
        create_private_folder(packs)
        for below in packs.iterdir():
            # The mode of the folder tells whether its files were written by an older version.
            if below.is_dir() and below.stat().st_mode & OTHERS:
                for path in below.iterdir():
                    restrict_file(path)
                create_private_folder(below)
    except OSError as error:
        raise InvalidSettingsError(f"The kept files cannot be stored: {error}") from error
    return Blobs(LocalStore(folder), folder)


class Blobs:
    """Objects by name. They are written once and never changed."""

    def __init__(self, store: ObjectStore, folder: Path | None = None) -> None:
        self._store = store
        self._folder = folder

    async def put(self, name: str, data: bytes) -> None:
        """Write a small object, whole or not at all."""
        with _translate_errors(name), self._private(name):
            await obstore.put_async(self._store, _key(name), data)

    async def read_mark(self) -> str | None:
        """Return the text of the mark; None in a store without one."""
        try:
            with _translate_errors(MARK):
                found = await obstore.get_async(self._store, MARK)
                return bytes(await found.bytes_async()).decode().strip()
        except FilesDamagedError:
            return None

    async def write_mark(self, text: str) -> None:
        """Write the mark in place of any other."""
        with _translate_errors(MARK):
            await obstore.put_async(self._store, MARK, f"{text}\n".encode())
        if self._folder is not None:
            restrict_file(self._folder / MARK)

    async def put_stream(self, name: str, chunks: AsyncIterator[bytes | bytearray]) -> None:
        """Write a large object piece by piece, whole or not at all."""
        with _translate_errors(name), self._private(name):
            await obstore.put_async(
                self._store, _key(name), chunks, use_multipart=True, chunk_size=2 * CHUNK_BYTES
            )

    async def get_head(self, name: str, size: int) -> tuple[bytes, int]:
        """Return the first bytes of an object, and the size of the whole."""
        with _translate_errors(name):
            found = await obstore.get_async(self._store, _key(name), options={"range": (0, size)})
            return bytes(await found.bytes_async()), found.meta["size"]

    async def read(self, name: str) -> AsyncIterator[bytes]:
        """Yield a whole object, a few megabytes at a time."""
        with _translate_errors(name):
            found = await obstore.get_async(self._store, _key(name))
            async for piece in found.stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(piece)

    async def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several pieces, each given by start and size."""
        with _translate_errors(name):
            found = await obstore.get_ranges_async(
                self._store,
                _key(name),
                starts=[start for start, _ in ranges],
                lengths=[size for _, size in ranges],
            )
            return [bytes(piece) for piece in found]

    async def delete(self, names: Sequence[str]) -> None:
        """Remove objects; those that are gone already are fine."""
        for name in names:
            try:
                with _translate_errors(name):
                    await obstore.delete_async(self._store, _key(name))
            except FilesDamagedError:
                continue

    @contextmanager
    def _private(self, name: str) -> Iterator[None]:
        """Make what is written in this block private; obstore applies the umask only."""
        if self._folder is None:
            yield
            return
        path = self._folder / _key(name)
        path.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
        yield
        restrict_file(path)


def _key(name: str) -> str:
    return f"{PACKS}/{name[:2]}/{name}"


@contextmanager
def _translate_errors(name: str) -> Iterator[None]:
    try:
        yield
    except (NotFoundError, FileNotFoundError) as error:
        raise MissingPackError(pack=name) from error
    except (BaseError, OSError) as error:
        raise FilesUnavailableError(detail=f"{type(error).__name__}: {error}"[:300]) from error

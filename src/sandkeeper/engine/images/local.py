"""Images in files of this machine: OCI layouts (a folder, or a tar of one), `docker save`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import orjson

from sandkeeper.engine.images.errors import ImageError
from sandkeeper.engine.images.manifest import (
    CONFIG_MAX,
    MANIFEST_MAX,
    Descriptor,
    ImageManifest,
    check_size,
    choose_manifest,
    digest_of,
    is_index,
    parse_config,
    parse_json,
    parse_manifest,
)

_REF_NAMES = ("org.opencontainers.image.ref.name", "io.containerd.image.name")
_DEPTH_MAX = 3


class LocalSource:
    """An image in a file or folder."""

    def __init__(self, path: Path, tag: str | None) -> None:
        self._path = path
        self._tag = tag
        self._names: dict[str, str] = {}
        """Where each layer of a `docker save` is, by its digest."""

    async def resolve(self) -> tuple[ImageManifest, bytes]:
        """Return the manifest for this machine, and the configuration. Raises ImageError."""
        return await asyncio.to_thread(self._resolve)

    async def fetch(self, blob: Descriptor, target: Path, on_bytes: Callable[[int], None]) -> None:
        """Write a layer to a file. Raises ImageError."""
        await asyncio.to_thread(self._copy, blob, target)
        on_bytes(blob.size)

    def _resolve(self) -> tuple[ImageManifest, bytes]:
        try:
            with self._open_all() as files:
                if files.has("manifest.json"):
                    return self._read_saved(files)
                return self._read_layout(files)
        except (OSError, tarfile.TarError) as error:
            raise ImageError(f"the image {self._path} cannot be read: {error}") from error
        except (AttributeError, KeyError, TypeError, orjson.JSONDecodeError) as error:
            raise ImageError(
                f"{self._path} is not an image: its list of images is damaged"
            ) from error

    def _read_layout(self, files: _Files) -> tuple[ImageManifest, bytes]:
        document = parse_json(files.read("index.json", MANIFEST_MAX), "layout's index")
        document = {**document, "manifests": self._choose_tagged(document.get("manifests"))}
        for _ in range(_DEPTH_MAX):
            if not is_index(document):
                manifest = parse_manifest(document)
                return manifest, files.read_blob(manifest.config.digest, CONFIG_MAX)
            content = files.read_blob(choose_manifest(document).digest, MANIFEST_MAX)
            document = parse_json(content, "manifest")
        raise ImageError("the layout's index leads to others, and to no manifest")

    def _choose_tagged(self, entries: Any) -> list[Any]:
        found = [entry for entry in entries or [] if isinstance(entry, dict)]
        if self._tag is None:
            return found
        tagged = [
            entry
            for entry in found
            if self._tag in {(entry.get("annotations") or {}).get(name) for name in _REF_NAMES}
        ]
        if not tagged:
            raise ImageError(f"{self._path} holds no image with the tag '{self._tag}'")
        return tagged

    def _read_saved(self, files: _Files) -> tuple[ImageManifest, bytes]:
        listed = orjson.loads(files.read("manifest.json", MANIFEST_MAX))
        images = [
            one
            for one in listed
            if self._tag is None
            or any(
                tag == self._tag or tag.endswith(f":{self._tag}") for tag in one["RepoTags"] or []
            )
        ]
        if len(images) != 1:
            raise ImageError(
                f"{self._path} holds {len(images)} images with the tag '{self._tag or 'any'}': "
                "name one of those in it"
            )
        names = images[0]["Layers"]
        content = files.read(images[0]["Config"], CONFIG_MAX)
        layers = []
        for name, diff_id in zip(names, parse_config(content, len(names)).diff_ids, strict=True):
            # Layers are saved as they are, or below a name that is their digest.
            packed = name.removeprefix("blobs/sha256/")
            digest = f"sha256:{packed}" if packed != name else diff_id
            layers.append(Descriptor(digest, files.size(name)))
            self._names[digest] = name
        check_size(layers)
        return ImageManifest(Descriptor(digest_of(content), len(content)), tuple(layers)), content

    def _copy(self, blob: Descriptor, target: Path) -> None:
        name = self._names.get(blob.digest, _name_blob(blob.digest))
        try:
            with self._open_all() as files, files.open(name) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
        except (OSError, tarfile.TarError) as error:
            raise ImageError(f"the image {self._path} cannot be read: {error}") from error

    @contextlib.contextmanager
    def _open_all(self) -> Iterator[_Files]:
        if self._path.is_dir():
            yield _Files(self._path, None)
            return
        with tarfile.open(self._path) as tar:
            yield _Files(self._path, tar)


class _Files:
    """The files of a folder or of a tar."""

    def __init__(self, path: Path, tar: tarfile.TarFile | None) -> None:
        self._path = path
        self._tar = tar

    def has(self, name: str) -> bool:
        try:
            self.open(name).close()
        except OSError:
            return False
        return True

    def size(self, name: str) -> int:
        with self.open(name) as file:
            return file.seek(0, os.SEEK_END)

    def read(self, name: str, most: int) -> bytes:
        with self.open(name) as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise ImageError(f"{name} in {self._path} has more than {most} bytes")
        return content

    def read_blob(self, digest: str, most: int) -> bytes:
        content = self.read(_name_blob(digest), most)
        if digest_of(content) != digest:
            raise ImageError(f"{self._path} is damaged: the content of {digest} is another one")
        return content

    def open(self, name: str) -> IO[bytes]:
        if name.startswith("/") or ".." in Path(name).parts:
            raise ImageError(f"{self._path} names a file outside of itself: {name!r}")
        if self._tar is not None:
            try:
                found = self._tar.extractfile(name)
            except KeyError:
                found = None
            if found is None:
                raise FileNotFoundError(f"it holds no {name}")
            return found
        # A layout may be another's: a link in it leads to no other file.
        fd = os.open(self._path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise FileNotFoundError(f"{name} is not a file")
        return os.fdopen(fd, "rb")


def _name_blob(digest: str) -> str:
    return digest.replace("sha256:", "blobs/sha256/", 1)

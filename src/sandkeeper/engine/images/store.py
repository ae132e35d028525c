"""The images of one engine: each is fetched once, verified, and unpacked into one layer.

    images/sha256-…        layers as they were fetched, by their digest
    images/sha256-….part   one that is being fetched; a later pull continues it
    layers/image-…/        an unpacked image: `root`, and how its programs are run in `image.json`

What no template uses stays for a day, for the next build.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakValueDictionary

from sandkeeper.engine.images.credentials import RegistryCredentials
from sandkeeper.engine.images.errors import ImageError
from sandkeeper.engine.images.local import LocalSource
from sandkeeper.engine.images.manifest import (
    IMAGE_MAX,
    Descriptor,
    ImageConfig,
    ImageManifest,
    parse_config,
)
from sandkeeper.engine.images.reference import LocalImage, parse_reference
from sandkeeper.engine.images.registry import Registry, digest_file
from sandkeeper.engine.storage.data_dir import IMAGE_PREFIX, DataDir

_REVISION = 1
"""Changes when images are unpacked or adapted in another way."""
KEEP_S = 24 * 3600.0
_SETTINGS = "image.json"
_RESERVE = 256 << 20
"""Left free on the disk, for the engine and its sandboxes."""
_UNPACKED_FACTOR = 3
"""How much larger an unpacked image usually is; what it really needs is limited as well."""
_MB = 1_000_000

Report = Callable[[str], None]


class ImageSource(Protocol):
    """Where an image comes from."""

    async def resolve(self) -> tuple[ImageManifest, bytes]: ...

    async def fetch(
        self, blob: Descriptor, target: Path, on_bytes: Callable[[int], None]
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class UnpackedImage:
    """An image that sandboxes can be started from."""

    layer_id: str
    env: dict[str, str]
    user: str
    workdir: str
    notes: tuple[str, ...]


class ImageStore:
    """Fetches and unpacks images. Builds of the same image share the work."""

    def __init__(self, data_dir: DataDir, uid_base: int | None) -> None:
        self._data_dir = data_dir
        self._uid_base = uid_base
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def pull(
        self,
        name: str,
        credentials: RegistryCredentials | None,
        report: Report,
        *,
        may_read_anywhere: bool = False,
    ) -> UnpackedImage:
        """Return the image. Raises ImageError.

        Files of this machine are looked for in the engine's folder `images`, so that a client of
        the API cannot read others.
        """
        image = parse_reference(name)
        if isinstance(image, LocalImage):
            path = self._find_file(image.path, may_read_anywhere=may_read_anywhere)
            return await self._pull(LocalSource(path, image.tag), report)
        async with Registry(image, credentials) as registry:
            return await self._pull(registry, report)

    def _find_file(self, path: str, *, may_read_anywhere: bool) -> Path:
        if may_read_anywhere:
            return Path(path).expanduser().absolute()
        if Path(path).name != path or path.startswith("."):
            raise ImageError(
                f"the image file '{path[:200]}' must be in the engine's own folder, "
                f"{self._data_dir.images}, and be named without a folder"
            )
        return self._data_dir.images / path

    async def _pull(self, source: ImageSource, report: Report) -> UnpackedImage:
        manifest, content = await source.resolve()
        config = parse_config(content, len(manifest.layers))
        layer_id = _name_layer(manifest, self._uid_base)
        folder = self._data_dir.layer(layer_id)
        async with self._lock(layer_id):
            if not folder.is_dir():
                with self._held(manifest.layers):
                    await self._unpack(source, manifest, config, folder, report)
            else:
                report("the image is here already")
        settings = json.loads((folder / _SETTINGS).read_text())
        os.utime(folder)
        if config.start:
            words = " ".join(config.start)[:200]
            settings["notes"].append(
                f"the image's own command is not started, as on E2B (set_start_cmd does): {words}"
            )
        return UnpackedImage(
            layer_id, config.env, settings["user"], settings["workdir"], tuple(settings["notes"])
        )

    async def _unpack(
        self,
        source: ImageSource,
        manifest: ImageManifest,
        config: ImageConfig,
        folder: Path,
        report: Report,
    ) -> None:
        blobs = [self._data_dir.images / blob.digest.replace(":", "-") for blob in manifest.layers]
        self._check_space(manifest.layers, blobs)
        for number, (blob, path) in enumerate(zip(manifest.layers, blobs, strict=True), 1):
            async with self._lock(blob.digest):
                await self._fetch(source, blob, path, _Labelled(report, number, len(blobs)))
        draft = folder.with_name(f".{folder.name}.{os.urandom(4).hex()}")
        order = {
            "root": str(draft / "root"),
            "uid_base": self._uid_base,
            "limit": min(IMAGE_MAX, shutil.disk_usage(self._data_dir.data).free - _RESERVE),
            "layers": [
                (str(path), diff_id) for path, diff_id in zip(blobs, config.diff_ids, strict=True)
            ],
            "config": asdict(config),
        }
        with self._data_dir.headroom(draft.name):
            draft.mkdir(mode=0o755)
            # Where this ends early, the next sweep deletes the draft.
            settings = await _run_unpacker(order, len(blobs), report)
            (draft / _SETTINGS).write_text(json.dumps(settings))
            draft.rename(folder)

    async def _fetch(
        self, source: ImageSource, blob: Descriptor, path: Path, report: Report
    ) -> None:
        """Make sure that a blob is here, whole and unchanged."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(path)
            report(f"cached ({blob.size / _MB:.1f} MB)")
            return
        part = path.with_name(f"{path.name}.part")
        await source.fetch(blob, part, _Progress(blob.size, report))
        if blob.size == 0:
            part.touch()
        found = await asyncio.to_thread(digest_file, part)
        if found != blob.digest:
            part.unlink()
            raise ImageError(
                f"a layer arrived as {found} and not as {blob.digest}, which the image names: it "
                "is damaged or was tampered with; if a second try fails as well, the registry has "
                "to be repaired"
            )
        part.rename(path)

    def _check_space(self, layers: tuple[Descriptor, ...], blobs: list[Path]) -> None:
        packed = sum(blob.size for blob in layers)
        missing = sum(
            blob.size for blob, path in zip(layers, blobs, strict=True) if not path.exists()
        )
        needed = missing + packed * _UNPACKED_FACTOR + _RESERVE
        free = shutil.disk_usage(self._data_dir.data).free
        if free < needed:
            raise ImageError(
                f"the image needs about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free on "
                f"the disk of {self._data_dir.data}: delete templates or sandboxes first"
            )

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    @contextlib.contextmanager
    def _held(self, layers: tuple[Descriptor, ...]) -> Iterator[None]:
        """Keep the blobs of an image from being collected as garbage."""
        names = [blob.digest.replace(":", "-") for blob in layers]
        with self._data_dir.headroom(*names):
            yield


@dataclass(frozen=True, slots=True)
class _Labelled:
    """Tells about one layer of several."""

    report: Report
    number: int
    count: int

    def __call__(self, said: str) -> None:
        self.report(f"layer {self.number} of {self.count}: {said}")


class _Progress:
    """Tells now and then how much of a blob is here."""

    def __init__(self, size: int, report: Report) -> None:
        self._size = size
        self._report = report
        self._next = 0.0

    def __call__(self, there: int) -> None:
        now = time.monotonic()
        if there and (now >= self._next or there == self._size):
            self._next = now + 2
            self._report(f"{there / _MB:.1f} of {self._size / _MB:.1f} MB")


async def _run_unpacker(order: dict[str, Any], layers: int, report: Report) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sandkeeper.engine.images.unpack"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(order).encode())
        process.stdin.close()
        async for line in process.stdout:
            said: dict[str, Any] = json.loads(line)
            if "layer" in said:
                report(f"unpacking layer {said['layer']} of {layers}")
            elif "error" in said:
                raise ImageError(said["error"])
            else:
                settings: dict[str, Any] = said["done"]
                return settings
        raise ImageError("the process that unpacks the image was ended: try again")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _name_layer(manifest: ImageManifest, uid_base: int | None) -> str:
    """Return the folder's name for an image: another content or owner is another folder."""
    parts = (manifest.config, *manifest.layers)
    text = f"{_REVISION} {uid_base} {' '.join(part.digest for part in parts)}"
    return f"{IMAGE_PREFIX}{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def remove_old_blobs(data_dir: DataDir, now: float) -> None:
    """Delete fetched layers that no pull has used for a day. Files put there by hand stay."""
    for path in data_dir.images.glob("sha256-*"):
        if not data_dir.is_reserved(path.name.removesuffix(".part")):
            with contextlib.suppress(FileNotFoundError):
                if now - path.stat().st_mtime > KEEP_S:
                    path.unlink()


def is_kept(layer: Path, now: float) -> bool:
    """Return whether a layer is an image that was used within a day, though no template uses it."""
    try:
        return layer.name.startswith(IMAGE_PREFIX) and now - layer.stat().st_mtime < KEEP_S
    except FileNotFoundError:
        return True

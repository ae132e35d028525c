"""Manifests and configurations of images: what is read of them, within bounds.

Both OCI's and Docker's (schema 2) are read; they differ in the names of their types only.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from sandkeeper.engine.images.errors import ImageError
from sandkeeper.engine.images.reference import DIGEST

MANIFEST_MAX = 4 << 20
CONFIG_MAX = 8 << 20
LAYERS_MAX = 256
IMAGE_MAX = 64 << 30
"""Bytes of an image, packed or unpacked. A larger one is refused."""
INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A blob: its digest and its size."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What an image says about how its programs are to be run."""

    env: dict[str, str]
    user: str
    workdir: str
    start: tuple[str, ...]
    """Entrypoint and command. They are not started, as on E2B."""
    diff_ids: tuple[str, ...]
    """The digest of each layer, unpacked."""


@dataclass(frozen=True, slots=True)
class ImageManifest:
    """One image for one platform."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def find_architecture() -> str:
    """Return this machine's architecture by its name in images. Raises ImageError."""
    found = _ARCHITECTURES.get(platform.machine())
    if found is None:
        raise ImageError(f"images cannot be used on this machine's processor, {platform.machine()}")
    return found


def parse_json(content: bytes, what: str) -> dict[str, Any]:
    """Return a JSON object. Raises ImageError."""
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ImageError(f"the {what} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ImageError(f"the {what} is not a JSON object")
    return found


def is_index(document: dict[str, Any]) -> bool:
    """Return whether it lists manifests by platform instead of being one."""
    return document.get("mediaType") in INDEX_TYPES or (
        "manifests" in document and "layers" not in document
    )


def choose_manifest(index: dict[str, Any]) -> Descriptor:
    """Return the manifest for this machine's platform. Raises ImageError."""
    wanted = find_architecture()
    offered = []
    entries = [entry for entry in _list_of(index, "manifests") if isinstance(entry, dict)]
    for entry in entries:
        found = entry.get("platform")
        if not isinstance(found, dict):
            if len(entries) == 1:
                return _parse_descriptor(entry)
            continue
        offered.append(f"{found.get('os')}/{found.get('architecture')}")
        if (found.get("os"), found.get("architecture")) == ("linux", wanted):
            return _parse_descriptor(entry)
    raise ImageError(
        f"the image has no version for this machine, linux/{wanted}; it has "
        f"{', '.join(dict.fromkeys(offered)) or 'none'}"
    )


def parse_manifest(document: dict[str, Any]) -> ImageManifest:
    """Return a manifest. Raises ImageError for one that cannot be unpacked here."""
    if document.get("schemaVersion") != 2:
        raise ImageError(
            "the manifest is of Docker's first schema, which is no longer in use: push the image "
            "again with a current tool"
        )
    layers = []
    for entry in _list_of(document, "layers"):
        kind = entry.get("mediaType", "") if isinstance(entry, dict) else ""
        if not isinstance(kind, str) or "foreign" in kind or "encrypted" in kind:
            raise ImageError(f"a layer of type {kind!r} cannot be fetched")
        if "tar" not in kind and "layer" not in kind:
            raise ImageError(f"this is not an image for containers: it holds {kind or 'nothing'!r}")
        layers.append(_parse_descriptor(entry))
    if len(layers) > LAYERS_MAX:
        raise ImageError(f"the image has {len(layers)} layers; {LAYERS_MAX} is the most")
    check_size(layers)
    return ImageManifest(_parse_descriptor(document.get("config")), tuple(layers))


def check_size(layers: Iterable[Descriptor]) -> None:
    """Raise ImageError for an image that is too large."""
    size = sum(layer.size for layer in layers)
    if size > IMAGE_MAX:
        raise ImageError(f"the image has {size >> 30} GiB; {IMAGE_MAX >> 30} GiB is the most")


def parse_config(content: bytes, layers: int) -> ImageConfig:
    """Return an image's configuration. Raises ImageError."""
    document = parse_json(content, "image's configuration")
    system, architecture = document.get("os"), document.get("architecture")
    wanted = find_architecture()
    if (system, architecture) != ("linux", wanted):
        raise ImageError(
            f"the image is for {system}/{architecture}, and this machine is linux/{wanted}"
        )
    rootfs = document.get("rootfs")
    diff_ids = _list_of(rootfs, "diff_ids") if isinstance(rootfs, dict) else []
    if len(diff_ids) != layers or not all(_is_digest(one) for one in diff_ids):
        raise ImageError("the image's configuration does not name the digest of each layer")
    run = document.get("config") or {}
    if not isinstance(run, dict):
        raise ImageError("the image's configuration is damaged")
    return ImageConfig(
        env=_parse_env(_list_of(run, "Env")),
        user=_text(run, "User"),
        workdir=_text(run, "WorkingDir"),
        start=tuple(map(str, [*_list_of(run, "Entrypoint"), *_list_of(run, "Cmd")])),
        diff_ids=tuple(diff_ids),
    )


def _parse_env(lines: list[Any]) -> dict[str, str]:
    env = {}
    for line in lines:
        name, equals, value = str(line).partition("=")
        if name and equals and "\0" not in str(line):
            env[name] = value
    return env


def _parse_descriptor(entry: object) -> Descriptor:
    if isinstance(entry, dict):
        digest, size = entry.get("digest"), entry.get("size")
        if _is_digest(digest) and isinstance(size, int) and 0 <= size <= IMAGE_MAX:
            return Descriptor(str(digest), size)
    raise ImageError("the manifest names a part without a valid size and SHA-256 digest")


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and DIGEST.fullmatch(value) is not None


def _list_of(document: dict[str, Any], name: str) -> list[Any]:
    found = document.get(name)
    return found if isinstance(found, list) else []


def _text(document: dict[str, Any], name: str) -> str:
    found = document.get(name)
    return found if isinstance(found, str) and "\0" not in found else ""

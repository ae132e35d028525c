"""Names of images, as Docker and skopeo write them.

python:3.12                       Docker Hub
ghcr.io/team/app@sha256:…         any registry, also by digest
localhost:5000/app                a registry on this machine
oci:NAME[:TAG]                    an OCI layout: a folder, or a tar of one
docker-archive:NAME[:TAG]         what `docker save` wrote
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sandkeeper.engine.images.errors import ImageError

_DOCKER_HUB = "docker.io"
_DOCKER_HUB_HOST = "registry-1.docker.io"
_REPOSITORY = re.compile(
    r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*"
)
_HOST = re.compile(
    r"(?:[A-Za-z0-9]+(?:(?:\.|-+)[A-Za-z0-9]+)*|\[[0-9a-fA-F:]{2,45}\])(?::\d{1,5})?"
)
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NAME_MAX = 1000
_LOCAL_KINDS = ("oci", "oci-archive", "docker-archive")


@dataclass(frozen=True, slots=True)
class RegistryImage:
    """An image in a registry."""

    host: str
    repository: str
    reference: str
    """The tag, or the digest where one is given."""

    @property
    def is_on_this_machine(self) -> bool:
        """Return whether the registry is on loopback, where it may speak plain HTTP."""
        name = self.host.rpartition(":")[0] if not self.host.endswith("]") else self.host
        name = (name or self.host).strip("[]")
        return name == "localhost" or name.endswith(".localhost") or _is_loopback(name)


@dataclass(frozen=True, slots=True)
class LocalImage:
    """An image in a file or folder of this machine."""

    path: str
    tag: str | None


def parse_reference(text: str) -> RegistryImage | LocalImage:
    """Return what a name stands for. Raises ImageError."""
    kind, colon, rest = text.partition(":")
    if colon and kind in _LOCAL_KINDS:
        path, _, tag = rest.partition(":")
        if not path or "\0" in rest:
            raise ImageError(
                f"image '{text[:200]}' names no file: write {kind}:NAME or {kind}:NAME:TAG"
            )
        return LocalImage(path, tag or None)
    return _parse_registry(text)


def _parse_registry(text: str) -> RegistryImage:
    name, at, digest = text.partition("@")
    first, slash, rest = name.partition("/")
    host = _DOCKER_HUB
    if slash and (first == "localhost" or set(first) & set(".:[")):
        host, name = first, rest
    head, _, last = name.rpartition("/")
    last, colon, tag = last.partition(":")
    repository = f"{head}/{last}" if head else last
    if (
        len(text) > _NAME_MAX
        or not _HOST.fullmatch(host)
        or not _REPOSITORY.fullmatch(repository)
        or (colon and not _TAG.fullmatch(tag))
        or (at and not DIGEST.fullmatch(digest))
    ):
        raise ImageError(
            f"'{text[:200]}' is not an image's name: write NAME:TAG, HOST/NAME:TAG or "
            "NAME@sha256:…, with the name in lower case"
        )
    if host in {_DOCKER_HUB, f"index.{_DOCKER_HUB}", _DOCKER_HUB_HOST}:
        host = _DOCKER_HUB_HOST
        repository = repository if "/" in repository else f"library/{repository}"
    return RegistryImage(host, repository, digest or tag or "latest")


def _is_loopback(name: str) -> bool:
    return name == "::1" or bool(re.fullmatch(r"127\.\d{1,3}\.\d{1,3}\.\d{1,3}", name))

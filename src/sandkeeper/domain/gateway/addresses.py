"""The host names of previews.

`{name}.{domain}` is the sandbox's own port, `{port}--{name}.{domain}` another one. The name of a
project whose id is a DNS label without two hyphens in a row is its id. Every other owner gets a
readable stem, two hyphens and 80 bits of a hash: two hyphens tell the two kinds apart, so no one
can choose an id that is another owner's name, and the bits keep one from being found by trying.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b32encode
from dataclasses import dataclass

from sandkeeper.domain.owner import Owner, OwnerKind

NAME_MAX = 63 - len("65535--")
"""The longest name: one DNS label holds it with any port."""

_HASH_CHARACTERS = 16
_STEM_MAX = NAME_MAX - _HASH_CHARACTERS - 2
_PLAIN = re.compile(r"[a-z0-9](?:[a-z0-9]|-(?!-))*(?<!-)")
_HASHED = re.compile(r"[a-z](?:[a-z0-9]|-(?!-))*--[a-z2-7]{16}")
_WITH_PORT = re.compile(r"([1-9][0-9]{0,4})--(.+)")


@dataclass(frozen=True, slots=True)
class PreviewAddress:
    """What a host name leads to; without a port, to the sandbox's own."""

    name: str
    port: int | None = None


def find_preview_name(owner: Owner) -> str:
    """Return the owner's name in host names; it never changes, and no other owner has it."""
    if is_named_by_id(owner):
        return owner.id
    text = owner.id if owner.kind is OwnerKind.PROJECT else str(owner)
    stem = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_STEM_MAX].strip("-")
    if not stem or not stem[0].isalpha():
        stem = f"p-{stem}".strip("-")[:_STEM_MAX].strip("-")
    digest = hashlib.sha256(str(owner).encode()).digest()
    return f"{stem}--{b32encode(digest).decode().lower()[:_HASH_CHARACTERS]}"


def is_named_by_id(owner: Owner) -> bool:
    """Return whether the owner is a project whose id is its name."""
    if owner.kind is not OwnerKind.PROJECT or len(owner.id) > NAME_MAX:
        return False
    return bool(_PLAIN.fullmatch(owner.id))


def find_owner_by_id(name: str) -> Owner | None:
    """Return the project whose id this name is; None for a name with a hash."""
    owner = Owner.project(name)
    return owner if is_named_by_id(owner) else None


def parse_preview_host(host: str, domain: str) -> PreviewAddress | None:
    """Return what a host name (lower case, without port) leads to below this domain."""
    label, dot, rest = host.partition(".")
    if not dot or rest != domain:
        return None
    found = _WITH_PORT.fullmatch(label)
    port = int(found[1]) if found else None
    name = found[2] if found else label
    if port is not None and port > 65535:
        return None
    is_plain = len(name) <= NAME_MAX and _PLAIN.fullmatch(name)
    if not is_plain and not (len(name) <= NAME_MAX and _HASHED.fullmatch(name)):
        return None
    return PreviewAddress(name, port)


def build_preview_host(name: str, domain: str, port: int | None = None) -> str:
    """Return the host name that `parse_preview_host` reads."""
    return f"{name}.{domain}" if port is None else f"{port}--{name}.{domain}"

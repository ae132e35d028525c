"""Whom a sandbox is counted for: a customer, a team, or whatever the host application calls so."""

from __future__ import annotations

import re
from typing import Final

from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.domain.policy import Launch

DEFAULT_TENANT: Final = "default"
"""The tenant of a sandbox for which none was named, and of every one in a pool."""

TENANT_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._:@+-]{0,63}$"
"""A tenant's name is part of URLs and of header values, so it has none but plain characters."""

_TENANT: Final = re.compile(TENANT_PATTERN)


def parse_tenant(text: str) -> str:
    """Return the name of a tenant; refuse one that no tenant can have."""
    if not _TENANT.fullmatch(text):
        raise InvalidRequestError(
            "A tenant's name has 1 to 64 characters: letters, digits and ._:@+- after the first.",
            tenant=text[:80],
        )
    return text


def find_tenant(launch: Launch, *, metadata_key: str) -> str:
    """Return the named tenant, else the one in the metadata, else the default one.

    A name in the metadata that no tenant can have is refused: under the default tenant it would
    evade a quota.
    """
    named = launch.tenant
    if named is None and metadata_key:
        named = launch.metadata.get(metadata_key) or None
    return DEFAULT_TENANT if named is None else parse_tenant(named)

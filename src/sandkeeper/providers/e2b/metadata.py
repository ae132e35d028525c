"""The metadata that marks an instance as ours.

It is written in the create call itself: a crash between the provider's answer and our commit leaves
an instance that names its record, and the next reconcile finds it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from sandkeeper.providers.base import CreateSpec, OwnershipMetadata

KEEPER = "sandkeeper-keeper"
SANDBOX = "sandkeeper-sandbox"
OWNER_KIND = "sandkeeper-owner-kind"
OWNER_ID = "sandkeeper-owner"
GENERATION = "sandkeeper-generation"


def render_metadata(tag: OwnershipMetadata) -> dict[str, str]:
    """Return the tag as metadata."""
    return {
        KEEPER: tag.keeper,
        SANDBOX: tag.sandbox_id,
        OWNER_KIND: tag.owner_kind,
        OWNER_ID: tag.owner_id,
        GENERATION: str(tag.generation),
    }


def parse_metadata(metadata: Mapping[str, object]) -> OwnershipMetadata | None:
    """Return the tag in this metadata; None if any part is missing or invalid.

    An incomplete tag is no tag: what cannot be traced to one record must never be removed as a
    leak.
    """
    values = [metadata.get(key) for key in (KEEPER, SANDBOX, OWNER_KIND, OWNER_ID, GENERATION)]
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) != len(values) or not texts[4].isdecimal() or len(texts[4]) > 9:
        return None
    return OwnershipMetadata(
        keeper=texts[0],
        sandbox_id=texts[1],
        owner_kind=texts[2],
        owner_id=texts[3],
        generation=int(texts[4]),
    )


def make_creation_key(spec: CreateSpec) -> str:
    """Return the key under which the provider makes one instance, however often it is asked.

    It names the generation, and all that is asked for: another request with the same key is
    refused.
    """
    wanted = [spec.template, spec.timeout_s, sorted(spec.env.items())]
    wanted += [sorted(spec.metadata.items()), spec.allow_internet]
    digest = hashlib.sha256(json.dumps([*render_metadata(spec.tag).items(), wanted]).encode())
    return f"sandkeeper-{digest.hexdigest()}"

"""The metadata that marks an instance as ours.

It is written in the create call itself: a crash between the provider's answer and our commit leaves
an instance that names its record, and the next reconcile finds it.
"""

from __future__ import annotations

from collections.abc import Mapping

from sandkeeper.providers.base import OwnershipMetadata

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

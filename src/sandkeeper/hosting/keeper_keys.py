"""The keys of a keeper: those in its settings, and the operator's in the data folder."""

from __future__ import annotations

from sandkeeper.hosting.data_dir import load_or_create_operator_key
from sandkeeper.settings import Settings


def load_operator_key(settings: Settings) -> str:
    """Return the operator's key of the settings, or the data folder's, which is made if missing."""
    given = settings.operator_key
    return given.get_secret_value() if given else load_or_create_operator_key(settings.data)


def load_keys(settings: Settings) -> list[str]:
    """Return all keys that the keeper accepts besides the named ones in its database."""
    others = (*settings.other_operator_keys, *settings.viewer_keys)
    return [load_operator_key(settings), *(one.get_secret_value() for one in others)]

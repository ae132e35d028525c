"""Where the keeper is and with which key, when the caller does not say."""

from __future__ import annotations

import os

from sandkeeper.domain.errors import SettingsError
from sandkeeper.folder import OPERATOR_KEY
from sandkeeper.settings import read_settings


def find_url(url: str | None) -> str:
    """The given URL, `SANDKEEPER_URL`, or the configured host and port."""
    chosen = url or os.environ.get("SANDKEEPER_URL")
    if not chosen:
        settings = read_settings()
        everywhere = {"0.0.0.0", "::"}  # noqa: S104  Compared, not bound.
        host = "127.0.0.1" if settings.host in everywhere else settings.host
        chosen = (
            f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"
        )
    if not chosen.startswith(("http://", "https://")):
        raise SettingsError(f"{chosen!r} is not the URL of a keeper: it begins with http or https.")
    return chosen.rstrip("/")


def find_key(key: str | None) -> str | None:
    """The given key, `SANDKEEPER_OPERATOR_KEY`, or the one in the data folder if it is readable."""
    chosen = key or os.environ.get("SANDKEEPER_OPERATOR_KEY")
    if chosen:
        return chosen
    try:
        return (read_settings().data / OPERATOR_KEY).read_text().strip() or None
    except OSError:
        return None

"""Where the keeper is and with which key, when the caller does not say."""

from __future__ import annotations

import os

from sandkeeper.domain.errors import InvalidSettingsError
from sandkeeper.hosting.data_dir import OPERATOR_KEY, read_url_file
from sandkeeper.settings import Settings, read_settings


def find_url(url: str | None) -> str:
    """The given URL, `SANDKEEPER_URL`, or where the keeper of the data folder listens.

    A keeper writes its address into its folder, so that one on another port is found as well. A
    configured host or port is meant, and counts more than that note.
    """
    chosen = url or os.environ.get("SANDKEEPER_URL")
    if not chosen:
        settings = read_settings()
        is_configured = bool({"host", "port"} & settings.model_fields_set)
        noted = None if is_configured else read_url_file(settings.data)
        chosen = noted or format_url(settings, settings.port)
    if not chosen.startswith(("http://", "https://")):
        raise InvalidSettingsError(
            f"{chosen!r} is not the URL of a keeper: it begins with http or https."
        )
    return chosen.rstrip("/")


def format_url(settings: Settings, port: int) -> str:
    """How this machine reaches a keeper that listens on the configured host and this port."""
    everywhere = {"0.0.0.0", "::"}  # noqa: S104  Compared, not bound.
    host = "127.0.0.1" if settings.host in everywhere else settings.host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def find_key(key: str | None) -> str | None:
    """The given key, `SANDKEEPER_OPERATOR_KEY`, or the one in the data folder if it is readable."""
    chosen = key or os.environ.get("SANDKEEPER_OPERATOR_KEY")
    if chosen:
        return chosen
    try:
        return (read_settings().data / OPERATOR_KEY).read_text().strip() or None
    except OSError:
        return None

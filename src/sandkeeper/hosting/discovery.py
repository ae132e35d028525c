"""Find the keeper's URL and key when the caller does not give them.

The settings are imported only then: they take as long to import as an HTTP client.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sandkeeper.domain.errors import InvalidSettingsError
from sandkeeper.hosting.data_dir import OPERATOR_KEY_FILE, read_url_file

if TYPE_CHECKING:
    from sandkeeper.settings import Settings


def resolve_url(url: str | None) -> str:
    """Return the given URL, `SANDKEEPER_URL`, or the URL of the data folder's keeper.

    A keeper writes its URL into its data folder, so one on another port is found as well. A
    configured host or port takes precedence over that file.
    """
    chosen = url or os.environ.get("SANDKEEPER_URL")
    if not chosen:
        settings = _read_settings()
        is_configured = bool({"host", "port"} & settings.model_fields_set)
        published = None if is_configured else read_url_file(settings.data)
        chosen = published or format_url(settings, settings.port)
    if not chosen.startswith(("http://", "https://")):
        raise InvalidSettingsError(
            f"{chosen!r} is not the URL of a keeper: it must begin with http:// or https://."
        )
    return chosen.rstrip("/")


def format_url(settings: Settings, port: int) -> str:
    """Return the local URL of a keeper on the configured host and this port."""
    everywhere = {"0.0.0.0", "::"}  # noqa: S104  Compared, not bound.
    host = "127.0.0.1" if settings.host in everywhere else settings.host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def find_key(key: str | None) -> str | None:
    """Return the given key, `SANDKEEPER_OPERATOR_KEY`, or the data folder's key if readable."""
    chosen = key or os.environ.get("SANDKEEPER_OPERATOR_KEY")
    if chosen:
        return chosen
    try:
        return (_read_settings().data / OPERATOR_KEY_FILE).read_text().strip() or None
    except OSError:
        return None


def _read_settings() -> Settings:
    from sandkeeper.settings import read_settings  # noqa: PLC0415

    return read_settings()

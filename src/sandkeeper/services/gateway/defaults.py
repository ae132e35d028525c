"""Who may see a preview whose policy says nothing."""

from __future__ import annotations

import ipaddress

from sandkeeper.domain.gateway.visits import PreviewDefaults
from sandkeeper.domain.policy import PreviewAccess
from sandkeeper.services.gateway.urls import PreviewUrls
from sandkeeper.settings import Settings


def make_preview_defaults(settings: Settings, urls: PreviewUrls) -> PreviewDefaults:
    """Return what the settings say; a keeper that only its own machine reaches hides nothing."""
    is_local = urls.is_local and _is_loopback(settings.host)
    access = settings.preview_access
    if access == "auto":
        access = "public" if is_local else "private"
    return PreviewDefaults(PreviewAccess(access), wakes_public=is_local)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

"""Which host names are previews, and the URL of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandkeeper.common.dashboard_host import is_local_name, parse_hostname
from sandkeeper.domain.gateway.addresses import (
    PreviewAddress,
    build_preview_host,
    find_preview_name,
    parse_preview_host,
)
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.settings import Settings

LINK_PATH: Final = "/.sandkeeper/link/"
VISIT_PATH: Final = "/.sandkeeper/visit"
"""Where a browser exchanges a share link, or a member's code, for a pass."""


@dataclass(frozen=True, slots=True)
class PreviewUrls:
    """The host names of the previews of this installation."""

    domain: str
    """In lower case, without a port; empty where no previews are served."""
    scheme: str = "https"
    port: str = ""
    """With its colon, where it is not the scheme's own."""

    @classmethod
    def from_settings(cls, settings: Settings) -> PreviewUrls:
        """Return the addresses that the settings give: plain HTTP on this machine, else HTTPS."""
        domain, colon, port = settings.gateway_domain.lower().partition(":")
        if not domain or not is_local_name(domain):
            return cls(domain, "https", colon + port)
        return cls(domain, "http", colon + port or f":{settings.port}")

    @property
    def is_local(self) -> bool:
        """Return whether only browsers on this machine find the previews."""
        return self.scheme == "http"

    def owns(self, host: str) -> bool:
        """Return whether a Host header names the domain, or anything below it."""
        name = parse_hostname(host)
        return bool(self.domain) and (name == self.domain or name.endswith(f".{self.domain}"))

    def parse(self, host: str) -> PreviewAddress | None:
        """Return the preview that a Host header names, whatever its port."""
        return parse_preview_host(parse_hostname(host), self.domain)

    def build(self, owner: Owner, port: int | None = None) -> str:
        """Return the URL of a preview, without a slash at its end."""
        host = build_preview_host(find_preview_name(owner), self.domain, port)
        return f"{self.scheme}://{host}{self.port}"

    def find(self, sandbox: Sandbox) -> str | None:
        """Return the URL of a sandbox's own port; None without one, or where none are served."""
        has_one = bool(self.domain) and sandbox.launch.port is not None
        return self.build(sandbox.owner) if has_one else None

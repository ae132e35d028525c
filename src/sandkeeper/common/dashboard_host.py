"""The dashboard's own host name on this machine.

Cookies ignore ports: a login cookie set on `127.0.0.1` or `localhost` goes to every server there,
including the engine and its sandboxes. So the dashboard has its own name, which browsers resolve to
loopback. Programs use 127.0.0.1 and a key, never this name.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit, urlunsplit

DASHBOARD_HOST = "sandkeeper.localhost"


def parse_hostname(host: str) -> str:
    """Return the name in a Host header, without port, in lower case."""
    bare = host.strip().lower()
    if bare.startswith("["):
        return bare[1:].partition("]")[0]
    return bare.partition(":")[0].removesuffix(".")


def is_shared_name(host: str) -> bool:
    """Return whether a Host header names this machine by a name that other servers share."""
    name = parse_hostname(host)
    if name == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    plain = getattr(address, "ipv4_mapped", None) or address
    return bool(plain.is_loopback or plain.is_unspecified)


def is_local_name(host: str) -> bool:
    """Return whether a Host header names this machine, which no one's DNS can point elsewhere."""
    return is_shared_name(host) or parse_hostname(host).endswith(".localhost")


def is_protected(url: str) -> bool:
    """Return whether a URL is https, or http on this very machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return bool(parts.hostname) and (
        parts.scheme == "https" or (parts.scheme == "http" and is_local_name(parts.netloc))
    )


def get_dashboard_url(url: str) -> str:
    """Return the dashboard's URL, for browsers, of the keeper at this URL."""
    parts = urlsplit(url)
    if not is_shared_name(parts.netloc):
        return url
    port = re.search(r":\d{1,5}$", parts.netloc)
    return urlunsplit(parts._replace(netloc=DASHBOARD_HOST + (port[0] if port else "")))

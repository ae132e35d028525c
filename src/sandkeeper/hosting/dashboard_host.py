"""The dashboard's own host name on this machine.

Cookies ignore ports: a login that is set on `127.0.0.1` or `localhost` goes to everything that
listens there, the engine with its sandboxes among it. So the dashboard has a name of its own, which
browsers resolve to loopback by themselves. Programs use 127.0.0.1 and a key, and never this name.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit, urlunsplit

DASHBOARD_HOST = "sandkeeper.localhost"


def name_in(host: str) -> str:
    """The name in a Host header, without its port, in lower case."""
    bare = host.strip().lower()
    if bare.startswith("["):
        return bare[1:].partition("]")[0]
    return bare.partition(":")[0].removesuffix(".")


def is_shared_name(host: str) -> bool:
    """Whether a Host header names this machine by a name that other servers on it have too."""
    name = name_in(host)
    if name == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    plain = getattr(address, "ipv4_mapped", None) or address
    return bool(plain.is_loopback or plain.is_unspecified)


def find_dashboard(url: str) -> str:
    """Where a browser finds the dashboard of the keeper at this URL."""
    parts = urlsplit(url)
    if not is_shared_name(parts.netloc):
        return url
    port = re.search(r":\d{1,5}$", parts.netloc)
    return urlunsplit(parts._replace(netloc=DASHBOARD_HOST + (port[0] if port else "")))

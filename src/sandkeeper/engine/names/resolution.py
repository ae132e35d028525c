"""Whether programs on this machine find sandboxes by their host names."""

from __future__ import annotations

import ipaddress
import socket

from sandkeeper.engine.runtime.contract import Capability

_EXAMPLE = "3000-example.localhost"
_NAME = "host names of sandboxes"
_FIX = (
    "sudo apt-get install libnss-myhostname (or nss-myhostname); without it, programs use "
    "http://127.0.0.1:7421/p/{id}/{port}/ or the headers E2b-Sandbox-Id and E2b-Sandbox-Port"
)


def check_names() -> Capability:
    """Ask this machine's resolver, as every program does; browsers know the answer themselves."""
    try:
        found = {str(one[4][0]) for one in socket.getaddrinfo(_EXAMPLE, 80)}
    except OSError as error:
        finding = f"*.localhost does not resolve here ({error.strerror}); in browsers it does"
        return Capability(_NAME, ok=False, finding=finding, fix=_FIX)
    if not all(ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in found):
        finding = f"*.localhost leads to {', '.join(sorted(found))} instead of this machine"
        return Capability(_NAME, ok=False, finding=finding, fix=_FIX)
    return Capability(_NAME, ok=True, finding="*.localhost leads to this machine")

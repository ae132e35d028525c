"""Host names in allow lists: they stand for the addresses that this machine's resolver gives.

Routes know addresses only, so names are resolved here, when a list is set and again and again while
its sandbox runs. An address stays allowed for a while after it was last given, because the sandbox
asks at another moment and may get another one of a large site's. What a name can never open is the
host itself, its loopback and link-local addresses, whatever a name server says.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import re
import socket
import time
from collections.abc import Collection

from sandkeeper.engine.runtime.contract import Egress
from sandkeeper.engine.runtime.egress import network

NAMES_MAX = 100
ADDRESSES_MAX = 256
"""Of one name; further ones are not allowed until others are no longer given."""
KEPT_S = 3600.0
RESOLVE_WITHIN_S = 5.0
"""A name that is not resolved in time has the addresses that it had before."""
_NAME = re.compile(
    r"(?=.{1,253}$)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])?",
    re.IGNORECASE,
)


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def has_names(allow: Collection[str]) -> bool:
    return any(map(is_name, allow))


class NameResolver:
    """Turns names into addresses, and remembers them."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, float]] = {}

    async def resolve(self, egress: Egress) -> Egress:
        """Return the same rules without names. Raises BadRangeError for what cannot be obeyed."""
        _check(egress)
        names = [text for text in egress.allow_out if is_name(text)]
        if not names:
            return egress
        await asyncio.gather(*map(self._look_up, names))
        own = {str(one.network_address) for one in network.list_own_addresses()}
        addresses = [
            address for name in names for address in self._recall(name) if address not in own
        ]
        ranges = [text for text in egress.allow_out if not is_name(text)]
        return dataclasses.replace(egress, allow_out=tuple(dict.fromkeys([*ranges, *addresses])))

    async def find(self, name: str, routes: list[network.Route], *, is_allowed: bool) -> list[str]:
        """Return the addresses that a name stands for and that routes lead to.

        One that `is_allowed` itself needs no route, and opens the host as little as elsewhere.
        """
        await self._look_up(name)
        own = {str(one.network_address) for one in network.list_own_addresses()}
        return [
            address
            for address in self._recall(name)
            if network.leads_to(routes, address) or (is_allowed and address not in own)
        ]

    async def _look_up(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(RESOLVE_WITHIN_S):
                found = await loop.getaddrinfo(
                    name, None, family=socket.AF_INET, type=socket.SOCK_STREAM
                )
        except (OSError, TimeoutError):
            return
        seen = self._seen.setdefault(name.lower(), {})
        for *_, address in found:
            if len(seen) < ADDRESSES_MAX or address[0] in seen:
                seen[str(address[0])] = time.monotonic()

    def _recall(self, name: str) -> list[str]:
        """Return the addresses that were given lately and that a name may stand for."""
        oldest = time.monotonic() - KEPT_S
        seen = self._seen.get(name.lower(), {})
        for address in [one for one, at in seen.items() if at < oldest]:
            del seen[address]
        return sorted(one for one in seen if _may_be_named(ipaddress.IPv4Address(one)))


def _may_be_named(address: ipaddress.IPv4Address) -> bool:
    return not (
        address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or address in network.INSIDE
    )


def _check(egress: Egress) -> None:
    names = [text for text in egress.allow_out if is_name(text)]
    wildcard = next((text for text in egress.allow_out if text.startswith("*")), None)
    denied = next((text for text in egress.deny_out if is_name(text)), None)
    if wildcard is not None:
        raise network.BadRangeError(
            f"{wildcard[:80]!r}: a pattern has no addresses; name each host in the allow list"
        )
    if denied is not None:
        raise network.BadRangeError(
            f"{denied[:80]!r}: a deny list takes ranges; deny 0.0.0.0/0 and allow names"
        )
    if names and "0.0.0.0/0" not in egress.deny_out:
        raise network.BadRangeError(
            f"{names[0][:80]!r} is allowed in vain without 0.0.0.0/0 in the deny list"
        )
    if len(names) > NAMES_MAX:
        raise network.BadRangeError(f"an allow list may have {NAMES_MAX} names at most")

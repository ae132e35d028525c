"""The packet filter's table for sandboxes that go out by a device of their own, as nft reads it.

Routes inside a sandbox already limit what it may reach. This table also covers addresses that are
new on the host, and blocks traffic from elsewhere.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from sandkeeper.engine.runtime.egress import network

TABLE = "sandkeeper"
PREFIX = "sk-"
"""What the host's ends of all pairs of devices begin with, of every engine on the machine."""
PROBE_PREFIX = "sk-p-"
"""The same of a trial's: its packets are counted at the last moment, and never leave."""
COUNTER = "probed"
CONNECTIONS_MAX = 4096
"""How many connections one sandbox may have open. The kernel's table is shared by the whole host:
with more, a few sandboxes could fill it and cut the host off; fewer would hinder a busy crawler."""
HOST_GROUP = 7421
"""The group of devices whose sandbox may reach an address of the host, since a caller named it."""


class Rules(NamedTuple):
    """What the table depends on: who answers names, and which devices forward only for us."""

    nameserver: str | None
    guarded: tuple[str, ...]

    @property
    def mark(self) -> str:
        """Return the name of an empty chain: a table that has it has all of these rules."""
        return f"as_{hashlib.sha256(self._render_chains().encode()).hexdigest()[:16]}"

    def render(self) -> str:
        """Return the whole table. It replaces one that is there in a single step."""
        opening = f"table inet {TABLE}\ndelete table inet {TABLE}\n"
        return (
            f"{opening}table inet {TABLE} {{\n"
            f"chain {self.mark} {{ }}\ncounter {COUNTER} {{ }}\n{self._render_chains()}}}\n"
        )

    def _render_chains(self) -> str:
        ours = f'"{PREFIX}*"'
        asked = f"ip daddr {network.NAMESERVER}"
        answer = f"dnat ip to {self.nameserver}" if self.nameserver else "drop"
        guard = ""
        if self.guarded:
            devices = ", ".join(f'"{name}"' for name in self.guarded)
            guard = f"iifname {{ {devices} }} ct state != {{ established, related }}"
            guard += " ct status ! dnat drop"
        return f"""
set connections {{ type ipv4_addr; size 65536; flags dynamic; }}
chain entry {{
    type filter hook prerouting priority raw; policy accept;
    iifname != {ours} return
    meta nfproto != ipv4 drop
    fib saddr . iif oif missing drop
    ip daddr 169.254.0.0/16 drop
    meta iifgroup != {HOST_GROUP} fib daddr type {{ local, broadcast, anycast, multicast }} drop
    ip daddr {network.INSIDE} ip daddr != {network.NAMESERVER} drop
    {asked} meta l4proto != {{ tcp, udp }} drop
    {asked} th dport != 53 drop
}}
chain bound {{
    type filter hook prerouting priority mangle; policy accept;
    iifname {ours} ct state new add @connections {{ ip saddr ct count over {CONNECTIONS_MAX} }} drop
}}
chain names {{
    type nat hook prerouting priority dstnat; policy accept;
    iifname {ours} {asked} {answer}
}}
chain passage {{
    type filter hook forward priority filter; policy accept;
    iifname {ours} oifname {ours} drop
    oifname {ours} ct state {{ established, related }} accept
    oifname {ours} drop
    iifname {ours} tcp flags syn tcp option maxseg size set rt mtu
    {guard}
}}
chain own {{
    type filter hook output priority filter; policy accept;
    oifname {ours} ct state new drop
}}
chain exit {{
    type nat hook postrouting priority srcnat; policy accept;
    iifname {ours} masquerade
}}
chain last {{
    type filter hook postrouting priority 300; policy accept;
    iifname "{PROBE_PREFIX}*" counter name {COUNTER} drop
}}
"""

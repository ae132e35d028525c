"""What a sandbox may reach, as routes; and the backends slirp4netns and pasta.

Routes need no packet filter and cannot be changed from inside, where no process has capabilities. A
blocked range gets a blackhole route; with an allow list and everything else denied there is no
default route. The longest prefix wins, which is why a denial inside an allowed range is left out:
the allow list comes first, as E2B has it. With root there is a third backend: `veth`.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import select
import signal
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

from sandkeeper.engine.runtime.linux import netlink

TAP = "tap0"
ADDRESS = "10.0.2.100"
GATEWAY = "10.0.2.2"
NAMESERVER = "10.0.2.3"
INSIDE = ipaddress.IPv4Network("10.0.2.0/24")
_LINK_LOCAL = ipaddress.IPv4Network("169.254.0.0/16")
_EVERYTHING = ipaddress.IPv4Network("0.0.0.0/0")
_READY_WAIT_S = 15.0

Route = tuple[str, str]
"""What happens with a range: ("via" | "block", CIDR)."""

AS_SET_UP: tuple[Route, ...] = (("via", "0.0.0.0/0"),)

_RTM_NEWROUTE, _RTM_DELROUTE = 24, 25
_RT_TABLE_MAIN, _RTPROT_STATIC, _RT_SCOPE_NOWHERE = 254, 4, 255
_RTN_UNICAST, _RTN_BLACKHOLE = 1, 6
_RTA_DST, _RTA_OIF, _RTA_GATEWAY = 1, 4, 5


class BadRangeError(ValueError):
    """An address range cannot be expressed here; the message explains why."""


def plan_routes(allow: tuple[str, ...], deny: tuple[str, ...]) -> list[Route]:
    """Turn allow and deny lists into routes. Raises BadRangeError if routes cannot express them."""
    allowed = [_parse_range(text) for text in allow]
    denied = [_parse_range(text) for text in deny]
    for network in allowed:
        if network.subnet_of(_LINK_LOCAL):
            raise BadRangeError(f"{network} is link-local, which is never reachable from a sandbox")
    routes: dict[ipaddress.IPv4Network, str] = {_EVERYTHING: "via", _LINK_LOCAL: "block"}
    routes.update(
        {
            address: "block"
            for address in list_own_addresses()
            if not address.subnet_of(INSIDE) and not address.is_loopback
        }
    )
    routes.update(
        {
            network: "block"
            for network in denied
            if not any(network.subnet_of(one) for one in allowed if one != network)
        }
    )
    if _EVERYTHING in denied and not allowed:
        routes[ipaddress.IPv4Network(f"{NAMESERVER}/32")] = "block"
    routes.update({network: "via" for network in allowed if network != _EVERYTHING})
    if _EVERYTHING in allowed:
        routes[_EVERYTHING] = "via"
    elif routes[_EVERYTHING] == "block":
        del routes[_EVERYTHING]
    return [(kind, str(network)) for network, kind in routes.items()]


def leads_to(routes: Iterable[Route], address: str) -> bool:
    """Return whether routes lead a sandbox to an address outside; the longest prefix counts."""
    wanted = ipaddress.IPv4Address(address)
    ranges = ((ipaddress.IPv4Network(cidr), kind) for kind, cidr in routes)
    found = max(
        ((one.prefixlen, kind) for one, kind in ranges if wanted in one), default=(0, "block")
    )
    return found[1] == "via"


def start_helper(
    program: str, pid: int, first: int, user_namespace: int | None, *, is_root: bool
) -> int:
    """Connect a sandbox's network namespace to the outside; return the helper's process id.

    `first` is a descriptor of the sandbox's first process.
    """
    ready, written = os.pipe()
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    passed = [written, first, network, *([] if user_namespace is None else [user_namespace])]
    if Path(program).name == "pasta":
        line = _pasta_argv(network, user_namespace, written, is_root=is_root)
    else:
        line = _slirp_argv(pid, first, user_namespace, written, is_root=is_root)
    for fd in passed:
        os.set_inheritable(fd, True)
    # Not by `subprocess`: loaded for all, it would double what each fork of the spawner costs.
    helper = os.posix_spawn(
        program,
        [program, *line],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)],
        setsid=True,
        setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
    )
    os.close(written)
    os.close(network)
    try:
        readable, _w, _x = select.select([ready], [], [], _READY_WAIT_S)
        # One writes a mark when the network is up, the other its process id.
        if not readable or not os.read(ready, 16):
            os.kill(helper, signal.SIGKILL)
            os.waitpid(helper, 0)
            raise OSError(f"{program} did not bring the network up")
    finally:
        os.close(ready)
    # Not waited for: this process ends now, and the spawner reaps its children.
    return helper


def _slirp_argv(
    pid: int, first: int, user_namespace: int | None, ready: int, *, is_root: bool
) -> list[str]:
    """Return the helper's command line.

    The first process's descriptor hangs up when it ends (kernel 6.9 and newer), and the helper ends
    with it, even if the engine and the spawner are dead.
    """
    line = ["--configure", "--mtu=65520", "--disable-host-loopback"]
    line += [f"--ready-fd={ready}", f"--exit-fd={first}"]
    if is_root:
        line += ["--enable-sandbox", "--enable-seccomp"]
    if user_namespace is not None:
        line.append(f"--userns-path=/proc/self/fd/{user_namespace}")
    return [*line, str(pid), TAP]


def _pasta_argv(
    network: int, user_namespace: int | None, ready: int, *, is_root: bool
) -> list[str]:
    """Return the same addresses as the other's, no port opened in either direction, no IPv6.

    The namespaces go by descriptor: it has given up the right to look them up by then. It isolates
    itself and drops its capabilities also when it stays root.
    """
    line = ["--foreground", "--config-net", "--ipv4-only", "--no-map-gw", "--ns-ifname", TAP]
    line += ["--address", ADDRESS, "--netmask", str(INSIDE.prefixlen), "--gateway", GATEWAY]
    line += ["--dns-forward", NAMESERVER, "--mtu", "65520"]
    line += ["--no-dhcp", "--no-dhcpv6", "--no-ndp", "--no-ra"]
    for way in ("--tcp-ports", "--udp-ports", "--tcp-ns", "--udp-ns"):
        line += [way, "none"]
    if is_root:
        line += ["--runas", "0"]
    if user_namespace is not None:
        line += ["--userns", f"/proc/self/fd/{user_namespace}"]
    return [*line, "--netns", f"/proc/self/fd/{network}", "--pid", f"/proc/self/fd/{ready}"]


def apply_routes(present: list[Route], wanted: list[Route]) -> None:
    """Turn one set of routes into another, in the network namespace the caller is in.

    New blocks come before old ways go and new ways open, so nothing is reachable in between that
    neither set allows.
    """
    added = [route for route in wanted if route not in present]
    gone = [route for route in present if route not in wanted]
    with netlink.open_routes() as sock:
        replaced = {cidr for _kind, cidr in added}
        for kind, cidr in sorted(added):
            flags = netlink.NLM_F_CREATE | netlink.NLM_F_REPLACE
            _change_route(sock, _RTM_NEWROUTE, (kind, cidr), flags)
        for kind, cidr in gone:
            if cidr not in replaced:
                with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                    _change_route(sock, _RTM_DELROUTE, (kind, cidr))


def _change_route(sock: socket.socket, message: int, route: Route, flags: int = 0) -> None:
    kind, cidr = route
    address, _slash, length = cidr.partition("/")
    body = struct.pack(
        "BBBBBBBBI",
        socket.AF_INET,
        int(length),
        0,
        0,
        _RT_TABLE_MAIN,
        _RTPROT_STATIC if message == _RTM_NEWROUTE else 0,
        0 if message == _RTM_NEWROUTE else _RT_SCOPE_NOWHERE,
        _RTN_UNICAST if kind == "via" else _RTN_BLACKHOLE,
        0,
    )
    if length != "0":
        body += netlink.attribute(_RTA_DST, socket.inet_aton(address))
    if kind == "via":
        body += netlink.attribute(_RTA_GATEWAY, socket.inet_aton(GATEWAY))
        body += netlink.attribute(_RTA_OIF, struct.pack("i", socket.if_nametoindex(TAP)))
    try:
        netlink.ask(sock, message, body, netlink.NLM_F_ACK | flags)
    except OSError as error:
        raise type(error)(error.errno, f"route {kind} {cidr}: {error.strerror}") from None


def _parse_range(text: str) -> ipaddress.IPv4Network:
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise BadRangeError(f"{text!r} is not an IP address, a CIDR range or a host name") from None
    if not isinstance(network, ipaddress.IPv4Network):
        raise BadRangeError(f"{text!r} is IPv6, which sandboxes do not have")
    return network


def list_own_addresses() -> list[ipaddress.IPv4Network]:
    """Return the host's own addresses; sandboxes must not reach what listens there."""
    with netlink.open_routes() as sock:
        return [ipaddress.IPv4Network(one) for _device, one in netlink.list_addresses(sock)]

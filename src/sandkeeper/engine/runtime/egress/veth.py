"""The `veth` backend: a network device per sandbox, for an engine that runs as root.

A pair of devices leads from the sandbox to the host, which sends its packets on under the host's
own address. Inside, it looks as with the other backends: the same routes, gateway and name server.
No list of pairs is kept, so none can be left behind: the kernel removes a pair, its address and its
route together with the sandbox's network.

    sandbox  tap0  ──────  sk-… (no address; 198.18.x.y/32 is routed to it)  host  ──▶ outside

The rules for every sandbox of every engine on the machine are one table of the packet filter,
replaced atomically whenever it differs from what it should be. It names only our devices, by their
prefix, so no rule of the host's own is touched. Where the host does not forward packets, forwarding
is turned on for the devices that have an address, and the table blocks what was not forwarded
before. `release` undoes both when no sandbox is left.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from sandkeeper.engine.runtime.egress import network
from sandkeeper.engine.runtime.egress.veth_rules import COUNTER, HOST_GROUP, PREFIX, TABLE, Rules
from sandkeeper.engine.runtime.linux import netlink, syscalls

NAME = "veth"
"""The name of this backend; the others are named by the path of their program."""
LOCK = Path("/run/sandkeeper-veth")
"""The lock for creating pairs and changing the table; lists the devices set to forward."""
_RANGES = (("198.18.0.0", 1 << 17), ("100.127.0.0", 1 << 16), ("10.217.0.0", 1 << 16))
"""The range of the sandboxes' addresses, and how many there are; the first is never assigned."""
_TRIES_PER_RANGE = 16
# Both ends have the same address and need no neighbour lookup to reach each other.
_HARDWARE = bytes.fromhex("02736b000001")
# A user's path often lacks these.
_NFT_PLACES = ("/usr/sbin", "/sbin", "/usr/local/sbin")
_NFT_WAIT_S = 20.0
_SETTINGS = "/proc/sys/net"

_RTM_NEWLINK, _RTM_DELLINK, _RTM_NEWADDR, _RTM_NEWROUTE, _RTM_GETROUTE = 16, 17, 20, 24, 26
_IFF_UP, _IFF_NOARP = 0x1, 0x80
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_LINKINFO, _IFLA_GROUP, _IFLA_NET_NS_FD = 1, 3, 18, 27, 28
_IFLA_INFO_KIND, _IFLA_INFO_DATA, _VETH_INFO_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_DST, _RTA_OIF = 1, 4
_RT_TABLE_MAIN, _RTPROT_STATIC, _RT_SCOPE_LINK, _RTN_UNICAST = 254, 4, 253, 1
_RTM_F_FIB_MATCH = 0x2000
_CREATE = netlink.NLM_F_ACK | netlink.NLM_F_CREATE | netlink.NLM_F_EXCL
_NFT_GETCHAIN = 10 << 8 | 4
_NFPROTO_INET = 1
_NFTA_CHAIN_TABLE, _NFTA_CHAIN_NAME = 1, 3


def find_nft() -> str | None:
    """Return the program that writes the packet filter's tables."""
    places = (f"{folder}/nft" for folder in (*os.get_exec_path(), *_NFT_PLACES))
    return next((path for path in places if os.access(path, os.X_OK)), None)


def connect(inside: int, routes: list[network.Route], *, prefix: str = PREFIX) -> str:
    """Connect a network namespace to the outside, limited to the routes; return the device's name.

    A connection that was there, whole or half, is replaced. Raises OSError and leaves nothing.
    """
    device = prefix + os.urandom(5).hex()
    with netlink.open_routes() as host, _holding_table(host) as own:
        try:
            _make_pair(host, device, inside)
        except FileExistsError:
            with _being_in(inside):
                disconnect(network.TAP)
            _make_pair(host, device, inside)
        try:
            _write(f"ipv6/conf/{device}/disable_ipv6", "1")
            _write(f"ipv4/conf/{device}/forwarding", "1")
            _set_link(host, device, _IFF_UP, _choose_group(own, routes))
            address = _claim_address(host, device)
            with _being_in(inside):
                _set_up(address)
                network.apply_routes([], routes)
        except BaseException:
            _delete(host, device)
            raise
    return device


def set_routes(
    device: str, inside: int, present: list[network.Route], wanted: list[network.Route]
) -> None:
    """Turn one set of routes into another."""
    with netlink.open_routes() as host, _holding_table(host) as own:
        with _being_in(inside):
            network.apply_routes(present, wanted)
        _set_link(host, device, 0, _choose_group(own, wanted))


def is_connected(device: str) -> bool:
    try:
        socket.if_nametoindex(device)
    except OSError:
        return False
    return True


def disconnect(device: str) -> None:
    """Remove a pair with everything that belongs to it; a missing one is fine."""
    with netlink.open_routes() as host:
        _delete(host, device)


def guard() -> None:
    """Restore the table and forwarding if something, such as a firewall's restart, removed them.

    Only while a sandbox needs them; otherwise nothing would undo them later.
    """
    if any(name.startswith(PREFIX) for _index, name in socket.if_nameindex()):
        with netlink.open_routes() as host, _holding_table(host):
            pass


def release() -> None:
    """Undo the changes to the host, unless a sandbox of any engine still needs them.

    Never raises: what cannot be undone now is left to the next engine that ends.
    """
    with contextlib.suppress(OSError):
        lock = os.open(LOCK, os.O_RDWR | os.O_CLOEXEC)
        try:
            # Refused while another process connects a sandbox.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _release(lock)
        finally:
            os.close(lock)


def _release(lock: int) -> None:
    if any(name.startswith(PREFIX) for _index, name in socket.if_nameindex()):
        return
    if not _forwards("ipv4/ip_forward"):
        for device in _read_forwarding(lock):
            _write(f"ipv4/conf/{device}/forwarding", "0")
    os.ftruncate(lock, 0)
    _run_nft(f"table inet {TABLE}\ndelete table inet {TABLE}\n")


def count_probed() -> int:
    """Return how many probe packets got through."""
    words = _run_nft(f"list counter inet {TABLE} {COUNTER}\n").split()
    return int(words[words.index("packets") + 1])


# The host's part


@contextlib.contextmanager
def _holding_table(host: socket.socket) -> Iterator[list[netlink.Address]]:
    """Set up the table and forwarding, and keep them so within the block.

    Return the host's own addresses.
    """
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        own = netlink.list_addresses(host)
        fcntl.flock(lock, fcntl.LOCK_SH)
        if not _is_ready(*_plan(own, lock)):
            fcntl.flock(lock, fcntl.LOCK_EX)
            _make_ready(*_plan(own, lock), lock)
        yield own
    finally:
        os.close(lock)


def _is_ready(rules: Rules, lacking: list[str]) -> bool:
    return not lacking and _is_in_force(rules)


def _make_ready(rules: Rules, lacking: list[str], lock: int) -> None:
    if _is_ready(rules, lacking):
        # Another process did it while this one waited for the lock.
        return
    # The rules come first: what they guard against begins with forwarding.
    _run_nft(rules.render())
    guarded = "\n".join(rules.guarded).encode()
    os.pwrite(lock, guarded, 0)
    os.ftruncate(lock, len(guarded))
    for device in lacking:
        _write(f"ipv4/conf/{device}/forwarding", "1")


def _plan(own: list[netlink.Address], lock: int) -> tuple[Rules, list[str]]:
    """Return the table as it should be now, and the devices that must be set to forward."""
    if _forwards("ipv4/ip_forward"):
        return Rules(find_nameserver(), ()), []
    devices = {device for device, _address in own} - {"lo"}
    lacking = [name for name in devices if not _forwards(f"ipv4/conf/{name}/forwarding")]
    guarded = {name for name in _read_forwarding(lock) if name in devices} | set(lacking)
    return Rules(find_nameserver(), tuple(sorted(guarded))), lacking


def find_nameserver() -> str | None:
    """Return a name server that can be asked from outside this machine's loopback."""
    # Where a resolver of systemd listens on loopback, it names the real ones in the second file.
    for path in ("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"):
        with contextlib.suppress(FileNotFoundError):
            for line in _read(path).splitlines():
                words = line.split()
                if len(words) > 1 and words[0] == "nameserver" and not words[1].startswith("127."):
                    with contextlib.suppress(OSError):
                        socket.inet_pton(socket.AF_INET, words[1])
                        return words[1]
    return None


def _is_in_force(rules: Rules) -> bool:
    """Return whether the table is there with exactly these rules."""
    names = netlink.attribute(_NFTA_CHAIN_TABLE, TABLE.encode() + b"\0")
    names += netlink.attribute(_NFTA_CHAIN_NAME, rules.mark.encode() + b"\0")
    with netlink.open_filter() as sock:
        try:
            netlink.ask(sock, _NFT_GETCHAIN, struct.pack("BBH", _NFPROTO_INET, 0, 0) + names)
        except FileNotFoundError:
            return False
    return True


def _run_nft(text: str) -> str:
    program = find_nft()
    if program is None:
        raise FileNotFoundError(errno.ENOENT, "nft is not installed")
    # Loaded for all, its hooks would double what each fork of the spawner costs.
    import subprocess  # noqa: PLC0415

    line = [program, "-f", "-"]
    done = subprocess.run(
        line, input=text, capture_output=True, text=True, check=False, timeout=_NFT_WAIT_S
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise OSError(errno.EINVAL, f"nft: {said[0] if said else done.returncode}")
    return done.stdout


def _read_forwarding(lock: int) -> list[str]:
    return os.pread(lock, 65_536, 0).decode().split()


def _forwards(name: str) -> bool:
    return _read(f"{_SETTINGS}/{name}") != "0\n"


def _read(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 65_536).decode(errors="replace")
    finally:
        os.close(fd)


def _write(name: str, value: str) -> None:
    # A kernel without IPv6 has nothing to turn off, and a device may go at any moment.
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(f"{_SETTINGS}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)


# A pair of devices


@contextlib.contextmanager
def _being_in(inside: int) -> Iterator[None]:
    """Let this thread be in another network namespace within the block."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        syscalls.setns(inside, syscalls.CLONE_NEWNET)
        try:
            yield
        finally:
            syscalls.setns(own, syscalls.CLONE_NEWNET)
    finally:
        os.close(own)


def _make_pair(host: socket.socket, device: str, inside: int) -> None:
    hardware = netlink.attribute(_IFLA_ADDRESS, _HARDWARE)
    peer = _link(_IFF_NOARP) + hardware + _name(network.TAP)
    peer += netlink.attribute(_IFLA_NET_NS_FD, struct.pack("i", inside))
    kind = netlink.attribute(_IFLA_INFO_KIND, b"veth")
    kind += netlink.attribute(_IFLA_INFO_DATA, netlink.attribute(_VETH_INFO_PEER, peer))
    body = _link(_IFF_NOARP) + hardware + _name(device)
    netlink.ask(host, _RTM_NEWLINK, body + netlink.attribute(_IFLA_LINKINFO, kind), _CREATE)


def _claim_address(host: socket.socket, device: str) -> bytes:
    """Route a free address to the device; if two processes pick the same, the kernel refuses one.

    An address counts as taken when anything but the default route leads to it. It is a random one,
    so that late answers to a sandbox that has ended do not come to the next.
    """
    index = struct.pack("i", socket.if_nametoindex(device))
    for first, length in _RANGES:
        for _ in range(_TRIES_PER_RANGE):
            chosen = int.from_bytes(os.urandom(4)) % length
            address = (int.from_bytes(socket.inet_aton(first)) + chosen).to_bytes(4)
            if _is_taken(host, address):
                continue
            body = _route(32) + netlink.attribute(_RTA_DST, address)
            with contextlib.suppress(FileExistsError):
                netlink.ask(host, _RTM_NEWROUTE, body + netlink.attribute(_RTA_OIF, index), _CREATE)
                return address
    raise OSError(errno.EADDRNOTAVAIL, "no address is free for the sandbox's network")


def _is_taken(host: socket.socket, address: bytes) -> bool:
    body = struct.pack("BBBBBBBBI", socket.AF_INET, 32, 0, 0, 0, 0, 0, 0, _RTM_F_FIB_MATCH)
    try:
        (found,) = netlink.ask(host, _RTM_GETROUTE, body + netlink.attribute(_RTA_DST, address))
    except OSError as error:
        # Nothing at all leads there; a route that forbids the range is another error.
        return error.errno != errno.ENETUNREACH
    return found[1] != 0


def _set_up(address: bytes) -> None:
    """Set the address and gateway route of the inner end, from inside its network namespace."""
    index = socket.if_nametoindex(network.TAP)
    _write(f"ipv6/conf/{network.TAP}/disable_ipv6", "1")
    with netlink.open_routes() as sandbox:
        netlink.ask(sandbox, _RTM_NEWLINK, _link(_IFF_UP) + _name(network.TAP), netlink.NLM_F_ACK)
        body = struct.pack("BBBBi", socket.AF_INET, 32, 0, 0, index)
        body += netlink.attribute(_IFA_LOCAL, address)
        body += netlink.attribute(_IFA_ADDRESS, address)
        netlink.ask(sandbox, _RTM_NEWADDR, body, _CREATE)
        body = _route(network.INSIDE.prefixlen)
        body += netlink.attribute(_RTA_DST, network.INSIDE.network_address.packed)
        body += netlink.attribute(_RTA_OIF, struct.pack("i", index))
        netlink.ask(sandbox, _RTM_NEWROUTE, body, _CREATE)


def _choose_group(own: list[netlink.Address], routes: list[network.Route]) -> int:
    """Let a sandbox's packets come to the host itself only where a route names its address."""
    ranges = {f"{address}/32" for _device, address in own}
    return HOST_GROUP if any(kind == "via" and cidr in ranges for kind, cidr in routes) else 0


def _set_link(host: socket.socket, device: str, flags: int, group: int) -> None:
    body = _link(flags) + _name(device) + netlink.attribute(_IFLA_GROUP, struct.pack("I", group))
    netlink.ask(host, _RTM_NEWLINK, body, netlink.NLM_F_ACK)


def _delete(sock: socket.socket, device: str) -> None:
    try:
        netlink.ask(sock, _RTM_DELLINK, _link() + _name(device), netlink.NLM_F_ACK)
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise


def _link(flags: int = 0) -> bytes:
    """Return the fixed part of a message about a device, with the flags to be set."""
    return struct.pack("BxHiII", socket.AF_UNSPEC, 0, 0, flags, flags)


def _route(length: int) -> bytes:
    """Return the fixed part of a route that leads straight to a device."""
    kind = (_RT_TABLE_MAIN, _RTPROT_STATIC, _RT_SCOPE_LINK, _RTN_UNICAST)
    return struct.pack("BBBBBBBBI", socket.AF_INET, length, 0, 0, *kind, 0)


def _name(device: str) -> bytes:
    return netlink.attribute(_IFLA_IFNAME, device.encode() + b"\0")

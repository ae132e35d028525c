"""The network backends this machine has, the best first.

`veth` connects a sandbox fastest and needs no process per sandbox, but requires root. slirp4netns
and pasta work for every user, with one process per sandbox.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import Any

from sandkeeper.engine.runtime.egress import veth, veth_rules
from sandkeeper.engine.runtime.linux import process_records, syscalls

# Reserved for documentation, so no host has it. The packet is dropped before it leaves.
_NOWHERE = ("203.0.113.1", 9)
_PROBE_WAIT_S = 2.0


def find_all() -> list[str]:
    """Return every available backend: `veth.NAME`, or the path of a program."""
    return [*([veth.NAME] if find_fault_of_veth() is None else []), *find_programs()]


def find_best() -> str | None:
    """Return the best of them, or None: then sandboxes have loopback only."""
    return next(iter(find_all()), None)


def find_programs() -> list[str]:
    """Return the paths of the programs that can connect a sandbox, with or without root."""
    if not Path("/dev/net/tun").exists():
        return []
    places = f"{os.environ.get('PATH', '')}:/usr/bin:/usr/local/bin"
    found = (shutil.which(name, path=places) for name in ("slirp4netns", "pasta"))
    return [path for path in found if path is not None]


def find_fault_of_veth() -> str | None:
    """Return why the veth backend does not work; None if a probe packet gets through."""
    if os.geteuid() != 0:
        return "it needs root"
    if veth.find_nft() is None:
        return "nft is not installed (package nftables)"
    if veth.find_nameserver() is None and "nameserver" in _read_resolver():
        return "the machine's name server can be asked on loopback only"
    faults: list[str | None] = []
    # A thread may be in another network than its process; it takes that along when it ends.
    trial = threading.Thread(target=lambda: faults.append(_try()))
    trial.start()
    trial.join()
    if faults[0] is not None:
        veth.release()
    return faults[0]


def _read_resolver() -> str:
    try:
        return Path("/etc/resolv.conf").read_text(errors="replace")
    except OSError:
        return ""


def is_connected(record: dict[str, Any]) -> bool:
    """Return whether a sandbox is still connected."""
    device, helper = record.get("device"), record["helper"]
    if device:
        return veth.is_connected(device)
    return helper is not None and process_records.is_same(**helper)


def disconnect(record: dict[str, Any]) -> None:
    """Disconnect a sandbox, and update its record."""
    if record.get("device"):
        veth.disconnect(record["device"])
    if record["helper"]:
        process_records.kill_known(record["helper"])
    record["device"] = record["helper"] = None


def _try() -> str | None:
    """Send one packet from a network made for it; leaves the calling thread where it was."""
    try:
        with contextlib.ExitStack() as stack:
            own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, own)
            syscalls.unshare(syscalls.CLONE_NEWNET)
            stack.callback(syscalls.setns, own, syscalls.CLONE_NEWNET)
            inside = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, inside)
            sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            syscalls.setns(own, syscalls.CLONE_NEWNET)
            device = veth.connect(inside, [("via", "0.0.0.0/0")], prefix=veth_rules.PROBE_PREFIX)
            stack.callback(veth.disconnect, device)
            return None if _gets_through(sender) else "the host's firewall drops its packets"
    except OSError as error:
        return error.strerror or str(error)


def _gets_through(sender: socket.socket) -> bool:
    """Return whether a packet comes to the last moment before it leaves the machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        if own.connect_ex(_NOWHERE) != 0:
            # The machine itself is offline now, which proves nothing about the backend.
            return True
    before = veth.count_probed()
    sender.sendto(b"", _NOWHERE)
    deadline = time.monotonic() + _PROBE_WAIT_S
    while time.monotonic() < deadline:
        if veth.count_probed() > before:
            return True
    return False

"""The protocol of engine and spawner: one JSON record per packet, with descriptors attached.

The socket keeps packets apart (SOCK_SEQPACKET). A record too big for one packet travels in an
anonymous file whose descriptor comes last, so there is no bound but memory.
"""

from __future__ import annotations

import array
import json
import os
import socket
from typing import Any

Record = dict[str, Any]

_PACKET_BYTES_MAX = 64 * 1024
_DESCRIPTORS_MAX = 32
_write = json.JSONEncoder(separators=(",", ":")).encode
_ANCILLARY_BYTES = socket.CMSG_SPACE(_DESCRIPTORS_MAX * 4)


class ConnectionClosedError(ConnectionError):
    """The other side closed the connection."""


def send(sock: socket.socket, record: Record, descriptors: tuple[int, ...] = ()) -> None:
    """Send one record. The descriptors stay the caller's. Raises BlockingIOError when full."""
    payload = _write(record).encode()
    if len(payload) <= _PACKET_BYTES_MAX:
        _send_packet(sock, b"R" + payload, descriptors)
        return
    spill = os.memfd_create("record", os.MFD_CLOEXEC)
    try:
        with open(spill, "wb", closefd=False) as file:
            file.write(payload)
        _send_packet(sock, b"F", (*descriptors, spill))
    finally:
        os.close(spill)


def receive(sock: socket.socket) -> tuple[Record, list[int]]:
    """Receive one record and the descriptors beside it. Raises ConnectionClosedError at the end."""
    packet, ancillary, _flags, _address = sock.recvmsg(
        _PACKET_BYTES_MAX + 1, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
    )
    descriptors: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
            descriptors.extend(numbers)
    if not packet:
        raise ConnectionClosedError("the other side closed the connection")
    payload = packet[1:]
    if packet[:1] == b"F":
        spill = descriptors.pop()
        with open(spill, "rb") as file:  # noqa: PTH123 -- a descriptor.
            file.seek(0)
            payload = file.read()
    record: Record = json.loads(payload)
    return record, descriptors


def _send_packet(sock: socket.socket, packet: bytes, descriptors: tuple[int, ...]) -> None:
    ancillary = []
    if descriptors:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    sock.sendmsg([packet], ancillary)

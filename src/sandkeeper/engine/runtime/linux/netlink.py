"""Asking the kernel about network devices, addresses and routes: one request, its answers.

A socket keeps the network namespace it was opened in, so a process may hold two and act on both.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

NLM_F_ACK = 0x4
NLM_F_EXCL = 0x200
NLM_F_REPLACE = 0x100
NLM_F_CREATE = 0x400
_NLM_F_REQUEST = 0x1
_NLM_F_MULTI = 0x2
_NLM_F_DUMP = 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_RTM_GETADDR = 22
_IFA_LOCAL = 2
_NETLINK_NETFILTER = 12
Address = tuple[str, str]
"""A device's name and an IPv4 address of it."""
_HEADER = struct.Struct("IHHII")
_ANSWER_BYTES_MAX = 32_768


def open_routes() -> socket.socket:
    """Return a socket to the devices, addresses and routes of the current network namespace."""
    return _open(socket.NETLINK_ROUTE)


def open_filter() -> socket.socket:
    """Return a socket to the packet filter of the network namespace the caller is in."""
    return _open(_NETLINK_NETFILTER)


def ask(sock: socket.socket, kind: int, body: bytes, flags: int = 0) -> list[bytes]:
    """Send one request and give the bodies of its answers; raises the kernel's OSError.

    A request that changes something is sent with NLM_F_ACK and has no answers.
    """
    sock.send(_HEADER.pack(16 + len(body), kind, _NLM_F_REQUEST | flags, 1, 0) + body)
    answers: list[bytes] = []
    while True:
        data = sock.recv(_ANSWER_BYTES_MAX)
        at = 0
        while at < len(data):
            length, answer, answer_flags, _sequence, _pid = _HEADER.unpack_from(data, at)
            if answer == _NLMSG_ERROR:
                (number,) = struct.unpack_from("i", data, at + 16)
                if number:
                    raise OSError(-number, os.strerror(-number))
                return answers
            if answer == _NLMSG_DONE:
                return answers
            answers.append(data[at + 16 : at + length])
            if not answer_flags & _NLM_F_MULTI:
                return answers
            at += length + 3 & ~3


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def read_attributes(body: bytes, start: int) -> dict[int, bytes]:
    """Return the attributes of an answer by their kind; `start` is where its fixed part ends."""
    found = {}
    while start + 4 <= len(body):
        length, kind = struct.unpack_from("HH", body, start)
        found[kind] = body[start + 4 : start + length]
        start += max(length, 4) + 3 & ~3
    return found


def list_addresses(sock: socket.socket) -> list[Address]:
    """Return every IPv4 address of the machine with its device, loopback included."""
    answers = ask(sock, _RTM_GETADDR, struct.pack("BBBBi", socket.AF_INET, 0, 0, 0, 0), _NLM_F_DUMP)
    found = []
    for body in answers:
        address = read_attributes(body, 8).get(_IFA_LOCAL)
        if address is not None:
            (index,) = struct.unpack_from("i", body, 4)
            # A device may go at any moment, and its addresses with it.
            with contextlib.suppress(OSError):
                found.append((socket.if_indextoname(index), socket.inet_ntoa(address)))
    return found


def _open(protocol: int) -> socket.socket:
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    sock.bind((0, 0))
    return sock

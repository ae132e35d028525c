"""The format of an encrypted pack: chunks that open one by one, and only in their place.

A pack is a header and chunks of 64 KiB, the last one shorter. The header names the data key and has
a random salt. The key of the pack is derived from the data key, the salt and the pack's name, so
chunks of one pack do not open in another. The nonce of a chunk is its number and whether it is the
last one, so chunks cannot change places, and a pack that was cut off has no last one.
"""

from __future__ import annotations

import os
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sandkeeper.encryption.keyring import Keyring

MAGIC: Final = b"SKPACK1\n"
KEY_ID_BYTES: Final = 8
SALT_BYTES: Final = 32
HEADER_BYTES: Final = len(MAGIC) + KEY_ID_BYTES + SALT_BYTES
CHUNK_BYTES: Final = 64 * 1024
"""Larger ones make the read of a small file cost more; smaller ones take more room and calls."""
TAG_BYTES: Final = 16
STORED_BYTES: Final = CHUNK_BYTES + TAG_BYTES


class PackDamagedError(Exception):
    """A pack was changed, cut off or exchanged."""


class PackCipher:
    """The chunks of one pack."""

    def __init__(self, cipher: AESGCM) -> None:
        self._cipher = cipher

    def seal(self, number: int, data: bytes | memoryview, *, is_last: bool) -> bytes:
        """Return a chunk as it is stored."""
        return self._cipher.encrypt(_make_nonce(number, is_last), data, None)

    def seal_into(self, number: int, data: bytes | memoryview, place: memoryview) -> None:
        """Write a chunk that is not the last one as it is stored."""
        self._cipher.encrypt_into(_make_nonce(number, is_last=False), data, None, place)

    def open(self, number: int, stored: bytes | memoryview, *, is_last: bool) -> bytes:
        """Return the content of a stored chunk; raise PackDamagedError."""
        try:
            return self._cipher.decrypt(_make_nonce(number, is_last), stored, None)
        except (InvalidTag, ValueError):
            raise PackDamagedError(f"chunk {number} does not decrypt") from None

    def open_run(self, first: int, stored: bytes, *, last: int) -> bytes:
        """Return the contents of chunks that follow each other; `last` is the pack's last one."""
        view = memoryview(stored)
        return b"".join(
            self.open(number, view[at : at + STORED_BYTES], is_last=number == last)
            for number, at in enumerate(range(0, len(stored), STORED_BYTES), start=first)
        )


class PackSealer:
    """Encrypts a pack of any size as its content arrives. Holds one chunk at most."""

    def __init__(self, keyring: Keyring, name: str) -> None:
        self.key_id = keyring.current_id
        salt = os.urandom(SALT_BYTES)
        self._cipher = _derive(keyring, self.key_id, salt, name)
        self._header = MAGIC + self.key_id.encode() + salt
        self._waiting = b""
        self._number = 0

    def feed(self, data: bytes) -> bytes | bytearray:
        """Return what can be stored now."""
        # The last chunk is known at the end only, so one that is full waits for more.
        count = max(0, len(self._waiting) + len(data) - 1) // CHUNK_BYTES
        if not count:
            self._waiting += data
            return b""
        # The first chunk begins with what waited; the others are encrypted where they lie.
        at = CHUNK_BYTES - len(self._waiting)
        first = self._waiting + data[:at]
        end = at + (count - 1) * CHUNK_BYTES
        view = memoryview(data)
        header = self._take_header()
        stored = bytearray(len(header) + count * STORED_BYTES)
        stored[: len(header)] = header
        places = memoryview(stored)[len(header) :]
        self._cipher.seal_into(self._number, first, places[:STORED_BYTES])
        for number in range(1, count):
            begin = at + (number - 1) * CHUNK_BYTES
            place = places[number * STORED_BYTES : (number + 1) * STORED_BYTES]
            self._cipher.seal_into(self._number + number, view[begin : begin + CHUNK_BYTES], place)
        self._number += count
        self._waiting = data[end:]
        return stored

    def finish(self) -> bytes:
        """Return the rest."""
        last = self._cipher.seal(self._number, self._waiting, is_last=True)
        return self._take_header() + last

    def _take_header(self) -> bytes:
        header, self._header = self._header, b""
        return header


def seal_pack(keyring: Keyring, name: str, data: bytes) -> bytes:
    """Return a whole pack as it is stored."""
    sealer = PackSealer(keyring, name)
    return b"".join((sealer.feed(data), sealer.finish()))


def open_header(keyring: Keyring, name: str, header: bytes) -> PackCipher:
    """Return the cipher of a stored pack; raise PackDamagedError if it is none of ours."""
    if len(header) != HEADER_BYTES or not header.startswith(MAGIC):
        raise PackDamagedError("the header is not one of ours")
    key_id, salt = header[len(MAGIC) : -SALT_BYTES], header[-SALT_BYTES:]
    return _derive(keyring, key_id.decode("ascii", "replace"), salt, name)


def find_last_chunk(stored_bytes: int) -> int:
    """Return the number of the last chunk of a pack of this stored size."""
    body = stored_bytes - HEADER_BYTES
    if body < TAG_BYTES:
        raise PackDamagedError("the pack was cut off")
    return (body - 1) // STORED_BYTES


def locate_chunks(first: int, count: int, stored_bytes: int) -> tuple[int, int]:
    """Return where stored chunks begin, and how many bytes they have."""
    start = HEADER_BYTES + first * STORED_BYTES
    return start, min(count * STORED_BYTES, stored_bytes - start)


def _derive(keyring: Keyring, key_id: str, salt: bytes, name: str) -> PackCipher:
    use = b"sandkeeper pack 1:" + name.encode()
    return PackCipher(keyring.derive(key_id, salt=salt, use=use))


def _make_nonce(number: int, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([is_last])

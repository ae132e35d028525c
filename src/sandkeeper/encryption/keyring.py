"""The data keys of one process, and the encryption of short values with them.

A sealed value is ``sk1.<data key>.<salt, nonce, ciphertext and tag in base64>``. Each value has a
key of its own, derived from the data key and a random salt, so the number of values that one data
key may encrypt has no practical limit. The context is authenticated: a value that was copied to
another row or column does not open there.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sandkeeper.encryption.errors import DataKeyMissingError, SecretDamagedError

KEY_BYTES: Final = 32
SALT_BYTES: Final = 16
NONCE_BYTES: Final = 12
PREFIX: Final = "sk1."
_VALUE_USE: Final = b"sandkeeper value 1"


class Keyring:
    """Data keys by id; the current one encrypts, and all of them decrypt.

    It is empty until the master key has opened the database's data keys.
    """

    def __init__(self) -> None:
        self._keys: Mapping[str, bytes] = {}
        self._current: str | None = None

    @property
    def ids(self) -> frozenset[str]:
        """Return the ids of the keys that can decrypt."""
        return frozenset(self._keys)

    @property
    def current_id(self) -> str:
        """Return the id of the key that encrypts; raise DataKeyMissingError without one."""
        if self._current is None:
            raise DataKeyMissingError("No data key is open in this process.")
        return self._current

    def hold(self, keys: Mapping[str, bytes], *, current: str) -> None:
        """Add keys, and make one of those that are known the current one."""
        known = {**self._keys, **keys}
        if current not in known or any(len(key) != KEY_BYTES for key in known.values()):
            raise ValueError("The current key must be one of the keys, each of 32 bytes.")
        self._keys, self._current = known, current

    def derive(self, key_id: str, *, salt: bytes, use: bytes) -> AESGCM:
        """Return the cipher of one value or pack; raise DataKeyMissingError for an unknown key."""
        key = self._keys.get(key_id)
        if key is None:
            raise DataKeyMissingError(key_id=key_id)
        return AESGCM(HKDF(SHA256(), KEY_BYTES, salt, use).derive(key))

    def seal(self, text: str, *, context: str) -> str:
        """Encrypt a text for one place in the database, which the context names."""
        key_id = self.current_id
        salt, nonce = os.urandom(SALT_BYTES), os.urandom(NONCE_BYTES)
        cipher = self.derive(key_id, salt=salt, use=_VALUE_USE)
        body = salt + nonce + cipher.encrypt(nonce, text.encode(), context.encode())
        return f"{render_prefix(key_id)}{base64.urlsafe_b64encode(body).decode()}"

    def open(self, sealed: str, *, context: str) -> str:
        """Decrypt what `seal` returned for the same place; raise SecretDamagedError otherwise."""
        if not sealed.startswith(PREFIX):
            raise SecretDamagedError(place=context)
        key_id, _, encoded = sealed.removeprefix(PREFIX).partition(".")
        try:
            body = base64.urlsafe_b64decode(encoded.encode())
            salt, rest = body[:SALT_BYTES], body[SALT_BYTES:]
            cipher = self.derive(key_id, salt=salt, use=_VALUE_USE)
            plain = cipher.decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], context.encode())
        except (InvalidTag, ValueError, binascii.Error) as error:
            raise SecretDamagedError(place=context) from error
        return plain.decode()


def render_prefix(key_id: str) -> str:
    """Return how every value that this data key sealed begins."""
    return f"{PREFIX}{key_id}."

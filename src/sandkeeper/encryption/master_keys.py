"""Master keys: what wraps the data keys. They are never in the database.

A master key is 32 bytes in base64, or a command that asks a key management service. Several may be
given: the first wraps, and all of them unwrap, so that replicas can change over one by one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sandkeeper.common.private_files import FILE_MODE, open_private, restrict_file
from sandkeeper.domain.errors import InvalidSettingsError
from sandkeeper.encryption.keyring import KEY_BYTES, NONCE_BYTES

KEY_FILE: Final = "encryption.key"
KMS_ID: Final = "kms"
KMS_TIMEOUT_S: Final = 30.0
"""How long the command may take. Higher delays the start; lower fails on a slow service."""
_WRAP_USE: Final = "sandkeeper data key 1"


class MasterKey(Protocol):
    """Wraps and unwraps data keys. Its id says which master key wrapped one."""

    @property
    def id(self) -> str: ...

    def wrap(self, data_key: bytes, *, key_id: str) -> str:
        """Return the data key as it is stored."""

    def unwrap(self, wrapped: str, *, key_id: str) -> bytes | None:
        """Return the data key; None if this master key did not wrap it."""


class LocalMasterKey:
    """A master key whose bytes this process has."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._id = hashlib.sha256(b"sandkeeper master key 1" + key).hexdigest()[:12]

    @property
    def id(self) -> str:
        return self._id

    def wrap(self, data_key: bytes, *, key_id: str) -> str:
        """Encrypt the data key, bound to its id."""
        nonce = os.urandom(NONCE_BYTES)
        body = nonce + self._cipher.encrypt(nonce, data_key, _make_context(key_id))
        return base64.b64encode(body).decode()

    def unwrap(self, wrapped: str, *, key_id: str) -> bytes | None:
        """Decrypt what `wrap` returned; None if another key or another id was used."""
        try:
            body = base64.b64decode(wrapped, validate=True)
            nonce, rest = body[:NONCE_BYTES], body[NONCE_BYTES:]
            return self._cipher.decrypt(nonce, rest, _make_context(key_id))
        except (InvalidTag, ValueError, binascii.Error):
            return None


class KmsMasterKey:
    """A master key that a key management service holds and a command of the operator uses.

    The command is run with `wrap` or `unwrap` and the data key's id as its last arguments. It reads
    base64 on its standard input and writes base64 on its standard output.
    """

    id = KMS_ID

    def __init__(self, command: str) -> None:
        self._command = shlex.split(command)

    def wrap(self, data_key: bytes, *, key_id: str) -> str:
        """Return what the command printed."""
        return self._run("wrap", key_id, base64.b64encode(data_key).decode())

    def unwrap(self, wrapped: str, *, key_id: str) -> bytes | None:
        """Return the data key that the command printed; a failure of the command is an error."""
        try:
            data_key = base64.b64decode(self._run("unwrap", key_id, wrapped), validate=True)
        except (ValueError, binascii.Error):
            data_key = b""
        if len(data_key) != KEY_BYTES:
            raise InvalidSettingsError(
                "The command in `encryption_kms_command` did not print a key of 32 bytes in base64."
            )
        return data_key

    def _run(self, verb: str, key_id: str, text: str) -> str:
        try:
            done = subprocess.run(
                [*self._command, verb, key_id],
                input=f"{text}\n",
                capture_output=True,
                text=True,
                timeout=KMS_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InvalidSettingsError(
                f"The command in `encryption_kms_command` cannot be run: {error}"
            ) from None
        if done.returncode != 0:
            said = done.stderr.strip()[-300:]
            raise InvalidSettingsError(
                f"The command in `encryption_kms_command` failed to {verb} a data key with exit "
                f"code {done.returncode}: {said}"
            )
        return done.stdout.strip()


def parse_keys(text: str, *, source: str) -> list[LocalMasterKey]:
    """Return the keys of a text, separated by line breaks or commas; `source` is for errors."""
    return [LocalMasterKey(_decode(one, source)) for one in text.replace(",", " ").split()]


def read_key_file(path: Path) -> list[LocalMasterKey]:
    """Return the keys of a file; none if there is no such file."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettingsError(
            f"The encryption key in {path} cannot be read: {error}"
        ) from None
    restrict_file(path)
    return parse_keys(text, source=str(path))


def create_key_file(path: Path) -> None:
    """Create a file with a new key; leave an existing one as it is, whatever is in it.

    Of two processes at once the first wins: the file appears whole, and never replaces another.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    except OSError as error:
        raise InvalidSettingsError(f"The encryption key cannot be created: {error}") from None
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{_generate()}\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
        _sync_folder(path.parent)
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def add_key_to_file(path: Path) -> None:
    """Put a new key before the ones in the file."""
    _replace(path, [_generate(), *path.read_text().split()])


def keep_first_key_in_file(path: Path) -> None:
    """Remove all keys of the file but the first."""
    _replace(path, path.read_text().split()[:1])


def _replace(path: Path, keys: Sequence[str]) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with open_private(draft, "wb") as file:
        file.write("".join(f"{key}\n" for key in keys).encode())
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _generate() -> str:
    return base64.b64encode(os.urandom(KEY_BYTES)).decode()


def _decode(text: str, source: str) -> bytes:
    try:
        key = base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != KEY_BYTES:
        raise InvalidSettingsError(
            f"The encryption key in {source} is not 32 bytes in base64: make one with "
            "`openssl rand -base64 32`."
        )
    return key


def _make_context(key_id: str) -> bytes:
    return f"{_WRAP_USE}:{key_id}".encode()

"""Open the database's data keys with the master key, rotate the master key, add a data key.

A master key is created only for a database without any data key. In every other case a missing or a
wrong one is an error, and nothing is written.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from sandkeeper.common.file_lock import lock_file
from sandkeeper.common.private_files import FILE_MODE
from sandkeeper.domain.errors import InvalidSettingsError
from sandkeeper.encryption.keyring import KEY_BYTES
from sandkeeper.encryption.master_keys import (
    KEY_FILE,
    KMS_ID,
    KmsMasterKey,
    MasterKey,
    add_key_to_file,
    create_key_file,
    keep_first_key_in_file,
    parse_keys,
    read_key_file,
)
from sandkeeper.settings import Settings
from sandkeeper.store import Store
from sandkeeper.store.data_keys import WrappedKey
from sandkeeper.store.sealing import KEY_ID_CHARACTERS

ACTIVATION: Final = timedelta(seconds=60)
"""How long a new data key only decrypts, until every replica has it. They look every 5 seconds."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """What a rotation did. `obsolete` is a key file that is not needed any more."""

    master_key: str
    rewrapped: int
    obsolete: Path | None = None


async def open_data_keys(store: Store, settings: Settings, *, now: datetime) -> None:
    """Put the database's data keys on its keyring; create the first one of a new database.

    Safe to repeat: keys that are open already are not unwrapped again, and the newest active one
    becomes the current one. Raise InvalidSettingsError if the master key does not open a data key.
    """
    stored = await store.data_keys.list()
    if not stored:
        await _create_first(store, settings, now)
        stored = await store.data_keys.list()
    keyring = store.database.keyring
    closed = [one for one in stored if one.id not in keyring.ids]
    opened = {}
    if closed:
        masters = read_master_keys(settings)
        opened = await asyncio.to_thread(_unwrap, closed, masters, settings)
    active = [one for one in stored if one.active_at <= now] or stored[:1]
    keyring.hold(opened, current=active[-1].id)


def check_master_key(stored: Sequence[WrappedKey], settings: Settings) -> None:
    """Raise InvalidSettingsError unless the master key opens every one of these data keys."""
    _unwrap(stored, read_master_keys(settings), settings)


async def rotate_master_key(store: Store, settings: Settings) -> Rotation:
    """Wrap every data key with the first master key; without a configured one, make a new one.

    Safe to interrupt: until the data keys are wrapped with the new key, the file has both.
    """
    own = settings.data / KEY_FILE
    with _only_one(settings.data):
        masters = read_master_keys(settings)
        stored = await _list_existing(store)
        opened = await asyncio.to_thread(_unwrap, stored, masters, settings)
        is_own = not settings.has_configured_key
        if is_own and len(masters) == 1:
            add_key_to_file(own)
        first = read_master_keys(settings)[0]
        if not is_own and first.id != KMS_ID and {one.master_key for one in stored} == {first.id}:
            raise InvalidSettingsError(
                f"The master key {first.id} wraps every data key already. To rotate it, put a new "
                "key before it and keep both until this command is done."
            )
        wrapped = {
            key_id: await asyncio.to_thread(first.wrap, key, key_id=key_id)
            for key_id, key in opened.items()
        }
        await store.data_keys.rewrap(wrapped, master_key=first.id)
        # What is stored now must open with the new key alone before the old one goes.
        await asyncio.to_thread(_unwrap, await store.data_keys.list(), [first], settings)
        if is_own:
            keep_first_key_in_file(own)
    return Rotation(first.id, len(wrapped), None if is_own or not own.exists() else own)


async def add_data_key(store: Store, settings: Settings, *, now: datetime) -> WrappedKey:
    """Add a data key. Every replica learns of it before it encrypts anything."""
    with _only_one(settings.data):
        masters = read_master_keys(settings)
        await asyncio.to_thread(_unwrap, await _list_existing(store), masters, settings)
        added = await asyncio.to_thread(_make, masters[0], now, now + ACTIVATION)
        await store.data_keys.add(added)
    return added


def read_master_keys(settings: Settings) -> list[MasterKey]:
    """Return the configured master keys and the one in the data folder; the first one wraps."""
    found: list[MasterKey] = []
    if settings.encryption_kms_command:
        found.append(KmsMasterKey(settings.encryption_kms_command))
    if settings.encryption_key is not None:
        text = settings.encryption_key.get_secret_value()
        found += parse_keys(text, source="SANDKEEPER_ENCRYPTION_KEY")
    if settings.encryption_key_file is not None:
        keys = read_key_file(settings.encryption_key_file)
        if not keys:
            raise InvalidSettingsError(
                f"There is no encryption key in {settings.encryption_key_file}: put it there, or "
                "correct `encryption_key_file`."
            )
        found += keys
    return found + read_key_file(settings.data / KEY_FILE)


async def _create_first(store: Store, settings: Settings, now: datetime) -> None:
    if not settings.has_configured_key:
        create_key_file(settings.data / KEY_FILE)
    first = read_master_keys(settings)[0]
    await store.data_keys.add_first(await asyncio.to_thread(_make, first, now, now))


async def _list_existing(store: Store) -> list[WrappedKey]:
    stored = await store.data_keys.list()
    if not stored:
        raise InvalidSettingsError("This database has no data key yet: start the keeper first.")
    return stored


def _make(master: MasterKey, now: datetime, active_at: datetime) -> WrappedKey:
    key_id = secrets.token_hex(KEY_ID_CHARACTERS // 2)
    wrapped = master.wrap(os.urandom(KEY_BYTES), key_id=key_id)
    return WrappedKey(key_id, wrapped, master.id, now, active_at)


def _unwrap(
    stored: Sequence[WrappedKey], masters: Sequence[MasterKey], settings: Settings
) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for one in stored:
        for master in masters:
            key = master.unwrap(one.wrapped, key_id=one.id) if master.id == one.master_key else None
            if key is not None:
                found[one.id] = key
                break
        else:
            raise InvalidSettingsError(_explain(one, masters, settings))
    return found


def _explain(one: WrappedKey, masters: Sequence[MasterKey], settings: Settings) -> str:
    needed = "the key management service" if one.master_key == KMS_ID else f"{one.master_key}"
    has = ", ".join(master.id for master in masters)
    here = f"only {has}" if has else f"none, and {settings.data / KEY_FILE} does not exist"
    return (
        f"This database is encrypted with the master key {needed}, and this keeper has {here}. Set "
        "`encryption_key` or `encryption_key_file` to the key that every replica of this database "
        "uses, or put its file back. Nothing was changed."
    )


@contextmanager
def _only_one(data: Path) -> Iterator[None]:
    """Let commands that change keys wait for each other."""
    data.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(data / f".{KEY_FILE}.lock", os.O_RDWR | os.O_CREAT, FILE_MODE)
    try:
        lock_file(descriptor)
        yield
    finally:
        os.close(descriptor)

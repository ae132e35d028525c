"""The master key at start: made once, refused when it is wrong, rotated without a gap."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from sandkeeper.domain.errors import InvalidSettingsError
from sandkeeper.encryption.errors import DataKeyMissingError
from sandkeeper.encryption.keyring import Keyring
from sandkeeper.encryption.master_keys import KEY_FILE, read_key_file
from sandkeeper.hosting import data_keys
from sandkeeper.hosting.data_keys import (
    ACTIVATION,
    add_data_key,
    open_data_keys,
    rotate_master_key,
)
from sandkeeper.services.encryption.reencryption import Reencryption
from sandkeeper.services.files.blobs import open_blobs
from sandkeeper.services.files.sealed_packs import SealedPacks
from sandkeeper.settings import Settings
from sandkeeper.store import Store, open_store
from sandkeeper.testing.providers import SimulatedProvider
from support.deps import MovableClock, make_deps

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAME = "webhook.secret"


def make_key(letter: bytes) -> str:
    return base64.b64encode(letter * 32).decode()


def make_settings(data: Path, **given: Any) -> Settings:
    data.mkdir(exist_ok=True)
    if "encryption_key" in given:
        given["encryption_key"] = SecretStr(given["encryption_key"])
    return Settings(data=data, **given)


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with open_store(database_url, migrate=False) as opened:
        yield opened


async def restart(store: Store, settings: Settings, *, now: datetime = NOW) -> str | None:
    """Open the data keys as a new process does, and read a secret with them."""
    store.database.keyring = Keyring()
    await open_data_keys(store, settings, now=now)
    found: str | None = await store.key_values.find(NAME)
    return found


async def begin(store: Store, settings: Settings) -> None:
    await open_data_keys(store, settings, now=NOW)
    await store.key_values.put(NAME, "the secret", now=NOW)


async def test_the_first_start_makes_a_key_and_the_next_one_uses_it(
    store: Store, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path / "data")
    await begin(store, settings)
    assert (settings.data / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert await restart(store, settings) == "the secret"
    assert len(await store.data_keys.list()) == 1


async def test_a_lost_key_is_one_clear_line_and_no_new_key_is_made(
    store: Store, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path / "data")
    await begin(store, settings)
    before = await store.data_keys.list()
    (settings.data / KEY_FILE).unlink()
    with pytest.raises(InvalidSettingsError, match="put its file back") as caught:
        await restart(store, settings)
    assert "\n" not in str(caught.value)
    assert before[0].master_key in str(caught.value)
    assert not (settings.data / KEY_FILE).exists()
    assert await store.data_keys.list() == before


async def test_a_replica_with_another_key_is_refused(store: Store, tmp_path: Path) -> None:
    await begin(store, make_settings(tmp_path / "one", encryption_key=make_key(b"1")))
    for other in (
        make_settings(tmp_path / "two", encryption_key=make_key(b"2")),
        make_settings(tmp_path / "three"),
    ):
        with pytest.raises(InvalidSettingsError, match="every replica of this database uses"):
            await restart(store, other)
    same = make_settings(tmp_path / "four", encryption_key=make_key(b"1"))
    assert await restart(store, same) == "the secret"


async def test_a_configured_file_that_is_missing_is_not_created(
    store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "elsewhere.key"
    settings = make_settings(tmp_path / "data", encryption_key_file=path)
    with pytest.raises(InvalidSettingsError, match="There is no encryption key in"):
        await open_data_keys(store, settings, now=NOW)
    assert not path.exists()
    assert await store.data_keys.list() == []
    path.write_text(make_key(b"1"))
    await begin(store, settings)
    assert not (settings.data / KEY_FILE).exists()


async def test_a_rotation_replaces_the_key_in_the_data_folder(store: Store, tmp_path: Path) -> None:
    settings = make_settings(tmp_path / "data")
    await begin(store, settings)
    old = (settings.data / KEY_FILE).read_text()
    done = await rotate_master_key(store, settings)
    assert (settings.data / KEY_FILE).read_text() != old
    assert [one.id for one in read_key_file(settings.data / KEY_FILE)] == [done.master_key]
    assert await restart(store, settings) == "the secret"
    (settings.data / KEY_FILE).write_text(old)
    with pytest.raises(InvalidSettingsError):
        await restart(store, settings)


@pytest.mark.parametrize("dies_in", ["rewrap", "keep_first_key_in_file"])
async def test_a_rotation_that_died_leaves_a_keeper_that_starts_and_is_finished_by_the_next(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_in: str
) -> None:
    settings = make_settings(tmp_path / "data")
    await begin(store, settings)
    with monkeypatch.context() as patch:

        def die(*_args: object, **_given: object) -> None:
            raise KeyboardInterrupt

        owner = store.data_keys if dies_in == "rewrap" else data_keys
        patch.setattr(owner, dies_in, die)
        with pytest.raises(KeyboardInterrupt):
            await rotate_master_key(store, settings)
    planned = read_key_file(settings.data / KEY_FILE)
    assert len(planned) == 2
    assert await restart(store, settings) == "the secret"
    done = await rotate_master_key(store, settings)
    assert done.master_key == planned[0].id
    assert len(read_key_file(settings.data / KEY_FILE)) == 1
    assert await restart(store, settings) == "the secret"


async def test_configured_keys_rotate_when_the_new_one_stands_first(
    store: Store, tmp_path: Path
) -> None:
    old, new = make_key(b"1"), make_key(b"2")
    settings = make_settings(tmp_path / "data", encryption_key=old)
    await begin(store, settings)
    with pytest.raises(InvalidSettingsError, match="put a new key before it"):
        await rotate_master_key(store, settings)
    both = make_settings(tmp_path / "data", encryption_key=f"{new},{old}")
    assert await restart(store, both) == "the secret"
    await rotate_master_key(store, both)
    only_new = make_settings(tmp_path / "data", encryption_key=new)
    assert await restart(store, only_new) == "the secret"
    with pytest.raises(InvalidSettingsError):
        await restart(store, settings)


async def test_a_key_moves_from_the_data_folder_to_the_environment(
    store: Store, tmp_path: Path
) -> None:
    await begin(store, make_settings(tmp_path / "data"))
    given = make_settings(tmp_path / "data", encryption_key=make_key(b"2"))
    done = await rotate_master_key(store, given)
    assert done.obsolete == tmp_path / "data" / KEY_FILE
    done.obsolete.unlink()
    assert await restart(store, given) == "the secret"


async def test_a_new_data_key_is_known_before_it_encrypts_and_takes_over_everything(
    store: Store, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path / "data")
    await begin(store, settings)
    first = store.database.keyring.current_id
    added = await add_data_key(store, settings, now=NOW)
    with pytest.raises(DataKeyMissingError):
        store.database.keyring.derive(added.id, salt=b"", use=b"")
    await open_data_keys(store, settings, now=NOW)
    assert added.id in store.database.keyring.ids
    assert store.database.keyring.current_id == first
    clock = MovableClock()
    clock.ahead = NOW + ACTIVATION + timedelta(seconds=1) - datetime.now(UTC)
    deps = make_deps(store, SimulatedProvider(), clock=clock, data=settings.data)
    reencryption = Reencryption(deps, SealedPacks(deps, open_blobs("memory:///", tmp_path)))
    run = await reencryption.run()
    assert run.values == 1
    assert (await store.sealed_values.count())["secrets"] == {added.id: 1}
    assert await restart(store, settings, now=NOW + ACTIVATION) == "the secret"

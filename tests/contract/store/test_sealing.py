"""Secrets in the database: encrypted, bound to their row, not searched, and re-encrypted."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import text

from sandkeeper.domain.errors import VersionConflictError
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.policy import Launch
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.encryption.errors import SecretDamagedError
from sandkeeper.store import SandboxQuery, Store
from sandkeeper.store.data_keys import WrappedKey
from sandkeeper.store.sealing import PLAIN
from support.records import T0, at

TEST_KEY = "00000000"


def make_sandbox(name: str, **launch: Any) -> Sandbox:
    return Sandbox(
        id=f"sb-{name}",
        owner=Owner.project(name),
        provider="e2b",
        created_at=T0,
        updated_at=T0,
        state_since=T0,
        launch=Launch(**launch),
    )


async def run_sql(store: Store, statement: str, **values: object) -> None:
    async with store.database.writing() as connection:
        await connection.execute(text(statement), values)


async def read_table(store: Store, table: str) -> str:
    async with store.database.reading() as connection:
        return str((await connection.execute(text(f"SELECT * FROM {table}"))).all())


async def make_plain(store: Store, name: str, env: dict[str, str]) -> None:
    """Write a row as a version without encryption did."""
    await store.sandboxes.insert(make_sandbox(name, metadata={"team": "red"}))
    launch = json.dumps(
        {"template": None, "env": env, "metadata": {"team": "red"}}, separators=(",", ":")
    )
    statement = "UPDATE sandboxes SET launch = :launch, env = NULL WHERE id = :id"
    await run_sql(store, statement, launch=launch, id=f"sb-{name}")


async def reseal_all(store: Store, *, limit: int = 2) -> int:
    after_id: str | None = ""
    changed = 0
    while after_id is not None:
        step = await store.sealed_values.reseal(after_id=after_id, limit=limit)
        changed += step.changed
        after_id = step.next_id
    return changed


async def test_environment_variables_come_back_and_are_not_in_the_table(store: Store) -> None:
    made = make_sandbox("shop", env={"TOKEN": "s3cr3t-value"}, metadata={"team": "red"})
    await store.sandboxes.insert(made)
    assert await store.sandboxes.get("sb-shop") == made
    table = await read_table(store, "sandboxes")
    assert "s3cr3t-value" not in table
    assert "TOKEN" not in table
    saved = await store.sandboxes.save(made, expect_version=1, now=at(1))
    assert dict(saved.launch.env) == {"TOKEN": "s3cr3t-value"}


async def test_a_save_of_a_record_that_was_read_does_not_encrypt_again(store: Store) -> None:
    await store.sandboxes.insert(make_sandbox("shop", env={"A": "1"}))
    before = await read_table(store, "sandboxes")
    sealed = before[before.index("sk1.") :].split("'")[0]
    await store.sandboxes.save(await store.sandboxes.get("sb-shop"), expect_version=1, now=at(1))
    assert sealed in await read_table(store, "sandboxes")


async def test_a_search_finds_metadata_and_neither_secrets_nor_their_ciphertext(
    store: Store,
) -> None:
    await store.sandboxes.insert(
        make_sandbox("shop", env={"TOKEN": "s3cr3t"}, metadata={"team": "red"}, template="tmpl")
    )
    await make_plain(store, "blog", {"TOKEN": "s3cr3t"})

    async def find(search: str) -> list[str]:
        page = await store.sandboxes.list(SandboxQuery(search=search))
        return sorted(one.owner.id for one in page.items)

    assert await find("red") == ["blog", "shop"]
    for hidden in ("s3cr3t", "TOKEN", "sk1.", TEST_KEY, "tmpl", "start_command"):
        assert await find(hidden) == []


async def test_variables_that_were_moved_to_another_row_do_not_open_and_hide_no_record(
    store: Store,
) -> None:
    await store.sandboxes.insert(make_sandbox("shop", env={"A": "1"}))
    await store.sandboxes.insert(make_sandbox("blog", env={"A": "2"}))
    await run_sql(
        store,
        "UPDATE sandboxes SET env = (SELECT env FROM sandboxes WHERE id = 'sb-shop')"
        " WHERE id = 'sb-blog'",
    )
    assert len((await store.sandboxes.list(SandboxQuery())).items) == 2
    assert (await store.sandboxes.get("sb-shop")).launch.env == {"A": "1"}
    with pytest.raises(SecretDamagedError, match="project:blog"):
        dict((await store.sandboxes.get("sb-blog")).launch.env)


async def test_secrets_among_the_facts_are_encrypted_and_others_are_not(store: Store) -> None:
    for name in ("webhook.secret", "jobs.confirmation", "cursor.e2b"):
        await store.key_values.put(name, f"value of {name}", now=T0)
        assert await store.key_values.find(name) == f"value of {name}"
    table = await read_table(store, "facts")
    assert "value of cursor.e2b" in table
    assert "value of webhook" not in table
    assert "value of jobs" not in table
    await run_sql(
        store,
        "UPDATE facts SET value = (SELECT value FROM facts WHERE name = 'jobs.confirmation')"
        " WHERE name = 'webhook.secret'",
    )
    with pytest.raises(SecretDamagedError):
        await store.key_values.find("webhook.secret")


async def test_data_of_a_version_without_encryption_is_read_and_then_encrypted(
    store: Store,
) -> None:
    for number in range(5):
        await make_plain(store, f"p{number}", {"TOKEN": f"s3cr3t-{number}"})
    await store.sandboxes.insert(make_sandbox("none"))
    await run_sql(
        store,
        "INSERT INTO facts (name, value, updated_at) VALUES ('webhook.secret', :value, 0)",
        value='"plain-webhook"',
    )
    assert await store.key_values.find("webhook.secret") == "plain-webhook"
    counts = await store.sealed_values.count()
    assert counts["environments"] == Counter({PLAIN: 5})
    assert counts["secrets"] == Counter({PLAIN: 1})
    assert await reseal_all(store) == 6
    counts = await store.sealed_values.count()
    assert counts["environments"] == Counter({TEST_KEY: 5})
    assert counts["secrets"] == Counter({TEST_KEY: 1})
    assert "s3cr3t" not in await read_table(store, "sandboxes")
    assert "plain-webhook" not in await read_table(store, "facts")
    assert (await store.sandboxes.get("sb-p3")).launch.env == {"TOKEN": "s3cr3t-3"}
    assert (await store.sandboxes.get("sb-p3")).launch.metadata == {"team": "red"}
    assert await store.key_values.find("webhook.secret") == "plain-webhook"
    assert await reseal_all(store) == 0


async def test_a_new_key_takes_over_step_by_step_and_skips_what_is_damaged(store: Store) -> None:
    for number in range(5):
        await store.sandboxes.insert(make_sandbox(f"p{number}", env={"A": str(number)}))
    await run_sql(store, "UPDATE sandboxes SET env = 'sk1.00000000.AAAA' WHERE id = 'sb-p2'")
    store.database.keyring.hold({"11111111": b"1" * 32}, current="11111111")
    first = await store.sealed_values.reseal(after_id="", limit=3)
    assert (first.changed, first.damaged, first.next_id) == (2, ("sb-p2",), "sb-p2")
    assert (await store.sandboxes.get("sb-p4")).launch.env == {"A": "4"}
    second = await store.sealed_values.reseal(after_id="sb-p2", limit=3)
    assert (second.changed, second.next_id) == (2, None)
    assert (await store.sealed_values.count())["environments"] == Counter(
        {"11111111": 4, TEST_KEY: 1}
    )
    assert (await store.sandboxes.get("sb-p0")).launch.env == {"A": "0"}


async def test_of_replicas_that_start_at_once_one_adds_the_first_data_key(store: Store) -> None:
    def make(name: str) -> WrappedKey:
        return WrappedKey(name, f"wrapped {name}", "m", T0, T0)

    await asyncio.gather(*(store.data_keys.add_first(make(f"k{n}")) for n in range(5)))
    [first] = await store.data_keys.list()
    await store.data_keys.add(make("next"))
    assert [one.id for one in await store.data_keys.list()] == [first.id, "next"]
    with pytest.raises(VersionConflictError):
        await store.data_keys.add(make("next"))
    await store.data_keys.rewrap({first.id: "a", "next": "b"}, master_key="n")
    assert [(one.wrapped, one.master_key) for one in await store.data_keys.list()] == [
        ("a", "n"),
        ("b", "n"),
    ]

"""A store behind PgBouncer in transaction mode: every transaction may get another session."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest

from sandkeeper.domain.activity import Activity, ActivityClass, Touch
from sandkeeper.domain.errors import InvalidSettingsError
from sandkeeper.domain.events import SandboxCreated
from sandkeeper.domain.states import State
from sandkeeper.store import open_store
from sandkeeper.store.database import split_pooler
from sandkeeper.store.sandboxes.query import SandboxQuery, Sort
from support.installed_postgres import (
    installed_postgres,
    needs_installed_postgres,
    needs_pgbouncer,
    pgbouncer,
)
from support.records import at, new_record

pytestmark = [needs_installed_postgres, needs_pgbouncer]
SESSIONS = 3
LIMITS = "statement_timeout = '5s'"


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[int, int]]:
    """The ports of PostgreSQL and of the PgBouncer before it."""
    with installed_postgres() as server, pgbouncer(server, sessions=SESSIONS) as pooler:
        yield server, pooler


async def test_replicas_share_a_few_sessions_without_losing_a_write(
    servers: tuple[int, int],
) -> None:
    direct, pooled = (f"postgresql://keeper@127.0.0.1:{port}/postgres" for port in servers)
    connection = await asyncpg.connect(direct)
    await connection.execute(f"ALTER ROLE keeper SET {LIMITS}")
    url = f"{pooled}?pgbouncer=true&application_name=keeper"
    async with open_store(url) as one, open_store(url) as other:
        stores = (one, other)

        async def live(number: int) -> None:
            store = stores[number % 2]
            made = await store.sandboxes.insert(new_record(f"p{number:02}"))
            for turn in range(4):
                found = await store.sandboxes.get(made.id)
                event = SandboxCreated(
                    sandbox_id=made.id, owner=made.owner, at=at(turn), actor="t", generation=1
                )
                state = State.RUNNING if turn % 2 else State.PAUSED
                changed = found.evolve(state=state)
                await store.sandboxes.save(
                    changed, [event], expect_version=found.version, now=at(turn)
                )
                touch = Touch(made.id, Activity(at(turn), ActivityClass.INTENT, "tab"), None)
                await store.sandboxes.touch([touch])

        await asyncio.gather(*(live(number) for number in range(20)))
        for store in stores:
            assert (await store.counts.by_state())[State.RUNNING] == 20
            assert len(await store.events.after(0)) == 80
            query = SandboxQuery(search="p1", sort=Sort.ACTIVE)
            assert len((await store.sandboxes.list(query)).items) == 10
            assert await store.has_statement_limit()
        await one.events.notify("unheard")
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
    assert await connection.fetchval(sessions) <= SESSIONS + 1
    await connection.close()


async def test_a_url_that_does_not_name_pgbouncer_is_refused_with_what_to_do(
    servers: tuple[int, int],
) -> None:
    with pytest.raises(InvalidSettingsError, match="pgbouncer=true"):
        async with open_store(f"postgresql://keeper@127.0.0.1:{servers[1]}/postgres"):
            pass


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("postgresql://h/d?pgbouncer=true", ("postgresql://h/d", True)),
        ("postgresql://h/d?pgbouncer=true&a=b", ("postgresql://h/d?a=b", True)),
        ("postgresql://h/d?a=b&pgbouncer=true&c=d", ("postgresql://h/d?a=b&c=d", True)),
        ("postgresql://h/d?pgbouncer=false", ("postgresql://h/d", False)),
        ("postgresql://h/d?xpgbouncer=true", ("postgresql://h/d?xpgbouncer=true", False)),
    ],
)
def test_the_mark_of_pgbouncer_is_taken_from_the_url(given: str, expected: object) -> None:
    assert split_pooler(given) == expected

"""A database is closed cleanly, and one that stands still or is gone is given up in time."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import select, text

from sandkeeper.domain.errors import StoreUnavailableError
from sandkeeper.domain.events import SandboxCreated
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import ClaimKind
from sandkeeper.services.monitoring.readiness import DatabaseProbe
from sandkeeper.store import Store, database, open_store
from sandkeeper.store.errors import DISK_FULL, STALLED
from sandkeeper.store.tables.sandboxes import FACTS
from sandkeeper.testing.providers import SimulatedProvider
from support.deps import make_deps
from support.eventually import eventually
from support.records import T0, at, new_record

FAREWELL = b"SFATAL\0C25P03\0Mterminating connection due to idle-in-transaction timeout\0\0"
IDLE_FOR_TOO_LONG = b"E" + (len(FAREWELL) + 4).to_bytes(4, "big") + FAREWELL
"""What PostgreSQL sends before it closes the connection."""


async def work(store: Store) -> None:
    while True:
        await store.ping()
        async with store.database.writing():
            await asyncio.sleep(0)


@pytest.mark.parametrize("cancel_after_s", [step * 0.0005 for step in range(12)])
async def test_closing_waits_for_the_threads_of_cancelled_statements(
    sqlite_template: Path, tmp_path: Path, cancel_after_s: float
) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(sqlite_template.read_bytes())
    before = set(threading.enumerate())
    async with open_store(f"sqlite:///{path}", migrate=False) as store:
        tasks = [asyncio.create_task(work(store)) for _ in range(6)]
        await asyncio.sleep(cancel_after_s)
        opened = {one for one in set(threading.enumerate()) - before if is_worker(one)}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        opened |= {one for one in set(threading.enumerate()) - before if is_worker(one)}
    assert opened
    assert [one for one in opened if one.is_alive()] == []


def is_worker(thread: threading.Thread) -> bool:
    """Tell whether this thread is one of SQLite's driver."""
    return "_connection_worker_thread" in thread.name


async def test_a_client_that_stands_still_holds_its_rows_only_for_a_moment(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "IDLE_S", 0.5)
    async with open_store(postgres_database) as frozen, open_store(postgres_database) as other:
        for name in ("held", "free"):
            await frozen.sandboxes.insert(new_record(name))
        loop = asyncio.get_running_loop()
        standing_still = asyncio.create_task(stand_still(frozen))
        await eventually(lambda: is_locked(other, "sb-held"))
        started = loop.time()
        await claim(other, "sb-free")
        await other.sandboxes.append_events(new_record("free"), [created("free")], now=T0)
        assert not standing_still.done()
        await claim(other, "sb-held")
        assert loop.time() - started < 2
        standing_still.cancel()
        await asyncio.gather(standing_still, return_exceptions=True)


async def test_a_database_that_stands_still_is_given_up_and_used_again(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "TRANSACTION_S", 0.3)
    blocker = await asyncpg.connect(postgres_database)
    async with open_store(postgres_database) as store:
        await store.sandboxes.insert(new_record("x"))
        deps = make_deps(store, SimulatedProvider())
        probe = DatabaseProbe(deps)
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE sandboxes, events")
            with pytest.raises(StoreUnavailableError, match="stalled"):
                await store.sandboxes.get("sb-x")
            with pytest.raises(StoreUnavailableError, match="stalled"):
                await store.sandboxes.append_events(new_record("x"), [created("x")], now=T0)
            assert await probe.find_problem() == STALLED
        await claim(store, "sb-x")
        assert await probe.find_problem() is None
        assert await store.events.latest_seq() == 0
        await probe.close()
    await blocker.close()


async def test_a_database_file_that_was_deleted_or_replaced_is_not_written_to(
    sqlite_template: Path, tmp_path: Path
) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(sqlite_template.read_bytes())
    async with open_store(f"sqlite:///{path}", migrate=False) as store:
        probe = DatabaseProbe(make_deps(store, SimulatedProvider()))
        await store.sandboxes.insert(new_record("x"))
        path.rename(tmp_path / "moved.db")
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match="deleted or replaced"):
                await claim(store, "sb-x")
            assert "deleted or replaced" in (await probe.find_problem() or "")
            path.write_bytes(sqlite_template.read_bytes())
        assert (await store.sandboxes.get("sb-x")).claim is None
        await probe.close()


async def test_a_full_disk_is_said_although_small_writes_succeed(
    sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(sqlite_template.read_bytes())
    async with open_store(f"sqlite:///{path}", migrate=False) as store:
        probe = DatabaseProbe(make_deps(store, SimulatedProvider()))
        with pytest.raises(StoreUnavailableError):
            async with store.database.writing():
                raise sqlite3.OperationalError("database or disk is full")
        await store.sandboxes.insert(new_record("small"))
        assert await probe.find_problem() == DISK_FULL
        monkeypatch.setattr(database, "FULL_SHOWN_S", 0.0)
        assert await probe.find_problem() is None
        await probe.close()


async def stand_still(store: Store) -> None:
    """Begin a transaction and do nothing, as a suspended process does."""
    async with store.database.writing() as connection:
        await connection.execute(text("UPDATE sandboxes SET version = 9 WHERE id = 'sb-held'"))
        await asyncio.Event().wait()


async def is_locked(store: Store, sandbox_id: str) -> bool:
    statement = text("SELECT id FROM sandboxes WHERE id = :id FOR UPDATE SKIP LOCKED")
    async with store.database.writing() as connection:
        return await connection.scalar(statement, {"id": sandbox_id}) is None


async def claim(store: Store, sandbox_id: str) -> None:
    await store.sandboxes.claim(sandbox_id, kind=ClaimKind.PAUSE, holder="h", until=at(60), now=T0)


def created(name: str) -> SandboxCreated:
    return SandboxCreated(
        sandbox_id=f"sb-{name}", owner=Owner.project(name), at=T0, actor="", reason="", generation=1
    )


async def test_a_transaction_that_the_server_just_ended_is_unavailable(
    postgres_database: str,
) -> None:
    """The driver has read the server's farewell, and not yet that the connection is closed."""
    record = new_record("x")

    async def write(store: Store) -> None:
        async with store.database.writing() as connection:
            await connection.execute(text("SELECT 1"))
            driver = (await connection.get_raw_connection()).driver_connection
            assert driver is not None
            driver._protocol.data_received(IDLE_FOR_TOO_LONG)
            await store.events.append(connection, record, [created("x")], now=T0)

    async with open_store(postgres_database) as store:
        await store.sandboxes.insert(record)
        with pytest.raises(StoreUnavailableError):
            await write(store)
        await claim(store, "sb-x")
        assert await store.events.latest_seq() == 0


@pytest.mark.parametrize("cancel_after_s", [step * 0.0005 for step in range(6)])
async def test_a_cancelled_writer_leaves_nothing_and_blocks_no_other(
    sqlite_template: Path, tmp_path: Path, cancel_after_s: float
) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(sqlite_template.read_bytes())
    async with open_store(f"sqlite:///{path}", migrate=False) as store:

        async def write(name: str) -> None:
            async with store.database.writing() as connection:
                for half in ("first", "second"):
                    row = {"name": f"{name}-{half}", "value": "1", "updated_at": datetime.now(UTC)}
                    await connection.execute(FACTS.insert(), row)

        writing = [asyncio.create_task(write(f"cancelled-{number}")) for number in range(4)]
        await asyncio.sleep(cancel_after_s)
        for task in writing:
            task.cancel()
        await asyncio.gather(*writing, return_exceptions=True)
        await write("later")
        async with store.database.reading() as connection:
            found = set((await connection.execute(select(FACTS.c.name))).scalars())
    assert {"later-first", "later-second"} <= found
    for number in range(4):
        halves = {f"cancelled-{number}-first", f"cancelled-{number}-second"}
        assert halves & found in (set(), halves)

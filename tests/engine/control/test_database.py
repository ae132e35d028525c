"""The engine's database: a finished call is on disk, and a failed one affects no other."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from sandkeeper.engine.storage.database import EngineDatabase


async def test_a_failing_call_takes_back_its_own_writes_only(tmp_path: Path) -> None:
    database = EngineDatabase(tmp_path / "engine.sqlite")
    database.open()

    def note(name: str, *, broken: bool = False) -> None:
        def write(connection: sqlite3.Connection) -> str:
            connection.execute("INSERT INTO facts VALUES (?, 'x')", (name,))
            if broken:
                raise ValueError(name)
            return name

        calls.append(asyncio.ensure_future(database.run(write)))

    calls: list[asyncio.Future[str]] = []
    for number in range(200):
        note(f"fact {number}", broken=number % 7 == 0)
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    database.close()
    kept = {outcome for outcome in outcomes if isinstance(outcome, str)}
    assert sum(isinstance(outcome, ValueError) for outcome in outcomes) == 29
    with sqlite3.connect(tmp_path / "engine.sqlite") as connection:
        assert {row[0] for row in connection.execute("SELECT name FROM facts")} == kept
    connection.close()


async def test_a_full_disk_is_an_error_and_not_an_end(tmp_path: Path) -> None:
    database = EngineDatabase(tmp_path / "engine.sqlite")
    database.open()
    await database.run(lambda c: c.execute("PRAGMA max_page_count = 40"))
    with pytest.raises(sqlite3.Error):
        await database.run(
            lambda c: c.execute("INSERT INTO facts VALUES ('large', ?)", ("x" * 10_000_000,))
        )
    await database.run(lambda c: c.execute("INSERT INTO facts VALUES ('small', 'x')"))
    rows = await database.run(lambda c: c.execute("SELECT name FROM facts").fetchall())
    assert rows == [("small",)]
    database.close()

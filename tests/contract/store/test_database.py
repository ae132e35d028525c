"""A database that is closed leaves nothing running, also when its callers were cancelled."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from sandkeeper.store import Store, open_store


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

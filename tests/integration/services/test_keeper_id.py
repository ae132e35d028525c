"""The keeper's id lies in the database and in the data folder, and the two are compared."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from structlog import stdlib, wrap_logger
from structlog.testing import LogCapture

from sandkeeper.hosting import keeper_id
from sandkeeper.hosting.keeper_id import load_or_create_keeper_id
from sandkeeper.store import open_store

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def test_another_database_is_noticed_and_a_new_one_gets_the_folders_id(
    tmp_path: Path, sqlite_template: Path
) -> None:
    data = tmp_path / "data"
    urls = []
    for name in ("first.db", "second.db", "third.db"):
        (tmp_path / name).write_bytes(sqlite_template.read_bytes())
        urls.append(f"sqlite:///{tmp_path / name}")

    async def start(url: str, folder: Path) -> tuple[str, list[str]]:
        capture = LogCapture()
        with pytest.MonkeyPatch.context() as patch:
            # Not the shared configuration: another test of this process may have changed it.
            own = wrap_logger(None, processors=[capture], wrapper_class=stdlib.BoundLogger)
            patch.setattr(keeper_id, "log", own)
            async with open_store(url, migrate=False) as store:
                found = await load_or_create_keeper_id(store, folder, now=NOW)
        return found, [line["event"] for line in capture.entries]

    mine, said = await start(urls[0], data)
    assert said == []
    assert await start(urls[0], data) == (mine, [])
    assert await start(urls[0], tmp_path / "replica") == (mine, [])
    assert await start(urls[1], data) == (mine, ["database_is_new"])

    other, _ = await start(urls[2], tmp_path / "other")
    assert other != mine
    assert await start(urls[2], data) == (other, ["database_of_another_keeper"])

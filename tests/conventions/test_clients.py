"""The table of clients names the versions that are pinned."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.client_table import CLIENTS, FOLDER, ROW, Client, read_row


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_the_table_has_the_pinned_versions_of_a_client(client: Client) -> None:
    found = ROW.match(read_row(client) or "")
    assert found is not None, "run UPDATE_DOCS=1 make clients"
    assert (found["version"], found["sdk"]) == (client.version, client.sdk)


def test_every_program_of_a_client_is_in_the_table() -> None:
    programs = {program.parent.name for program in FOLDER.glob("*/life.*")}
    assert programs == {client.name for client in CLIENTS}


@pytest.mark.parametrize("lock", sorted(FOLDER.glob("*/package-lock.json")), ids=str)
def test_a_lock_names_no_registry(lock: Path) -> None:
    assert "resolved" not in lock.read_text()

"""The operator's key is rotated on two replicas, one after the other, and no caller is refused."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from sandkeeper.api.auth import COOKIE
from support.engine_process import Engine
from support.keeper_process import Keeper, keeping

OLD, NEW = "an old key", "sk_" + "b" * 48


class Replicas:
    """Two replicas on one database that are restarted with other keys, one at a time."""

    def __init__(self, stack: ExitStack, folder: Path, database: str, engine: Engine) -> None:
        self._stack = stack
        self._folder = folder
        self._database = database
        self._engine = engine
        self._running: dict[str, Keeper] = {}

    def restart(self, name: str, key: str, others: str = "") -> None:
        if name in self._running:
            self._running[name].stop()
        self._running[name] = self._stack.enter_context(
            keeping(
                self._folder / name,
                *("--database", self._database),
                engine=self._engine,
                operator_key=key,
                other_operator_keys=others,
                files_url=(self._folder / "files").as_uri(),
            )
        )

    @property
    def all(self) -> list[Keeper]:
        return list(self._running.values())

    def accept(self, key: str) -> bool:
        """Return whether every replica takes this key, and what each other signed for it."""
        for one in self.all:
            with one.client(key) as api, one.browser() as browser:
                if api.get("/api/me").status_code != 200:
                    return False
                token = api.post("/api/client-tokens", json={"project": "shop"}).json()["token"]
                login = browser.post("/api/login", json={"key": key}).cookies[COOKIE]
            if not all(self._takes(other, token, login) for other in self.all):
                return False
        return True

    def _takes(self, keeper: Keeper, token: str, login: str) -> bool:
        as_client = {"Authorization": f"Bearer {token}"}
        as_operator = {"Cookie": f"{COOKIE}={login}"}
        answers = [
            httpx.get(f"{keeper.url}/api/me", headers=headers)
            for headers in (as_client, as_operator)
        ]
        return [one.status_code for one in answers] == [200, 200]


@pytest.fixture
def replicas(own_database: str, engine: Engine, tmp_path: Path) -> Replicas:
    with ExitStack() as stack:
        yield Replicas(stack, tmp_path, own_database, engine)


def test_neither_key_fails_on_either_replica_while_it_is_valid(replicas: Replicas) -> None:
    replicas.restart("first", OLD)
    replicas.restart("second", OLD, others=NEW)
    assert replicas.accept(OLD)
    replicas.restart("first", OLD, others=NEW)
    assert replicas.accept(OLD)
    assert replicas.accept(NEW)
    replicas.restart("first", NEW, others=OLD)
    assert replicas.accept(OLD)
    assert replicas.accept(NEW)
    replicas.restart("second", NEW, others=OLD)
    assert replicas.accept(OLD)
    assert replicas.accept(NEW)
    with replicas.all[0].client(OLD) as api:
        of_old = api.post("/api/client-tokens", json={"project": "shop"}).json()["token"]
    replicas.restart("first", NEW)
    assert replicas.accept(NEW)
    first = replicas.all[0]
    for key, status in ((OLD, 401), (of_old, 200)):
        with first.client(key) as api:
            assert api.get("/api/me").status_code == status, "signed with the new key since"

"""`Deps` for tests: any provider, any clock, any settings, no file outside the test's own."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sandkeeper.providers.base import Provider
from sandkeeper.providers.registry import ProviderRegistry
from sandkeeper.services.clock import ProcessClock
from sandkeeper.services.deps import Deps
from sandkeeper.settings import Settings
from sandkeeper.store import Store
from sandkeeper.telemetry import Metrics


class MovableClock(ProcessClock):
    """The real time, and what a test adds to it."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return super().__call__() + self.ahead

    def advance(self, **by: float) -> None:
        self.ahead += timedelta(**by)


def hold_test_key(store: Store) -> None:
    """Let a store encrypt and decrypt without a master key; every replica of a test has this."""
    store.database.keyring.hold({"00000000": bytes(32)}, current="00000000")


NO_FOLDER = Path("/proc/no-folder")
"""Where nothing can be made: these tests leave no file behind."""


def make_deps(
    store: Store,
    *providers: Provider,
    clock: ProcessClock | None = None,
    replica: str = "one",
    **settings: Any,
) -> Deps:
    """Return what the services of one replica need. Files are kept in memory unless told where."""
    if "data" not in settings:
        settings.setdefault("files_url", "memory:///")
    hold_test_key(store)
    return Deps(
        settings=Settings(**{"data": NO_FOLDER, "operator_key": "sk_test", **settings}),
        store=store,
        providers=ProviderRegistry(providers),
        metrics=Metrics(),
        clock=clock or MovableClock(),
        keeper_id=providers[0].keeper,
        replica=replica,
    )

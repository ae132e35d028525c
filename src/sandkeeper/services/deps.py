"""Dependencies of every service, built once per process and passed first to each constructor."""

from __future__ import annotations

from dataclasses import dataclass

from sandkeeper.providers.registry import ProviderRegistry
from sandkeeper.services.clock import ProcessClock
from sandkeeper.settings import Settings
from sandkeeper.store import Store
from sandkeeper.telemetry import Metrics


@dataclass(frozen=True, slots=True)
class Deps:
    """Settings, clock, metrics, database and providers of one keeper process.

    `keeper_id` is the same for all replicas of a keeper; `replica` names this process and is never
    reused. To change a number in a test, pass `settings.model_copy(update=…)`.
    """

    settings: Settings
    store: Store
    providers: ProviderRegistry
    metrics: Metrics
    clock: ProcessClock
    keeper_id: str
    replica: str

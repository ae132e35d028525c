"""The parts of wakes, apps and jobs, put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sandkeeper.domain.decisions.prewarm import PrewarmBudget
from sandkeeper.providers.registry import ProviderRegistry
from sandkeeper.services.files import WorkingFiles
from sandkeeper.services.jobs.credits import CreditHook, HttpCredits, charge_nothing
from sandkeeper.services.jobs.jobs import Jobs
from sandkeeper.services.lifecycle.claims import Claims
from sandkeeper.services.lifecycle.creation import Creation
from sandkeeper.services.lifecycle.lifecycle import Lifecycle
from sandkeeper.services.observe.observations import Observations
from sandkeeper.services.wake.app import AppRunner
from sandkeeper.services.wake.app_monitor import AppMonitor
from sandkeeper.services.wake.executor import WakeExecutor
from sandkeeper.services.wake.file_restore import WakeFileRestorer
from sandkeeper.services.wake.prewarm import PrewarmService
from sandkeeper.services.wake.wakes import Wakes
from sandkeeper.settings import Settings
from sandkeeper.store import Store
from sandkeeper.telemetry import Metrics


@dataclass(frozen=True, slots=True)
class WakeServices:
    """What brings sandboxes back, and what rests on it."""

    apps: AppRunner
    watch: AppMonitor
    wakes: Wakes
    jobs: Jobs
    warming: PrewarmService

    async def close(self) -> None:
        """Leave what is under way to the next process."""
        await self.jobs.close()
        await self.wakes.close()


def make_wake_services(
    settings: Settings,
    *,
    store: Store,
    regions: ProviderRegistry,
    claims: Claims,
    observations: Observations,
    creation: Creation,
    lifecycle: Lifecycle,
    files: WorkingFiles,
    metrics: Metrics,
    clock: Callable[[], datetime],
    credit: CreditHook | None = None,
) -> WakeServices:
    """The services that the settings describe; a new sandbox's app is started from now on."""
    apps = AppRunner(regions=regions)
    receipts = WakeFileRestorer(files=files, metrics=metrics)
    ladder = WakeExecutor(
        store=store,
        regions=regions,
        observations=observations,
        creation=creation,
        receipts=receipts,
        apps=apps,
        clock=clock,
        app_start_timeout_s=settings.app_start_timeout_s,
    )
    wakes = Wakes(
        store=store,
        claims=claims,
        ladder=ladder,
        receipts=receipts,
        metrics=metrics,
        clock=clock,
        pause_s=settings.wake_retry_s,
        lease_s=settings.wake_lease_s,
    )
    creation.after_create = wakes.start_new
    jobs = Jobs(
        store=store,
        creation=creation,
        lifecycle=lifecycle,
        wakes=wakes,
        files=files,
        credit=credit or _find_credit(settings),
        clock=clock,
    )
    watch = AppMonitor(store=store, apps=apps, wakes=wakes, clock=clock)
    warming = PrewarmService(
        store=store,
        wakes=wakes,
        regions=regions,
        budget=_find_budget(settings),
        metrics=metrics,
        clock=clock,
    )
    return WakeServices(apps=apps, watch=watch, wakes=wakes, jobs=jobs, warming=warming)


def _find_budget(settings: Settings) -> PrewarmBudget:
    return PrewarmBudget(
        at_once=settings.warm_ups_at_once,
        per_hour=settings.warm_ups_per_hour,
        per_owner_hour=settings.warm_ups_per_owner_hour,
    )


def _find_credit(settings: Settings) -> CreditHook:
    if not settings.credit_url:
        return charge_nothing
    token = settings.credit_token
    return HttpCredits(settings.credit_url, token=token.get_secret_value() if token else None)

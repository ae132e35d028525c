"""Build every service of a keeper once and in order, for the application, tests and bench."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.providers.base import Provider
from sandkeeper.services.access.api_keys import ApiKeyRegistry
from sandkeeper.services.access.audit import AuditLog
from sandkeeper.services.access.tokens import TokenRegistry
from sandkeeper.services.activity.buffer import ActivityBuffer
from sandkeeper.services.activity.feed import Feed
from sandkeeper.services.activity.lost_activity import LostActivity
from sandkeeper.services.capacity.line import Line
from sandkeeper.services.capacity.quotas import Quotas
from sandkeeper.services.capacity.slots import Slots
from sandkeeper.services.costs.activity_history import ActivityHistory
from sandkeeper.services.costs.budgets import Budgets
from sandkeeper.services.costs.reports import CostReports
from sandkeeper.services.costs.rollup import CostRollUp
from sandkeeper.services.costs.simulations import Simulations
from sandkeeper.services.deps import Deps
from sandkeeper.services.encryption.reencryption import Reencryption
from sandkeeper.services.files.blobs import open_blobs
from sandkeeper.services.files.capture import FileCapture
from sandkeeper.services.files.file_api import FileApi
from sandkeeper.services.files.folder_watches import FolderWatches
from sandkeeper.services.files.history.file_history import FileHistory
from sandkeeper.services.files.history.version_restore import VersionRestore
from sandkeeper.services.files.retention import FileRetention
from sandkeeper.services.files.sealed_packs import SealedPacks
from sandkeeper.services.files.versions import FileVersions
from sandkeeper.services.gateway.defaults import make_preview_defaults
from sandkeeper.services.gateway.domains import PreviewDomains
from sandkeeper.services.gateway.links import ShareLinks
from sandkeeper.services.gateway.names import PreviewNames
from sandkeeper.services.gateway.request_log import RequestLog
from sandkeeper.services.gateway.urls import PreviewUrls
from sandkeeper.services.jobs.credits import CreditHook, make_credit_hook
from sandkeeper.services.jobs.jobs import Jobs
from sandkeeper.services.lifecycle.before_stop import BeforePause, nothing_before_pause
from sandkeeper.services.lifecycle.budget_pauses import BudgetPauses
from sandkeeper.services.lifecycle.claims import Claims
from sandkeeper.services.lifecycle.creation import Creation
from sandkeeper.services.lifecycle.end_instead import EndInstead
from sandkeeper.services.lifecycle.eviction import Eviction
from sandkeeper.services.lifecycle.heartbeat import Heartbeat
from sandkeeper.services.lifecycle.instances import InstanceFactory
from sandkeeper.services.lifecycle.lifecycle import Lifecycle
from sandkeeper.services.lifecycle.project_fork import ProjectFork
from sandkeeper.services.lifecycle.recovery import CrashRecovery
from sandkeeper.services.lifecycle.slot_settlement import SlotSettlement
from sandkeeper.services.lifecycle.verification import RETRIES_S, Verification
from sandkeeper.services.monitoring.clock_monitor import ClockMonitor
from sandkeeper.services.monitoring.explanation import Explanations
from sandkeeper.services.monitoring.feature_flags import FeatureFlag, FeatureFlags
from sandkeeper.services.monitoring.health import HealthMonitor
from sandkeeper.services.monitoring.metrics_history import MetricsHistory
from sandkeeper.services.monitoring.process_metrics import ProcessMetrics
from sandkeeper.services.monitoring.provider_features import ProviderFeatures
from sandkeeper.services.monitoring.provider_health import ProviderHealth
from sandkeeper.services.monitoring.readiness import DatabaseProbe
from sandkeeper.services.monitoring.retention import RecordRetention
from sandkeeper.services.observe.adoption import Adoption
from sandkeeper.services.observe.event_polling import EventPolling
from sandkeeper.services.observe.leaks import LeakHandler
from sandkeeper.services.observe.observations import Observations
from sandkeeper.services.observe.reconciliation import Reconciliation
from sandkeeper.services.observe.region_leases import RegionLeases
from sandkeeper.services.observe.webhook_registration import WebhookRegistration
from sandkeeper.services.observe.webhooks import WebhookReceiver
from sandkeeper.services.sessions.checked_leases import CheckedLeases
from sandkeeper.services.sessions.cleanup import SessionCleaner
from sandkeeper.services.sessions.desktop_stream import DesktopStreams
from sandkeeper.services.sessions.health_checks import HealthChecker
from sandkeeper.services.sessions.leases import Leases
from sandkeeper.services.sessions.pools import Pools
from sandkeeper.services.sessions.sdk_handles import SdkHandleCache
from sandkeeper.services.sessions.sessions import Sessions
from sandkeeper.services.sessions.stats import SessionStats
from sandkeeper.services.sessions.supplier import SandboxSupplier
from sandkeeper.services.sessions.usage_history import UsageHistories
from sandkeeper.services.terminal.terminals import Terminals
from sandkeeper.services.wake.after_resume import AfterResume
from sandkeeper.services.wake.app import AppRunner
from sandkeeper.services.wake.app_monitor import AppMonitor
from sandkeeper.services.wake.executor import WakeExecutor
from sandkeeper.services.wake.file_restore import WakeFileRestorer
from sandkeeper.services.wake.prewarm import PrewarmService
from sandkeeper.services.wake.progress import OnStep, nothing_on_step
from sandkeeper.services.wake.wakes import Wakes
from sandkeeper.settings import Settings

if TYPE_CHECKING:
    from sandkeeper.services.access.identity_provider import IdentityProvider

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Overrides:
    """Parts that a host application or a test replaces."""

    credit: CreditHook | None = None
    """The host application's own hook, instead of the URL in the settings."""
    before_pause: BeforePause | None = None
    """Hook before a pause, instead of the capture of files."""
    on_step: OnStep = nothing_on_step
    """Hook before each step of a wake."""
    verify_retries_s: Sequence[float] = RETRIES_S
    """Delays between attempts to ask the provider about one sandbox."""


class Services:
    """The services of one keeper process.

    Constructors only build: nothing is read, written or started before a method is called.
    """

    def __init__(self, deps: Deps, overrides: Overrides | None = None) -> None:
        overrides = overrides or Overrides()
        self.deps = deps
        self._observe(deps)
        self._keep_files(deps)
        self._manage_lifecycle(deps, overrides)
        self._wake(deps, overrides)
        self._serve_sessions(deps)
        self.terminals = Terminals(deps, self.activities, self.audit, self.wakes)
        self.jobs = Jobs(
            deps,
            self.creation,
            self.lifecycle,
            self.wakes,
            self.files,
            overrides.credit or make_credit_hook(deps.settings),
        )

    def _observe(self, deps: Deps) -> None:
        settings = deps.settings
        self.feed = Feed(store=deps.store, replica=deps.replica)
        deps.metrics.feed_age.set_function(lambda: self.feed.age_s)
        self.feature_flags = FeatureFlags(deps)
        self.provider_features = ProviderFeatures(deps)
        self.tokens = TokenRegistry(deps)
        self.api_keys = ApiKeyRegistry(deps)
        self.audit = AuditLog(deps)
        self.preview_urls = PreviewUrls.from_settings(settings)
        self.preview_names = PreviewNames(deps)
        self.share_links = ShareLinks(deps, self.tokens, self.audit)
        self.preview_domains = PreviewDomains(deps, self.preview_urls, self.audit)
        self.request_log = RequestLog(deps)
        self.preview_defaults = make_preview_defaults(settings, self.preview_urls)
        self.identity_provider = _make_identity_provider(settings)
        self.provider_health = ProviderHealth(deps)
        self.metrics_history = MetricsHistory(deps, self.provider_health)

        def expects_webhooks() -> bool:
            return bool(settings.public_url) and self.feature_flags.is_on(FeatureFlag.WEBHOOKS)

        deps.metrics.webhooks_expected.set_function(expects_webhooks)
        self.clock_monitor = ClockMonitor(deps)
        self.health = HealthMonitor(
            clock=deps.clock,
            count_stale=self.metrics_history.count_stale,
            expects_webhooks=expects_webhooks,
            enforces=lambda: self.feature_flags.is_on(FeatureFlag.ENFORCER),
            read_skew_s=lambda: self.clock_monitor.skew_s,
        )
        self.activities = ActivityBuffer(sandboxes=deps.store.sandboxes, clock=deps.clock)
        self.observations = Observations(deps)
        self.webhook_registration = WebhookRegistration(deps, self.provider_features)
        self.adoption = Adoption(deps)
        self.webhooks = WebhookReceiver(
            deps, self.observations, self.webhook_registration, self.adoption
        )
        self.event_polling = EventPolling(deps, self.observations, self.provider_features)
        self.heartbeat = Heartbeat(deps, self.activities)
        self.reconciliation = Reconciliation(
            deps,
            self.observations,
            self.adoption,
            LeakHandler(deps),
            RegionLeases(deps, self.heartbeat.guard),
        )
        self.provider_health.compare_with(self._compare)
        self.cost_roll_up = CostRollUp(deps)
        self.cost_reports = CostReports(deps)
        self.budgets = Budgets(deps, self.cost_reports)
        self.activity_history = ActivityHistory(deps)
        self.simulations = Simulations(deps, self.cost_reports)
        self.retention = RecordRetention(deps)
        self.database_probe = DatabaseProbe(deps)
        self.process_metrics = ProcessMetrics(deps)

    async def _compare(self, provider: Provider) -> None:
        if self.feature_flags.is_on(FeatureFlag.RECONCILER):
            await self.reconciliation.compare_since(provider, self.deps.clock())

    def _keep_files(self, deps: Deps) -> None:
        blobs = self.blobs = open_blobs(deps.settings.files_url, deps.settings.data / "files")
        packs = SealedPacks(deps, blobs)
        versions = self.file_versions = FileVersions(deps, packs)
        self.files = FileCapture(deps, versions)
        self.file_api = FileApi(deps, versions, self.files)
        self.file_history = FileHistory(deps, versions, self.files)
        self.version_restore = VersionRestore(deps, versions, self.files)
        self.folder_watches = FolderWatches(deps)
        self.explanations = Explanations(
            deps, self.activities, self.provider_health, self.folder_watches.explain
        )
        self.file_retention = FileRetention(deps, packs)
        self.reencryption = Reencryption(deps, packs)

    def _manage_lifecycle(self, deps: Deps, overrides: Overrides) -> None:
        capture = self.files.capture_before_pause
        default = capture if deps.settings.keep_files else nothing_before_pause
        self.lost_activity = LostActivity(deps)
        self.quotas = Quotas(deps)
        self.slots = Slots(deps, self.quotas)
        self.claims = Claims(deps, self.heartbeat)
        self.verification = Verification(
            deps, self.observations, retries_s=overrides.verify_retries_s
        )
        self.recovery = CrashRecovery(
            deps,
            self.heartbeat,
            self.claims,
            self.verification,
            self.feed,
            self.lost_activity,
        )
        self.lifecycle = Lifecycle(
            deps,
            self.claims,
            self.observations,
            self.activities,
            self.health,
            self.slots,
            before_pause=overrides.before_pause or default,
        )
        self.budget_pauses = BudgetPauses(deps, self.claims, self.lifecycle, self.budgets)
        eviction = Eviction(deps, self.claims, self.lifecycle)
        self.line = Line(deps, self.slots, self.quotas, eviction.make_room)
        self.feed.subscribe(self.line.on_events)
        self.slot_settlement = SlotSettlement(deps, self.slots, self.verification)
        self.end_instead = EndInstead(
            deps, self.claims, self.lifecycle, self.files, self.provider_features
        )

    def _wake(self, deps: Deps, overrides: Overrides) -> None:
        self.apps = AppRunner(deps)
        instances = InstanceFactory(deps, self.slots)
        restorer = WakeFileRestorer(deps, self.files)
        executor = WakeExecutor(
            deps, self.claims, self.observations, instances, self.slots, restorer, self.apps
        )
        self.after_resume = AfterResume(deps, self.claims, self.files, self.apps)
        self.wakes = Wakes(
            deps,
            self.claims,
            executor,
            restorer,
            self.after_resume,
            self.line,
            on_step=overrides.on_step,
        )
        self.creation = Creation(
            deps,
            self.claims,
            self.observations,
            instances,
            self.wakes,
            self.budgets,
            self.line,
        )
        self.project_fork = ProjectFork(deps, self.file_versions, self.file_history, self.creation)
        self.app_monitor = AppMonitor(deps, self.apps, self.wakes)
        self.prewarms = PrewarmService(deps, self.wakes)

    def _serve_sessions(self, deps: Deps) -> None:
        sdk_handles = SdkHandleCache(deps)
        usage_histories = UsageHistories(deps)
        self.session_stats = SessionStats(deps)
        self.health_checks = HealthChecker(
            deps, sdk_handles, on_failure=self.session_stats.count_failure
        )
        self.leases = Leases(deps, self.activities, self.feed)
        self.session_cleaner = SessionCleaner(
            deps, self.lifecycle, self.session_stats, usage_histories
        )
        self.pools = Pools(
            deps, self.creation, self.lifecycle, HealthChecker(deps, sdk_handles), self.feed
        )
        supplier = SandboxSupplier(
            deps,
            self.creation,
            self.pools,
            self.wakes,
            self.verification,
            self.lifecycle,
            self.session_cleaner,
            usage_histories,
        )
        self.sessions = Sessions(
            deps,
            supplier,
            CheckedLeases(self.leases, self.health_checks, self.session_stats),
            self.leases,
            sdk_handles,
            self.lifecycle,
            self.session_cleaner,
            self.activities,
        )
        self.desktop_streams = DesktopStreams(deps, self.sessions, sdk_handles)

    async def close(self) -> None:
        """Flush buffered activity and leave work in progress to the next process."""
        try:
            await self.activities.flush()
        except SandkeeperError as error:
            log.warning("activity_lost_at_stop", error=str(error), waiting=self.activities.waiting)
        await self.verification.close()
        await self.database_probe.close()
        await self.health_checks.close()
        await self.jobs.close()
        await self.line.close()
        await self.terminals.close()
        await self.wakes.close()
        await self.creation.wait()
        for provider in self.deps.providers:
            with contextlib.suppress(SandkeeperError):
                await provider.close()


def _make_identity_provider(settings: Settings) -> IdentityProvider | None:
    """Return what people sign in with; its libraries are loaded only where it is used."""
    if not settings.oidc_issuer:
        return None
    from sandkeeper.services.access.identity_provider import IdentityProvider  # noqa: PLC0415

    return IdentityProvider(settings)

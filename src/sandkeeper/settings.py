"""Every setting: its name, unit, default and one sentence.

Precedence: a command's flag, then ``SANDKEEPER_*`` in the environment, then ``./sandkeeper.toml``,
then the user's own file, then the default. E2B's variables (``E2B_API_KEY``, ``E2B_API_URL``,
``E2B_SANDBOX_URL``, ``E2B_DOMAIN``) keep their own names and are read unchanged, and so are those
of sessions (``SessionVariables``).
"""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from sandkeeper.access_settings import AccessSettings, CommaSeparated
from sandkeeper.common.user_folders import find_settings_files
from sandkeeper.domain.costs.prices import Price
from sandkeeper.gateway_settings import GatewaySettings
from sandkeeper.session_variables import SessionVariables
from sandkeeper.storage_settings import StorageSettings


def _read_limits(given: object) -> object:
    """Return the limits by region; a number alone is the limit of each."""
    is_number = isinstance(given, int) or (isinstance(given, str) and given.isdecimal())
    return {"*": given} if is_number else given


RunningLimits = Annotated[dict[str, Annotated[int, Field(ge=0)]], BeforeValidator(_read_limits)]


class Region(BaseModel):
    """One provider with its own breaker and limits.

    A missing address or key comes from E2B's own variables, a missing limit from the setting.
    """

    api_key: SecretStr | None = None
    api_url: str | None = None
    sandbox_url: str | None = None
    domain: str | None = None
    preview_url: str | None = None
    concurrency: int | None = Field(default=None, ge=1)
    creations_per_s: float | None = Field(default=None, gt=0)


class PriceSetting(BaseModel):
    """A price of your own, from a day (UTC) on, in dollars; `*` is any provider or region.

    `vcpu_s` and `gib_s` are for one second of a processor and of a GiB of memory while running,
    `paused_gib_month` for a GiB of memory of a paused sandbox and `kept_gib_month` for a GiB of
    saved files, for 30 days.
    """

    model_config = ConfigDict(extra="forbid")

    provider: str = Field(default="e2b", min_length=1)
    region: str = Field(default="*", min_length=1)
    since: date = date(2023, 1, 1)
    vcpu_s: Decimal = Field(default=Decimal(0), ge=0, le=1000)
    gib_s: Decimal = Field(default=Decimal(0), ge=0, le=1000)
    paused_gib_month: Decimal = Field(default=Decimal(0), ge=0, le=1000)
    kept_gib_month: Decimal = Field(default=Decimal(0), ge=0, le=1000)

    def to_price(self) -> Price:
        return Price(**self.model_dump())


class Settings(StorageSettings, AccessSettings, GatewaySettings, BaseSettings):
    """All settings of the keeper; the engine has only its flags."""

    model_config = SettingsConfigDict(env_prefix="SANDKEEPER_", extra="ignore", frozen=True)

    host: str = Field(default="127.0.0.1", description="Address that the server listens on.")
    port: int = Field(
        default=7420, ge=0, le=65535, description="Port of the API and the dashboard."
    )
    engine_port: int = Field(
        default=7421,
        ge=0,
        le=65535,
        description="Port of the local engine that `sandkeeper up` starts.",
    )
    public_metrics: bool = Field(
        default=False,
        description="Whether `/metrics` and the details of `/readyz` need no key. They need none "
        "while `host` is a loopback address, for requests to a name of this machine (`127.0.0.1`, "
        "`localhost`, `*.localhost`) or to the host of `public_url`.",
    )
    public_url: str = Field(
        default="",
        description="URL at which the provider and browsers reach this server. If set, webhooks "
        "are registered at start, and the dashboard needs no host name of its own.",
    )
    allowed_origins: CommaSeparated = Field(
        default_factory=list,
        description="Comma-separated origins whose pages may call the API with a client token.",
    )
    log_format: Literal["auto", "json", "pretty"] = Field(
        default="auto",
        description="Format of log lines: `json`, `pretty`, or `auto` (pretty on a terminal only).",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe level to log."
    )

    idle_timeout_s: float = Field(
        default=180,
        gt=0,
        description="Seconds without activity before a running sandbox is put to sleep.",
    )
    idle: Literal["fixed", "adaptive"] = Field(
        default="fixed",
        description="Idle timeout of new sandboxes: `fixed`, or `adaptive`, learned from each "
        "one's own gaps within the two bounds.",
    )
    idle_timeout_min_s: float = Field(
        default=60, gt=0, description="Minimum of a learned idle timeout, in seconds."
    )
    idle_timeout_max_s: float = Field(
        default=1800, gt=0, description="Maximum of a learned idle timeout, in seconds."
    )
    lifecycle_timeout_s: float = Field(
        default=3600, gt=0, description="Maximum duration of one run of a sandbox, in seconds."
    )
    newborn_grace_s: float = Field(
        default=30,
        ge=0,
        description="Seconds after creation during which a sandbox is never put to sleep.",
    )
    woken_grace_s: float = Field(
        default=30,
        ge=0,
        description="Seconds after a wake during which a sandbox is never put to sleep.",
    )
    warm_grace_s: float = Field(
        default=60,
        gt=0,
        description="Seconds after a warm-up before an unused sandbox is put to sleep again.",
    )
    work_max_s: float = Field(
        default=3600,
        ge=0,
        description="Seconds for which one command inside a sandbox, or its busy processor, counts "
        "as work and puts off the pause; 0 does not look.",
    )
    sweep_period_s: float = Field(
        default=30,
        gt=0,
        description="Seconds between two idle sweeps, unless a deadline requires one earlier.",
    )
    sweep_batch: int = Field(
        default=100, ge=1, description="Sandboxes that one sweep claims at a time."
    )
    # With 200, a thousand sandboxes that are due together at a provider of 200 ms are asleep within
    # 2 s. Higher holds more claims in a process that may die, and leaves fewer of the requests to a
    # provider (`provider_concurrency`) to users; lower lets the last ones run on.
    sweep_concurrency: int = Field(default=200, ge=1, description="Concurrent pauses of one sweep.")
    lease_s: float = Field(
        default=60,
        gt=0,
        description="Seconds for which a claim on a sandbox stays valid if its holder dies.",
    )
    reconcile_period_s: float = Field(
        default=60, gt=0, description="Seconds between two comparisons with the provider's list."
    )
    catch_up_period_s: float = Field(
        default=20, gt=0, description="Seconds between two reads of the provider's events."
    )
    flush_period_s: float = Field(
        default=1, gt=0, description="Seconds for which activity is buffered before it is written."
    )
    prune_period_s: float = Field(
        default=3600,
        gt=0,
        description="Seconds between two removals of data past its retention time.",
    )
    retention_ended_s: float = Field(
        default=30 * 86400, gt=0, description="Seconds to keep the record of an ended sandbox."
    )
    retention_events_s: float = Field(
        default=30 * 86400, gt=0, description="Seconds to keep events and deliveries."
    )
    session_template: str = Field(
        default="code-interpreter-v1",
        min_length=1,
        description="Template of execution sessions that name none.",
    )
    session_idle_timeout_s: float = Field(
        default=600, gt=0, description="Seconds without use before an execution session ends."
    )
    code_timeout_s: float = Field(
        default=300,
        gt=0,
        description="Seconds for which code of a session may run; reported to the caller.",
    )
    desktop_template: str = Field(
        default="desktop", min_length=1, description="Template of desktop sessions that name none."
    )
    desktop_idle_timeout_s: float = Field(
        default=900, gt=0, description="Seconds without use before a desktop session ends."
    )
    desktop_lifetime_s: float = Field(
        default=900,
        gt=0,
        description="Initial lifetime of a desktop sandbox, in seconds; each use moves its end.",
    )
    session_idle: Literal["fixed", "adaptive"] = Field(
        default="fixed",
        description="Idle timeout of new sessions: `fixed`, or `adaptive`, learned within "
        "`idle_timeout_min_s` and `idle_timeout_max_s`.",
    )
    session_on_idle: Literal["kill", "pause"] = Field(
        default="kill",
        description="What happens to an idle session's sandbox: `kill` ends it, `pause` lets it "
        "sleep until it is acquired again.",
    )
    session_asleep_s: float = Field(
        default=7 * 86400, gt=0, description="Seconds to keep a sleeping session."
    )
    session_cleanup_period_s: float = Field(
        default=60, gt=0, description="Seconds between two clean-ups of idle sessions."
    )
    session_lease_s: float = Field(
        default=60,
        gt=0,
        le=3600,
        description="Seconds for which a lease on a sandbox stays valid unless it is renewed.",
    )
    session_check_timeout_s: float = Field(
        default=5, gt=0, description="Seconds before a health check counts as failed."
    )
    stream_ready_timeout_ms: int = Field(
        default=3000,
        ge=100,
        le=120_000,
        description="Milliseconds within which a desktop's live view must be ready.",
    )
    sessions_max: int = Field(
        default=0, ge=0, description="Maximum number of open sessions; 0 means no limit."
    )
    pools: dict[str, int] = Field(
        default_factory=dict,
        description="Warm sandboxes by template, as JSON in the environment; a value set at run "
        "time wins.",
    )
    pool_period_s: float = Field(
        default=30, gt=0, description="Seconds between two checks of the warm pools."
    )
    pool_age_max_s: float = Field(
        default=1800, gt=0, le=3000, description="Seconds before an unused warm sandbox is ended."
    )
    pool_failures_max: int = Field(
        default=5,
        ge=1,
        description="Consecutive failures before a pool stops until it is set again.",
    )
    # A crawler that opens a landing page must not wake the fleet: a request beyond these limits is
    # answered and not carried out. Lower makes more users wait for a wake.
    warm_ups_at_once: int = Field(
        default=10,
        ge=0,
        description="Maximum number of warmed-up sandboxes that are still unused; 0 allows none.",
    )
    warm_ups_per_hour: int = Field(
        default=120, ge=0, description="Maximum warm-ups of the whole fleet per hour."
    )
    warm_ups_per_owner_hour: int = Field(
        default=6, ge=0, description="Maximum warm-ups of one owner's sandbox per hour."
    )
    wake_retry_s: float = Field(
        default=5, ge=0, description="Seconds between the two attempts of a wake."
    )
    wake_lease_s: float = Field(
        default=15,
        ge=1,
        description="Seconds before another process continues a wake whose driver died.",
    )
    app_start_timeout_s: float = Field(
        default=60, gt=0, description="Seconds within which a started app must answer on its port."
    )
    app_watch_period_s: float = Field(
        default=10, gt=0, description="Seconds between two checks of the apps of running sandboxes."
    )
    credit_url: str = Field(
        default="",
        description="URL of the host application that charges a build credit for a rebuild; "
        "empty means that credits are not counted.",
    )
    credit_token: SecretStr | None = Field(
        default=None, description="Bearer token sent to `credit_url`."
    )
    leaks_removed_per_hour: int = Field(
        default=20, ge=0, description="Maximum number of leaked instances to remove per hour."
    )
    adopt_by_metadata: str = Field(
        default="",
        description="Name of the metadata that holds a project's id: unknown instances with it are "
        "adopted as that project's sandbox. Empty adopts none.",
    )
    tenant_metadata: str = Field(
        default="",
        description="Name of the metadata that holds the tenant of a new sandbox for which none is "
        "named otherwise. Empty reads none.",
    )
    prices: list[PriceSetting] = Field(
        default_factory=list,
        description="Your own prices, beside E2B's published ones: a list of objects with "
        "`provider` (`e2b`, or `engine` for the local one), `region`, `since`, `vcpu_s`, `gib_s`, "
        "`paused_gib_month` and `kept_gib_month`.",
    )
    stale_after_s: float = Field(
        default=300,
        gt=0,
        description="Age in seconds at which a read of an unverified record starts its "
        "verification in the background.",
    )

    regions: dict[str, Region] = Field(
        default_factory=dict,
        description="Providers by region, as JSON in the environment; the first is the default. "
        "Empty means the provider that E2B's own variables name.",
    )
    # More than a sweep uses, so that a user's wake never queues behind it. Higher gains nothing and
    # looks like an attack; lower makes a slow provider delay the whole fleet.
    max_running: RunningLimits = Field(
        default_factory=dict,
        description="Sandboxes that may run at a time, as a number, or as JSON by region "
        '(`{"*": 20, "eu": 50}`), template (`{"*/desktop": 5}`) or both (`{"eu/desktop": 2}`). '
        "Empty means the limit that the provider names when it refuses one more.",
    )
    capacity_wait_s: float = Field(
        default=60,
        ge=0,
        le=600,
        description="Seconds for which a creation or a wake waits in line for a free slot.",
    )
    provider_concurrency: int = Field(
        default=256, ge=1, description="Maximum concurrent requests to each provider."
    )
    creations_per_s: float = Field(
        default=5,
        gt=0,
        description="Maximum sandboxes created per second in each region, as its plan allows.",
    )
    request_timeout_s: float = Field(
        default=30, gt=0, description="Timeout of a request to the provider, in seconds."
    )
    breaker_failures: int = Field(
        default=5, ge=1, description="Consecutive failures before requests to the provider stop."
    )
    breaker_open_s: float = Field(
        default=30, gt=0, description="Seconds for which a failing provider gets no requests."
    )

    enforcer: bool = Field(default=True, description="Whether to put idle sandboxes to sleep.")
    reconciler: bool = Field(
        default=True, description="Whether to compare records with the provider's list."
    )
    catch_up: bool = Field(
        default=True,
        description="Whether to read the provider's events in addition to the webhooks.",
    )
    webhooks: bool = Field(default=True, description="Whether to accept webhook deliveries.")
    sse: bool = Field(
        default=True, description="Whether to serve live streams; without them clients poll."
    )
    inngest: bool = Field(
        default=False,
        description="Whether to offer the idle enforcer as an Inngest function at "
        "`/api/inngest`; needs the extra of the same name.",
    )
    legacy_verify: bool = Field(
        default=False, description="Whether to verify at the provider before a status read."
    )

    poll_running_ms: int = Field(
        default=30_000,
        ge=0,
        description="Milliseconds between a client's polls while the sandbox is running.",
    )
    poll_starting_ms: int = Field(
        default=5_000,
        ge=0,
        description="Milliseconds between a client's polls while the sandbox is starting.",
    )
    poll_waking_ms: int = Field(
        default=2_000,
        ge=0,
        description="Milliseconds between a client's polls while the sandbox is waking.",
    )
    sse_ping_s: float = Field(
        default=15, gt=0, description="Seconds between two pings on a live stream."
    )
    sse_connections_max: int = Field(
        default=10_000, ge=0, description="Maximum number of live streams that one process serves."
    )
    status_cache_max: int = Field(
        default=200_000,
        ge=1,
        description="Maximum number of encoded status answers in one process's cache.",
    )

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.idle_timeout_min_s > self.idle_timeout_max_s:
            raise ValueError("idle_timeout_min_s is greater than idle_timeout_max_s.")
        self._check_regions()
        self.check_sign_in(self.public_url)
        return self

    def _check_regions(self) -> None:
        known = {"*", *(self.regions or ("default",))}
        for key in self.max_running:
            region, mark, template = key.partition("/")
            if region not in known or (mark and not template):
                raise ValueError(
                    f"max_running names {key!r}; a key is a region ({', '.join(sorted(known))}), "
                    "or a region, a slash and a template."
                )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  The base class names it.
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  The base class names it.
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return flags, environment, this folder's file, the user's file: the first value wins."""
        return (
            init_settings,
            env_settings,
            SessionVariables(settings_cls),
            *(TomlConfigSettingsSource(settings_cls, one) for one in find_settings_files()),
        )


def read_settings(**flags: object) -> Settings:
    """Return the effective settings; a flag that is None was not given."""
    given = {name: value for name, value in flags.items() if value is not None}
    return Settings(**given)  # type: ignore[arg-type]  # Pydantic checks each flag's type.

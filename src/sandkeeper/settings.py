"""Every setting: its name, unit, default and one sentence.

Precedence: a command's flag, then ``SANDKEEPER_*`` in the environment, then ``./sandkeeper.toml``,
then the user's own file, then the default. E2B's variables (``E2B_API_KEY``, ``E2B_API_URL``,
``E2B_SANDBOX_URL``, ``E2B_DOMAIN``) keep their own names and are read untouched.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, SecretStr, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)


def user_data_folder() -> Path:
    """Where a user's data lies when nothing else is said."""
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "sandkeeper"


def user_settings_file() -> Path:
    """The user's own settings, below the ones of the current folder."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "sandkeeper" / "sandkeeper.toml"


class Region(BaseModel):
    """One provider with its own breaker and limits.

    An address or key that is not given comes from E2B's own variables, a limit from the setting.
    """

    api_key: SecretStr | None = None
    api_url: str | None = None
    sandbox_url: str | None = None
    domain: str | None = None
    preview_url: str | None = None
    concurrency: int | None = Field(default=None, ge=1)
    creations_per_s: float | None = Field(default=None, gt=0)


CommaSeparated = Annotated[list[str], NoDecode]


class Settings(BaseSettings):
    """All settings of the keeper; the engine has only its flags."""

    model_config = SettingsConfigDict(env_prefix="SANDKEEPER_", extra="ignore", frozen=True)

    data: Path = Field(
        default_factory=user_data_folder,
        description="Folder that holds keys, the embedded database, kept files and the engine's "
        "data.",
    )
    database: str = Field(
        default="",
        description="Database URL, `sqlite:///path` or `postgresql://…`; empty means an SQLite "
        "file in the data folder.",
    )
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
    public_url: str = Field(
        default="",
        description="URL under which the provider and browsers reach this server; when set, "
        "webhooks are registered at start, and the dashboard needs no host name of its own.",
    )
    allowed_origins: CommaSeparated = Field(
        default_factory=list,
        description="Origins, comma-separated, whose pages may call the API with a client token.",
    )
    log_format: Literal["auto", "json", "pretty"] = Field(
        default="auto", description="Log lines: JSON, pretty, or pretty on a terminal only (auto)."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least severe level that is logged."
    )

    operator_key: SecretStr | None = Field(
        default=None,
        description="Key of the operator; empty means the one in `operator.key` of the data "
        "folder, made at first start.",
    )
    viewer_keys: Annotated[list[SecretStr], NoDecode] = Field(
        default_factory=list, description="Keys, comma-separated, that may look and not act."
    )
    client_token_ttl_s: int = Field(
        default=3600, ge=1, description="Seconds for which a client token lives by default."
    )
    client_token_ttl_max_s: int = Field(
        default=86400, ge=1, description="Seconds for which a client token may live at most."
    )
    login_ttl_s: int = Field(
        default=7 * 86400, ge=60, description="Seconds for which a login to the dashboard lasts."
    )

    idle_timeout_s: float = Field(
        default=180,
        gt=0,
        description="Seconds without activity after which a running sandbox is put to sleep.",
    )
    idle: Literal["fixed", "adaptive"] = Field(
        default="fixed",
        description="Whether the idle timeout of new sandboxes is fixed, or learned from each "
        "one's own gaps within the two bounds.",
    )
    idle_timeout_min_s: float = Field(
        default=60, gt=0, description="Seconds that a learned idle timeout has at least."
    )
    idle_timeout_max_s: float = Field(
        default=1800, gt=0, description="Seconds that a learned idle timeout has at most."
    )
    lifecycle_timeout_s: float = Field(
        default=3600, gt=0, description="Seconds for which a sandbox may run in one go."
    )
    newborn_grace_s: float = Field(
        default=30,
        ge=0,
        description="Seconds after creation in which a sandbox is never put to sleep.",
    )
    woken_grace_s: float = Field(
        default=30,
        ge=0,
        description="Seconds after a wake in which a sandbox is never put to sleep.",
    )
    warm_grace_s: float = Field(
        default=60,
        gt=0,
        description="Seconds after a warm-up after which a sandbox that nobody used sleeps again.",
    )
    sweep_period_s: float = Field(
        default=30,
        gt=0,
        description="Seconds between two idle sweeps when no deadline asks for one earlier.",
    )
    sweep_batch: int = Field(
        default=100, ge=1, description="Sandboxes that one sweep claims at a time."
    )
    # A thousand sandboxes that fall due together at a provider of 200 ms are asleep within 5 s from
    # 40 on. More holds more claims in a process that may die; fewer lets the last ones run on.
    sweep_concurrency: int = Field(
        default=100, ge=1, description="Pauses that one sweep has under way at a time."
    )
    lease_s: float = Field(
        default=60,
        gt=0,
        description="Seconds for which a claim on a sandbox holds if its holder dies.",
    )
    reconcile_period_s: float = Field(
        default=60, gt=0, description="Seconds between two comparisons with the provider's list."
    )
    catch_up_period_s: float = Field(
        default=20, gt=0, description="Seconds between two reads of the provider's events."
    )
    flush_period_s: float = Field(
        default=1,
        gt=0,
        description="Seconds for which activity is gathered before it is written.",
    )
    prune_period_s: float = Field(
        default=3600, gt=0, description="Seconds between two removals of what is past retention."
    )
    retention_ended_s: float = Field(
        default=30 * 86400,
        gt=0,
        description="Seconds for which the record of an ended sandbox is kept.",
    )
    retention_events_s: float = Field(
        default=30 * 86400, gt=0, description="Seconds for which events and deliveries are kept."
    )
    files_url: str = Field(
        default="",
        description="Where the contents of kept files lie, `s3://bucket/prefix` or `file:///path`; "
        "empty means the folder `files` in the data folder. A bucket's key, region and endpoint "
        "come from its own variables, such as `AWS_ACCESS_KEY_ID` and `AWS_ENDPOINT_URL`.",
    )
    keep_files: bool = Field(
        default=True,
        description="Whether working files are captured before a pause and at intervals.",
    )
    files_folder: str = Field(
        default="/home/user",
        pattern="^/",
        description="Work folder of a sandbox that names none: what is kept lies below it.",
    )
    files_checkpoint_s: float = Field(
        default=300,
        gt=0,
        description="Seconds between two captures of a running sandbox whose files change.",
    )
    files_versions_kept: int = Field(
        default=10, ge=1, description="Versions of a sandbox's files that are kept."
    )
    files_file_bytes_max: int = Field(
        default=2 * 1024**3 - 1,
        ge=1,
        description="Bytes that one kept file may have; a larger one is named and left out.",
    )
    files_total_bytes_max: int = Field(
        default=20 * 1024**3, ge=1, description="Bytes that all kept files of a sandbox may have."
    )
    files_count_max: int = Field(
        default=200_000, ge=1, description="Files, links and folders that are kept of a sandbox."
    )
    files_hash_bytes_max: int = Field(
        default=256 * 1024**2,
        ge=0,
        description="Bytes that are compared by hash after a resume; the rest is compared by size "
        "and time.",
    )
    session_template: str = Field(
        default="code-interpreter-v1",
        min_length=1,
        description="Template of execution sessions that name none.",
    )
    session_idle_timeout_s: float = Field(
        default=600, gt=0, description="Seconds without use after which an execution session ends."
    )
    code_timeout_s: float = Field(
        default=300, gt=0, description="Seconds that code of a session may run; told to the caller."
    )
    desktop_template: str = Field(
        default="desktop", min_length=1, description="Template of desktop sessions that name none."
    )
    desktop_idle_timeout_s: float = Field(
        default=900, gt=0, description="Seconds without use after which a desktop session ends."
    )
    desktop_lifetime_s: float = Field(
        default=900,
        gt=0,
        description="Seconds for which a desktop sandbox lives at first; each use moves its end.",
    )
    session_idle: Literal["fixed", "adaptive"] = Field(
        default="fixed",
        description="Whether the idle timeout of new sessions is fixed, or learned within "
        "`idle_timeout_min_s` and `idle_timeout_max_s`.",
    )
    session_on_idle: Literal["kill", "pause"] = Field(
        default="kill",
        description="What becomes of an idle session's sandbox: it ends, or it sleeps until it is "
        "acquired again.",
    )
    session_asleep_s: float = Field(
        default=7 * 86400, gt=0, description="Seconds for which a sleeping session is kept."
    )
    session_cleanup_period_s: float = Field(
        default=60, gt=0, description="Seconds between two clean-ups of idle sessions."
    )
    session_lease_s: float = Field(
        default=60,
        gt=0,
        le=3600,
        description="Seconds for which a lease on a sandbox holds unless it is renewed.",
    )
    session_check_timeout_s: float = Field(
        default=5, gt=0, description="Seconds after which a health check counts as failed."
    )
    stream_ready_timeout_ms: int = Field(
        default=3000,
        ge=100,
        le=120_000,
        description="Milliseconds within which a desktop's live view must be ready to be watched.",
    )
    sessions_max: int = Field(
        default=0, ge=0, description="Sessions that may be open at a time; 0 means no limit."
    )
    pools: dict[str, int] = Field(
        default_factory=dict,
        description="Warm sandboxes by template, as JSON in the environment; what was set at run "
        "time wins.",
    )
    pool_period_s: float = Field(
        default=30, gt=0, description="Seconds between two looks at the warm pools."
    )
    pool_age_max_s: float = Field(
        default=1800,
        gt=0,
        le=3000,
        description="Seconds after which a warm sandbox that nobody took is ended.",
    )
    pool_failures_max: int = Field(
        default=5,
        ge=1,
        description="Failures in a row after which a pool stops until it is set anew.",
    )
    # A landing page that is opened by a crawler must not wake the fleet: what is asked for beyond
    # these is answered and not done. Fewer lets more people wait for a wake.
    warm_ups_at_once: int = Field(
        default=10,
        ge=0,
        description="Warmed-up sandboxes that nobody has used yet, at a time; 0 allows none.",
    )
    warm_ups_per_hour: int = Field(
        default=120, ge=0, description="Warm-ups of the whole fleet within an hour."
    )
    warm_ups_per_owner_hour: int = Field(
        default=6, ge=0, description="Warm-ups of one owner's sandbox within an hour."
    )
    wake_retry_s: float = Field(
        default=5, ge=0, description="Seconds between the two attempts of a wake."
    )
    wake_lease_s: float = Field(
        default=15,
        ge=1,
        description="Seconds after which another process takes up a wake whose driver died.",
    )
    app_start_timeout_s: float = Field(
        default=60,
        gt=0,
        description="Seconds within which a started app must answer on its port.",
    )
    app_watch_period_s: float = Field(
        default=10, gt=0, description="Seconds between two looks at the apps of running sandboxes."
    )
    credit_url: str = Field(
        default="",
        description="URL of the host application that takes a build credit for a rebuild; empty "
        "means that none are counted.",
    )
    credit_token: SecretStr | None = Field(
        default=None, description="Bearer token sent to `credit_url`."
    )
    leaks_removed_per_hour: int = Field(
        default=20, ge=0, description="Leaked instances that are removed in an hour at most."
    )
    stale_after_s: float = Field(
        default=300,
        gt=0,
        description="Seconds after which a read of an unverified record has it verified in the "
        "background.",
    )

    regions: dict[str, Region] = Field(
        default_factory=dict,
        description="Providers by region, as JSON in the environment, the first one the default; "
        "empty means the one that E2B's own variables name.",
    )
    # More than a sweep uses, so that a person's wake never queues behind it. More than that gains
    # nothing and looks like an attack; fewer makes a slow provider delay the whole fleet.
    provider_concurrency: int = Field(
        default=128, ge=1, description="Requests under way at each provider at a time."
    )
    creations_per_s: float = Field(
        default=5,
        gt=0,
        description="Sandboxes created per second in each region at most, by its plan.",
    )
    request_timeout_s: float = Field(
        default=30, gt=0, description="Seconds after which a request to the provider is given up."
    )
    breaker_failures: int = Field(
        default=5, ge=1, description="Failures in a row after which the provider is left alone."
    )
    breaker_open_s: float = Field(
        default=30, gt=0, description="Seconds for which a failing provider is left alone."
    )

    enforcer: bool = Field(default=True, description="Whether idle sandboxes are put to sleep.")
    reconciler: bool = Field(
        default=True, description="Whether records are compared with the provider's list."
    )
    catch_up: bool = Field(
        default=True, description="Whether the provider's events are read beside the webhooks."
    )
    webhooks: bool = Field(default=True, description="Whether webhook deliveries are taken.")
    sse: bool = Field(
        default=True, description="Whether live streams are served; without them clients poll."
    )
    inngest: bool = Field(
        default=False,
        description="Whether the idle enforcer is offered as an Inngest function at "
        "`/api/inngest`; needs the extra of the same name.",
    )
    legacy_verify: bool = Field(
        default=False, description="Whether a status read verifies at the provider first."
    )

    poll_running_ms: int = Field(
        default=30_000, ge=0, description="Milliseconds between a client's polls while running."
    )
    poll_starting_ms: int = Field(
        default=5_000, ge=0, description="Milliseconds between a client's polls while starting."
    )
    poll_waking_ms: int = Field(
        default=2_000, ge=0, description="Milliseconds between a client's polls while waking."
    )
    sse_ping_s: float = Field(
        default=15, gt=0, description="Seconds between two pings on a live stream."
    )
    sse_connections_max: int = Field(
        default=10_000, ge=0, description="Live streams that one process serves at most."
    )
    status_cache_max: int = Field(
        default=200_000, ge=1, description="Encoded status answers that one process keeps at most."
    )

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.idle_timeout_min_s > self.idle_timeout_max_s:
            raise ValueError("idle_timeout_min_s is greater than idle_timeout_max_s.")
        return self

    @field_validator("allowed_origins", "viewer_keys", mode="before")
    @classmethod
    def _split_at_commas(cls, value: object) -> object:
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        return value

    @property
    def database_url(self) -> str:
        """The database's URL with the default filled in."""
        return self.database or f"sqlite:///{self.data / 'sandkeeper.db'}"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  The base class names it.
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  The base class names it.
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, environment, this folder's file, the user's file: the first that speaks wins."""
        return (
            init_settings,
            env_settings,
            TomlConfigSettingsSource(settings_cls, Path("sandkeeper.toml")),
            TomlConfigSettingsSource(settings_cls, user_settings_file()),
        )


def read_settings(**flags: object) -> Settings:
    """The settings in force; a flag that is None was not given."""
    given = {name: value for name, value in flags.items() if value is not None}
    return Settings(**given)  # type: ignore[arg-type]  # Pydantic checks each flag's type.

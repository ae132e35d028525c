"""The engine's records: frozen dataclasses, stored as JSON in the database.

Instants are seconds since the epoch. A record is never changed; a change is a new record.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self

import orjson

from sandkeeper.engine.runtime.contract import Isolation


class EngineState(StrEnum):
    """E2B's two states. Changes between them are transitions, which exist in memory only."""

    RUNNING = "running"
    PAUSED = "paused"


class PauseMode(StrEnum):
    """What a pause kept."""

    FULL = "full"
    FILESYSTEM = "filesystem"


class BuildStatus(StrEnum):
    """How far a template's build is."""

    WAITING = "waiting"
    BUILDING = "building"
    READY = "ready"
    ERROR = "error"


class _Stored:
    """A record that is stored as JSON and loaded back equal."""

    __slots__ = ()

    def to_json(self) -> str:
        return orjson.dumps(asdict(self)).decode()  # type: ignore[call-overload]  # always a dataclass

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields: dict[str, Any] = orjson.loads(text)
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint(_Stored):
    """What a sandbox is started from: its layers, topmost first, and how its processes start."""

    layers: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    user: str = "user"
    workdir: str = "/home/user"
    start_cmd: str | None = None
    ready_cmd: str | None = None
    cpu_count: int = 2
    memory_mb: int = 1024
    services: tuple[str, ...] = ()
    """The engine's own programs that start inside when their port is first requested."""
    isolation: str | None = None
    """The wall of the sandbox that this is a snapshot of; else the engine chooses."""
    image: str | None = None
    """The image that the layers begin with: they are a whole system, without the host's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRecord(_Stored):
    """One sandbox, running or paused. A killed one has no record, only events."""

    id: str
    template_id: str
    build_id: str
    alias: str | None
    token: str
    traffic_token: str | None
    state: EngineState
    execution_id: str
    created_at: float
    started_at: float
    """When the present run began; while paused, when the last one did."""
    end_at: float
    """When the run times out; while paused, when it was paused."""
    timeout_s: int
    auto_pause: bool
    auto_pause_memory: bool
    auto_resume: bool
    metadata: dict[str, str]
    env: dict[str, str]
    allow_internet: bool | None
    allow_out: tuple[str, ...] = ()
    deny_out: tuple[str, ...] = ()
    rules: dict[str, dict[str, str]] = field(default_factory=dict)
    """Headers that the egress proxy adds, by host; secrets in them are placeholders."""
    mask_host: str | None = None
    layers: tuple[str, ...] = ()
    user: str = "user"
    workdir: str = "/home/user"
    start_cmd: str | None = None
    ready_cmd: str | None = None
    cpu_count: int = 2
    memory_mb: int = 1024
    services: tuple[str, ...] = ()
    mounts: dict[str, str] = field(default_factory=dict)
    """Volumes by the path at which they are mounted: path → volume id."""
    isolation: Isolation = Isolation.BUBBLEWRAP
    image: str | None = None
    pause_mode: PauseMode | None = None
    memory_lost: bool = False
    """The machine ended the frozen processes; the disk is intact, and a resume starts from it."""
    idempotency_key: str | None = None
    idempotency_digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateRecord(_Stored):
    """A named line of builds. A snapshot is a template with one build and a source."""

    id: str
    names: tuple[str, ...]
    tags: dict[str, str]
    """Tag → build id. `default` is what a name without a tag means."""
    created_at: float
    updated_at: float
    source_sandbox_id: str | None = None
    public: bool = False
    spawn_count: int = 0
    last_spawned_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRecord(_Stored):
    """One build of a template, with what came of it."""

    id: str
    template_id: str
    status: BuildStatus
    created_at: float
    updated_at: float
    cpu_count: int = 2
    memory_mb: int = 1024
    tags: tuple[str, ...] = ()
    blueprint: dict[str, Any] | None = None
    """The fields of a `Blueprint`, once the build is ready."""
    reason: str | None = None
    failed_step: str | None = None
    log: tuple[dict[str, Any], ...] = ()

    def to_blueprint(self) -> Blueprint:
        """Return the blueprint of a finished build."""
        return Blueprint.from_json(orjson.dumps(self.blueprint or {}).decode())


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRecord(_Stored):
    """A webhook subscription."""

    id: str
    name: str
    url: str
    events: tuple[str, ...]
    secret: str
    enabled: bool
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRecord(_Stored):
    """A secret. Its value leaves the engine by no route."""

    id: str
    name: str
    value: str
    version: int
    metadata: dict[str, str]
    created_at: float
    updated_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeRecord(_Stored):
    """A folder that sandboxes can mount; its token opens its files."""

    id: str
    name: str
    token: str
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEvent(_Stored):
    """A lifecycle event of a sandbox, as the API and webhooks report it."""

    id: str
    type: str
    at: float
    sandbox_id: str
    execution_id: str
    template_id: str
    build_id: str
    data: dict[str, Any]

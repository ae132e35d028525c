"""What a sandbox is made of: pure functions from wishes and records to records."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections import deque
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sandkeeper.engine.errors import BadRequestError
from sandkeeper.engine.runtime.contract import Egress, Usage
from sandkeeper.engine.sandboxes.records import (
    Blueprint,
    EngineState,
    PauseMode,
    SandboxRecord,
    TemplateRecord,
)
from sandkeeper.engine.sandboxes.routing import RunningSandbox
from sandkeeper.engine.storage.data_dir import new_id
from sandkeeper.engine.templates.catalogue import DEFAULT_TAG, TEAM_SLUG, TemplateSource

RUN_MAX_S = 24 * 3600
"""How long one run may last, as on E2B's larger plan; a pause begins a new run."""
_METRICS_KEPT = 720  # An hour of samples; more would cost memory for every idle sandbox.


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateRequest:
    """What a caller asks of a new sandbox, already checked."""

    origin: TemplateSource
    timeout_s: int
    auto_pause: bool = False
    auto_pause_memory: bool = True
    auto_resume: bool = False
    metadata: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    allow_internet: bool | None = None
    allow_out: tuple[str, ...] = ()
    deny_out: tuple[str, ...] = ()
    public_traffic: bool = True
    mask_host: str | None = None
    idempotency_key: str | None = None
    idempotency_digest: str | None = None


@dataclass(slots=True)
class SandboxEntry:
    """A sandbox in memory: its record, its lock, and what is being done to it."""

    record: SandboxRecord
    transition: str | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    metrics: deque[tuple[float, Usage]] = field(default_factory=lambda: deque(maxlen=_METRICS_KEPT))
    revivals: list[float] = field(default_factory=list)

    @property
    def is_hidden(self) -> bool:
        """A sandbox that is being made or ended is not there for anybody outside."""
        return self.transition in ("starting", "killing")

    @property
    def takes_traffic(self) -> bool:
        """Whether it runs and nothing is under way that would stop it."""
        return self.record.state == EngineState.RUNNING and self.transition not in (
            "starting",
            "killing",
            "pausing",
        )


def check_timeout(timeout_s: int) -> None:
    """Refuse a time to live that is none, or longer than a run may be."""
    if timeout_s <= 0:
        raise BadRequestError("Timeout must be greater than 0")
    if timeout_s > RUN_MAX_S:
        raise BadRequestError(f"Timeout cannot be greater than {RUN_MAX_S // 3600} hours")


def make_record(wish: CreateRequest, now: float) -> SandboxRecord:
    """Make the record of a sandbox that is about to start."""
    origin, blueprint = wish.origin, wish.origin.blueprint
    return SandboxRecord(
        id=new_id("i"),
        template_id=origin.template.id,
        build_id=origin.build.id,
        alias=origin.alias,
        token=secrets.token_hex(32),
        traffic_token=None if wish.public_traffic else secrets.token_hex(32),
        state=EngineState.RUNNING,
        execution_id=str(uuid.uuid4()),
        created_at=now,
        started_at=now,
        end_at=now + wish.timeout_s,
        timeout_s=wish.timeout_s,
        auto_pause=wish.auto_pause,
        auto_pause_memory=wish.auto_pause_memory,
        auto_resume=wish.auto_resume,
        metadata=wish.metadata,
        env={**blueprint.env, **wish.env},
        allow_internet=wish.allow_internet,
        allow_out=wish.allow_out,
        deny_out=wish.deny_out,
        mask_host=wish.mask_host,
        layers=blueprint.layers,
        user=blueprint.user,
        workdir=blueprint.workdir,
        start_cmd=blueprint.start_cmd,
        ready_cmd=blueprint.ready_cmd,
        cpu_count=blueprint.cpu_count,
        memory_mb=blueprint.memory_mb,
        services=blueprint.services,
        idempotency_key=wish.idempotency_key,
        idempotency_digest=wish.idempotency_digest,
    )


def make_fork(source: SandboxRecord, layer_id: str, timeout_s: int, now: float) -> SandboxRecord:
    """Make the record of a fork: the source's disk as one more layer, its own id and tokens."""
    return replace(
        source,
        id=new_id("i"),
        token=secrets.token_hex(32),
        traffic_token=None if source.traffic_token is None else secrets.token_hex(32),
        execution_id=str(uuid.uuid4()),
        created_at=now,
        started_at=now,
        end_at=now + timeout_s,
        timeout_s=timeout_s,
        layers=(layer_id, *source.layers),
        idempotency_key=None,
        idempotency_digest=None,
    )


def blueprint_fields(source: SandboxRecord, layer_id: str) -> dict[str, Any]:
    """Give what a snapshot of this sandbox is started from."""
    return asdict(
        Blueprint(
            layers=(layer_id, *source.layers),
            env=source.env,
            user=source.user,
            workdir=source.workdir,
            start_cmd=source.start_cmd,
            ready_cmd=source.ready_cmd,
            cpu_count=source.cpu_count,
            memory_mb=source.memory_mb,
            services=source.services,
        )
    )


def snapshot_id(template: TemplateRecord) -> str:
    """Give a snapshot's public id, as E2B spells it."""
    if template.names:
        return f"{TEAM_SLUG}/{template.names[0]}:{DEFAULT_TAG}"
    return f"{template.id}:{DEFAULT_TAG}"


def to_running_sandbox(record: SandboxRecord) -> RunningSandbox:
    """Give a sandbox as those who serve its traffic see it."""
    told = {
        "E2B_SANDBOX": "true",
        "E2B_SANDBOX_ID": record.id,
        "E2B_TEMPLATE_ID": record.template_id,
    }
    return RunningSandbox(
        sandbox_id=record.id,
        token=record.token,
        traffic_token=record.traffic_token,
        env={**told, **record.env},
        default_user=record.user,
        default_workdir=record.workdir,
        mask_host=record.mask_host,
        services=record.services,
    )


def wakes_on_traffic(record: SandboxRecord) -> bool:
    """Whether a request wakes this paused sandbox.

    E2B wakes only what was paused with its memory. A sandbox whose memory the machine lost was
    paused so, and is woken as its owner was promised.
    """
    return record.auto_resume and (record.pause_mode != PauseMode.FILESYSTEM or record.memory_lost)


def get_egress(record: SandboxRecord) -> Egress:
    return Egress(
        internet=record.allow_internet is not False,
        allow_out=record.allow_out,
        deny_out=record.deny_out,
    )

"""Create requests and how they become records, and what other modules derive from a record.

Nothing here holds state. New records get random ids and tokens; everything else is a function of
its arguments.
"""

from __future__ import annotations

import secrets
import uuid
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sandkeeper.engine.errors import BadRequestError
from sandkeeper.engine.runtime.bubblewrap import interception
from sandkeeper.engine.runtime.contract import Egress, Isolation
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
    rules: dict[str, dict[str, str]] = field(default_factory=dict)
    public_traffic: bool = True
    mask_host: str | None = None
    mounts: dict[str, str] = field(default_factory=dict)
    isolation: Isolation = Isolation.BUBBLEWRAP
    idempotency_key: str | None = None
    idempotency_digest: str | None = None


def check_timeout(timeout_s: int) -> None:
    """Refuse a timeout that is not positive, or longer than a run may be."""
    if timeout_s <= 0:
        raise BadRequestError("Timeout must be greater than 0")
    if timeout_s > RUN_MAX_S:
        raise BadRequestError(f"Timeout cannot be greater than {RUN_MAX_S // 3600} hours")


def make_record(request: CreateRequest, now: float) -> SandboxRecord:
    """Make the record of a sandbox that is about to start."""
    origin, blueprint = request.origin, request.origin.blueprint
    return SandboxRecord(
        id=new_id("i"),
        template_id=origin.template.id,
        build_id=origin.build.id,
        alias=origin.alias,
        token=secrets.token_hex(32),
        traffic_token=None if request.public_traffic else secrets.token_hex(32),
        state=EngineState.RUNNING,
        execution_id=str(uuid.uuid4()),
        created_at=now,
        started_at=now,
        end_at=now + request.timeout_s,
        timeout_s=request.timeout_s,
        auto_pause=request.auto_pause,
        auto_pause_memory=request.auto_pause_memory,
        auto_resume=request.auto_resume,
        metadata=request.metadata,
        env={**blueprint.env, **request.env},
        allow_internet=request.allow_internet,
        allow_out=request.allow_out,
        deny_out=request.deny_out,
        rules=request.rules,
        mask_host=request.mask_host,
        layers=blueprint.layers,
        user=blueprint.user,
        workdir=blueprint.workdir,
        start_cmd=blueprint.start_cmd,
        ready_cmd=blueprint.ready_cmd,
        cpu_count=blueprint.cpu_count,
        memory_mb=blueprint.memory_mb,
        services=blueprint.services,
        mounts=request.mounts,
        isolation=request.isolation,
        image=blueprint.image,
        idempotency_key=request.idempotency_key,
        idempotency_digest=request.idempotency_digest,
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
    """Return the blueprint for a snapshot of this sandbox."""
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
            isolation=source.isolation,
            image=source.image,
        )
    )


def snapshot_id(template: TemplateRecord) -> str:
    """Return a snapshot's public id, as E2B spells it."""
    if template.names:
        return f"{TEAM_SLUG}/{template.names[0]}:{DEFAULT_TAG}"
    return f"{template.id}:{DEFAULT_TAG}"


def to_running_sandbox(record: SandboxRecord) -> RunningSandbox:
    """Return the part of a record that serving traffic needs."""
    return RunningSandbox(
        sandbox_id=record.id,
        token=record.token,
        traffic_token=record.traffic_token,
        env={**_list_facts(record), **get_env(record)},
        default_user=record.user,
        default_workdir=record.workdir,
        mask_host=record.mask_host,
        services=record.services,
    )


def _list_facts(record: SandboxRecord) -> dict[str, str]:
    return {
        "E2B_SANDBOX": "true",
        "E2B_SANDBOX_ID": record.id,
        "E2B_TEMPLATE_ID": record.template_id,
    }


def list_notes(record: SandboxRecord) -> dict[str, str]:
    """Return the files that tell programs what their variables do not, as on E2B."""
    return {f"/run/e2b/.{name}": fact for name, fact in _list_facts(record).items()}


def get_env(record: SandboxRecord) -> dict[str, str]:
    """Return the variables of a sandbox's programs, with what makes them trust the egress proxy."""
    trusting = {
        "NODE_EXTRA_CA_CERTS": interception.AUTHORITY,
        "REQUESTS_CA_BUNDLE": interception.BUNDLE,
        "SSL_CERT_FILE": interception.BUNDLE,
    }
    return {**(trusting if record.rules else {}), **record.env}


def wakes_on_traffic(record: SandboxRecord) -> bool:
    """Return whether a request resumes this paused sandbox.

    E2B resumes only sandboxes that were paused with memory. One whose memory the machine lost was
    paused that way, so it is resumed as well.
    """
    return record.auto_resume and (record.pause_mode != PauseMode.FILESYSTEM or record.memory_lost)


def get_egress(record: SandboxRecord) -> Egress:
    return Egress(
        internet=record.allow_internet is not False,
        allow_out=record.allow_out,
        deny_out=record.deny_out,
        rules=record.rules,
    )

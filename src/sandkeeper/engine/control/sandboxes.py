"""The routes about sandboxes: they parse, call one function, render. The rules are elsewhere."""

from __future__ import annotations

import asyncio
import hashlib
import re
from typing import Any

import orjson

from sandkeeper.engine.control import schemas
from sandkeeper.engine.control.http import ControlRequest, ControlResponse, render_error
from sandkeeper.engine.control.listing import paginate, parse_filter
from sandkeeper.engine.control.rendering import (
    render_detail,
    render_listed,
    render_metric,
    render_sandbox,
    render_snapshot,
)
from sandkeeper.engine.errors import (
    BadRequestError,
    EngineError,
    IdempotencyError,
    MachineError,
    ResourceNotFoundError,
)
from sandkeeper.engine.runtime.contract import Egress, Isolation, Usage
from sandkeeper.engine.sandboxes.events import EventLog, EventQuery, render_instant
from sandkeeper.engine.sandboxes.isolation import IsolationPolicy
from sandkeeper.engine.sandboxes.lifecycle import SandboxLifecycle
from sandkeeper.engine.sandboxes.model import CreateRequest, check_timeout
from sandkeeper.engine.sandboxes.records import EngineEvent, EngineState, SandboxRecord
from sandkeeper.engine.templates import desktop
from sandkeeper.engine.templates.catalogue import TemplateCatalog
from sandkeeper.engine.volumes.store import VolumeStore

_KEY = re.compile(r"[A-Za-z0-9_-]{1,255}")


def short_id(text: str) -> str:
    """Return the sandbox's id; old clients append a dash and a client's id."""
    return text.partition("-")[0]


class SandboxRoutes:
    """Create, look, change, end."""

    def __init__(
        self,
        lifecycle: SandboxLifecycle,
        catalogue: TemplateCatalog,
        event_log: EventLog,
        domain: str,
        isolation: IsolationPolicy,
        volumes: VolumeStore,
    ) -> None:
        self._lifecycle = lifecycle
        self._volumes = volumes
        self._isolation = isolation
        self._catalogue = catalogue
        self._event_log = event_log
        self._domain = domain
        self._under_way: set[str] = set()

    # --- create ---------------------------------------------------------------------------

    async def create(self, request: ControlRequest) -> ControlResponse:
        return await self._create(request, default_timeout_s=15)

    async def create_v2(self, request: ControlRequest) -> ControlResponse:
        return await self._create(request, default_timeout_s=300)

    async def _create(self, request: ControlRequest, default_timeout_s: int) -> ControlResponse:
        body = await request.parse(schemas.NewSandbox)
        body.refuse_unsupported()
        timeout_s = default_timeout_s if body.timeout is None else body.timeout
        check_timeout(timeout_s)
        key = request.headers.get("idempotency-key")
        if key is None:
            record = await self._lifecycle.create(self._make_create_request(body, timeout_s))
        else:
            record = await self._create_once(body, timeout_s, key)
        return ControlResponse(201, render_sandbox(record, self._domain))

    async def _create_once(
        self, body: schemas.NewSandbox, timeout_s: int, key: str
    ) -> SandboxRecord:
        """Create unless this key did already; the same body then gets the same sandbox."""
        if not _KEY.fullmatch(key):
            raise BadRequestError("'Idempotency-Key' must be 1 to 255 of a-z, 0-9 and -")
        digest = hashlib.sha256(body.model_dump_json().encode()).hexdigest()
        for record in self._lifecycle.list_records():
            if record.idempotency_key == key:
                if record.idempotency_digest == digest:
                    return record
                raise IdempotencyError(
                    "this Idempotency-Key was used with another body",
                    error_code="idempotency_request_mismatch",
                )
        if key in self._under_way:
            raise IdempotencyError(
                "the first request with this Idempotency-Key is still in progress",
                error_code="idempotency_in_progress",
            )
        self._under_way.add(key)
        try:
            return await self._lifecycle.create(
                self._make_create_request(body, timeout_s, key, digest)
            )
        finally:
            self._under_way.discard(key)

    def _make_create_request(
        self,
        body: schemas.NewSandbox,
        timeout_s: int,
        key: str | None = None,
        digest: str | None = None,
    ) -> CreateRequest:
        network = body.network or schemas.Network()
        origin = self._catalogue.resolve(body.template_id)
        desktop.check(origin.blueprint.services)
        isolation = self._isolation.choose(origin.template, origin.blueprint)
        if body.volume_mounts and isolation is Isolation.GVISOR:
            raise BadRequestError("field 'volumeMounts': not behind gVisor's wall")
        rules = network.list_headers()
        if rules and isolation is Isolation.GVISOR:
            raise BadRequestError("field 'network.rules': not behind gVisor's wall")
        return CreateRequest(
            origin=origin,
            timeout_s=timeout_s,
            auto_pause=bool(body.auto_pause),
            auto_pause_memory=body.auto_pause_memory is not False,
            auto_resume=body.auto_resume is not None and body.auto_resume.enabled,
            metadata=body.metadata or {},
            env=_checked_env(body.env_vars or {}),
            allow_internet=body.allow_internet_access,
            allow_out=tuple(network.allow_out or ()),
            deny_out=tuple(network.deny_out or ()),
            rules=rules,
            public_traffic=network.allow_public_traffic is not False,
            mask_host=network.mask_request_host,
            mounts=self._volumes.resolve_mounts(
                (mount.name, mount.path) for mount in body.volume_mounts or ()
            ),
            isolation=isolation,
            idempotency_key=key,
            idempotency_digest=digest,
        )

    # --- read -----------------------------------------------------------------------------

    async def list_v1(self, request: ControlRequest) -> ControlResponse:
        wanted = parse_filter(request, running_only=True)
        found = [r for r in self._lifecycle.list_records() if wanted.holds(r)]
        found.sort(key=lambda r: (-r.started_at, r.id))
        return ControlResponse(200, [render_listed(record) for record in found])

    async def list_v2(self, request: ControlRequest) -> ControlResponse:
        wanted = parse_filter(request)
        found = [r for r in self._lifecycle.list_records() if wanted.holds(r)]
        page, headers = paginate(found, request, lambda r: (r.started_at, r.id))
        if EngineState.RUNNING in wanted.states:
            headers["x-total-running"] = str(sum(r.state == EngineState.RUNNING for r in found))
        return ControlResponse(200, [render_listed(record) for record in page], headers)

    async def get(self, request: ControlRequest) -> ControlResponse:
        record = self._lifecycle.get(short_id(request.params["id"]))
        return ControlResponse(
            200, render_detail(record, self._domain, self._volumes.name_mounts(record.mounts))
        )

    async def fingerprint(self, request: ControlRequest) -> ControlResponse:
        """Tell whether a folder changed, which E2B's API cannot; `null` where that is not known."""
        skipped = frozenset(request.query.get("skip", ()))
        found = await self._lifecycle.read_fingerprint(
            short_id(request.params["id"]), request.text("path") or "/", skipped
        )
        return ControlResponse(200, {"fingerprint": found})

    async def metrics(self, request: ControlRequest) -> ControlResponse:
        start = request.number("start", 0, 0)
        end = request.number("end", 1 << 53, 0)
        samples = self._lifecycle.metrics(short_id(request.params["id"]))
        return ControlResponse(
            200, [render_metric(at, u) for at, u in samples if start <= int(at) <= end]
        )

    async def metrics_of_many(self, request: ControlRequest) -> ControlResponse:
        ids = [part for text in request.query.get("sandbox_ids", []) for part in text.split(",")]
        if len(ids) > 100:
            raise BadRequestError("'sandbox_ids' may name 100 sandboxes at most")
        measured = await asyncio.gather(*map(self._measure, ids))
        known = {
            one: render_metric(*usage) for one, usage in zip(ids, measured, strict=True) if usage
        }
        return ControlResponse(200, {"sandboxes": known})

    async def _measure(self, sandbox_id: str) -> tuple[float, Usage] | None:
        try:
            return await self._lifecycle.measure(short_id(sandbox_id))
        except ResourceNotFoundError:
            return None

    async def logs_v1(self, request: ControlRequest) -> ControlResponse:
        start_ms = request.number("start", 0, 0)
        limit = request.number("limit", 1000, 0, 1000)
        events = await self._events_of(request, ascending=True)
        entries = [_log_entry(e) for e in events if e.at * 1000 >= start_ms][:limit]
        lines = [{"timestamp": e["timestamp"], "line": _render_line(e)} for e in entries]
        return ControlResponse(200, {"logs": lines, "logEntries": entries})

    async def logs_v2(self, request: ControlRequest) -> ControlResponse:
        cursor_ms = request.number("cursor", -1, 0)
        limit = request.number("limit", 1000, 0, 1000)
        ascending = (request.text("direction") or "forward") != "backward"
        search = request.text("search") or ""
        events = await self._events_of(request, ascending=ascending)
        if cursor_ms >= 0:
            side = 1 if ascending else -1
            events = [e for e in events if (e.at * 1000 - cursor_ms) * side >= 0]
        entries = [entry for entry in map(_log_entry, events) if search in str(entry["message"])]
        return ControlResponse(200, {"logs": entries[:limit]})

    async def _events_of(self, request: ControlRequest, *, ascending: bool) -> list[EngineEvent]:
        sandbox_id = short_id(request.params["id"])
        query = EventQuery(sandbox_id=sandbox_id, limit=1000, ascending=ascending)
        found = await self._event_log.list_events(query)
        if not found:
            # A killed sandbox still has its lines for a week.
            self._lifecycle.get(sandbox_id)
        return found

    # --- change ---------------------------------------------------------------------------

    async def kill(self, request: ControlRequest) -> ControlResponse:
        await self._lifecycle.kill(short_id(request.params["id"]))
        return ControlResponse(204)

    async def pause(self, request: ControlRequest) -> ControlResponse:
        body = await request.parse(schemas.PauseBody)
        await self._lifecycle.pause(short_id(request.params["id"]), memory=body.memory)
        return ControlResponse(204)

    async def connect(self, request: ControlRequest) -> ControlResponse:
        body = await request.parse(schemas.Connect)
        if body.timeout is None:
            raise BadRequestError("field 'timeout': Field required")
        return await self._connect(request, body)

    async def connect_v2(self, request: ControlRequest) -> ControlResponse:
        return await self._connect(request, await request.parse(schemas.Connect))

    async def _connect(self, request: ControlRequest, body: schemas.Connect) -> ControlResponse:
        record, resumed = await self._lifecycle.connect(
            short_id(request.params["id"]),
            300 if body.timeout is None else body.timeout,
            memory=body.memory,
        )
        return ControlResponse(201 if resumed else 200, render_sandbox(record, self._domain))

    async def resume(self, request: ControlRequest) -> ControlResponse:
        body = await request.parse(schemas.ResumeBody)
        record = await self._lifecycle.resume(
            short_id(request.params["id"]),
            15 if body.timeout is None else body.timeout,
            memory=body.memory,
            auto_pause=body.auto_pause,
        )
        return ControlResponse(201, render_sandbox(record, self._domain))

    async def set_timeout(self, request: ControlRequest) -> ControlResponse:
        body = await request.parse(schemas.Timeout)
        await self._lifecycle.set_timeout(short_id(request.params["id"]), body.timeout)
        return ControlResponse(204)

    async def refresh(self, request: ControlRequest) -> ControlResponse:
        body = await request.parse(schemas.Refresh)
        await self._lifecycle.refresh(short_id(request.params["id"]), body.duration or 0)
        return ControlResponse(204)

    async def set_network(self, request: ControlRequest) -> ControlResponse:
        body = await request.parse(schemas.NetworkUpdate)
        body.refuse_unsupported()
        for name, value in (
            ("allowPublicTraffic", body.allow_public_traffic),
            ("maskRequestHost", body.mask_request_host),
        ):
            if value is not None:
                raise BadRequestError(f"field '{name}' is not supported by this engine here")
        egress = Egress(
            internet=body.allow_internet_access is not False,
            allow_out=tuple(body.allow_out or ()),
            deny_out=tuple(body.deny_out or ()),
            rules=body.list_headers(),
        )
        await self._lifecycle.set_egress(
            short_id(request.params["id"]), egress, body.allow_internet_access
        )
        return ControlResponse(204)

    # --- copies ---------------------------------------------------------------------------

    async def snapshot(self, request: ControlRequest) -> ControlResponse:
        body = await request.parse(schemas.SnapshotBody)
        if body.memory:
            raise BadRequestError(
                "field 'memory': this engine's snapshots carry the disk only; "
                "leave it out or send false"
            )
        template = await self._lifecycle.snapshot(short_id(request.params["id"]), body.name)
        return ControlResponse(201, render_snapshot(template))

    async def list_snapshots(self, request: ControlRequest) -> ControlResponse:
        of_sandbox, name = request.text("sandboxID"), request.text("name")
        found = [
            template
            for template in self._catalogue.list_snapshots()
            if (not of_sandbox or template.source_sandbox_id == short_id(of_sandbox))
            and (not name or name in (*template.names, render_snapshot(template)["snapshotID"]))
        ]
        page, headers = paginate(found, request, lambda t: (t.created_at, t.id))
        return ControlResponse(200, [render_snapshot(template) for template in page], headers)

    async def fork(self, request: ControlRequest) -> ControlResponse:
        body = await request.parse(schemas.Fork)
        timeout_s = 15 if body.timeout is None else body.timeout
        outcomes = await self._lifecycle.fork(short_id(request.params["id"]), body.count, timeout_s)
        items: list[object] = []
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                fault = outcome if isinstance(outcome, EngineError) else MachineError(str(outcome))
                items.append({"error": render_error(fault).body})
            else:
                items.append({"sandbox": render_sandbox(outcome, self._domain)})
        return ControlResponse(201, items)


def _checked_env(env: dict[str, str]) -> dict[str, str]:
    """Refuse what no process could be given."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise BadRequestError(f"field 'envVars': '{name[:80]}' is no environment variable")
    return env


def _render_line(entry: dict[str, Any]) -> str:
    """Return an entry as E2B's command line reads it: the fields of one JSON object."""
    shown = {"level": entry["level"], "message": entry["message"], "logger": "lifecycle"}
    return orjson.dumps({**entry["fields"], **shown}).decode()


def _log_entry(event: EngineEvent) -> dict[str, Any]:
    """Return an event as a line of the sandbox's log."""
    verb = event.type.rpartition(".")[2]
    message = f"sandbox {verb}"
    if event.data.get("memory_lost"):
        message += " from its disk: the processes it had were lost"
    fields = {
        k: v if isinstance(v, str) else orjson.dumps(v).decode() for k, v in event.data.items()
    }
    return {
        "timestamp": render_instant(event.at),
        "message": message,
        "level": "warn" if event.data.get("memory_lost") else "info",
        "fields": fields,
    }

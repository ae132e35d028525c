"""Lifecycle events, written in the same transaction as the change itself.

An event and its pending deliveries are durable before any receiver learns of it. Event data follows
E2B, with two additions: killing a paused sandbox is an event as well, and `memory_lost` marks a run
that was restarted from its disk.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sandkeeper.engine.sandboxes.records import EngineEvent, SandboxRecord, WebhookRecord
from sandkeeper.engine.storage.database import EngineDatabase

CREATED = "sandbox.lifecycle.created"
RESUMED = "sandbox.lifecycle.resumed"
UPDATED = "sandbox.lifecycle.updated"
PAUSED = "sandbox.lifecycle.paused"
KILLED = "sandbox.lifecycle.killed"
CHECKPOINTED = "sandbox.lifecycle.checkpointed"

TYPES = (CREATED, RESUMED, UPDATED, PAUSED, KILLED, CHECKPOINTED)

RETENTION_S = 7 * 24 * 3600

_LABELS = {
    CREATED: "create",
    RESUMED: "resume",
    UPDATED: "update",
    PAUSED: "pause",
    KILLED: "kill",
}


def render_instant(at: float) -> str:
    """Return an instant as E2B writes it: RFC 3339, UTC, with a Z."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def make_event(kind: str, record: SandboxRecord, at: float, **data: Any) -> EngineEvent:
    """Make an event of a sandbox as it is after the change."""
    if record.metadata:
        data["sandbox_metadata"] = record.metadata
    if kind in (PAUSED, KILLED):
        data["execution"] = {
            "started_at": render_instant(record.started_at),
            "vcpu_count": record.cpu_count,
            "memory_mb": record.memory_mb,
            "execution_time": max(0, round((at - record.started_at) * 1000)),
        }
    return EngineEvent(
        id=str(uuid.uuid4()),
        type=kind,
        at=at,
        sandbox_id=record.id,
        execution_id=record.execution_id,
        template_id=record.template_id,
        build_id=record.build_id,
        data=data,
    )


def append(connection: sqlite3.Connection, event: EngineEvent) -> None:
    """Write the event, and a pending delivery for every webhook subscribed to it."""
    connection.execute(
        "INSERT INTO events (id, sandbox_id, type, at, record) VALUES (?, ?, ?, ?, ?)",
        (event.id, event.sandbox_id, event.type, event.at, event.to_json()),
    )
    for (text,) in connection.execute("SELECT record FROM webhooks").fetchall():
        webhook = WebhookRecord.from_json(text)
        if webhook.enabled and event.type in webhook.events:
            connection.execute(
                "INSERT INTO deliveries (webhook_id, event_id, due_at) VALUES (?, ?, ?)",
                (webhook.id, event.id, event.at),
            )


def render_rest(event: EngineEvent, team_id: str) -> dict[str, Any]:
    """Return an event as the events API answers it."""
    return {
        "id": event.id,
        "version": "v2",
        "type": event.type,
        "eventCategory": "lifecycle",
        "eventLabel": _LABELS.get(event.type),
        "eventData": event.data or None,
        "timestamp": render_instant(event.at),
        "sandboxId": event.sandbox_id,
        "sandboxExecutionId": event.execution_id,
        "sandboxTemplateId": event.template_id,
        "sandboxBuildId": event.build_id,
        "sandboxTeamId": team_id,
    }


def render_webhook(event: EngineEvent, team_id: str) -> dict[str, Any]:
    """Return an event as a webhook's body carries it."""
    body: dict[str, Any] = {
        "id": event.id,
        "version": "v2",
        "type": event.type,
        "timestamp": render_instant(event.at),
        "event_category": "lifecycle",
        "sandbox_id": event.sandbox_id,
        "sandbox_execution_id": event.execution_id,
        "sandbox_template_id": event.template_id,
        "sandbox_build_id": event.build_id,
        "sandbox_team_id": team_id,
        "events_ttl_days": RETENTION_S // 86400,
    }
    if event.type in _LABELS:
        body["event_label"] = _LABELS[event.type]
    if event.data:
        body["event_data"] = event.data
    return body


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQuery:
    """Which events, and which page of them."""

    sandbox_id: str | None = None
    types: Sequence[str] = ()
    offset: int = 0
    limit: int = 10
    ascending: bool = False


class EventLog:
    """Reads and prunes events."""

    def __init__(self, database: EngineDatabase) -> None:
        self._database = database

    async def list_events(self, query: EventQuery) -> list[EngineEvent]:
        """Return one page, newest first by default."""
        conditions, values = ["1"], []
        if query.sandbox_id is not None:
            conditions.append("sandbox_id = ?")
            values.append(query.sandbox_id)
        if query.types:
            conditions.append(f"type IN ({', '.join('?' * len(query.types))})")
            values.extend(query.types)
        order = "ASC" if query.ascending else "DESC"
        statement = (
            f"SELECT record FROM events WHERE {' AND '.join(conditions)} "  # noqa: S608 - constants only
            f"ORDER BY seq {order} LIMIT {query.limit:d} OFFSET {query.offset:d}"
        )
        rows = await self._database.run(lambda c: c.execute(statement, values).fetchall())
        return [EngineEvent.from_json(text) for (text,) in rows]

    async def prune(self, now: float) -> None:
        """Delete events and attempts past E2B's retention."""

        def delete(connection: sqlite3.Connection) -> None:
            before = now - RETENTION_S
            connection.execute("DELETE FROM events WHERE at < ?", (before,))
            connection.execute("DELETE FROM attempts WHERE at < ?", (before,))
            connection.execute("DELETE FROM deliveries WHERE due_at < ?", (before,))

        await self._database.run(delete)

"""The routes about events, webhooks and their deliveries."""

from __future__ import annotations

import math
import time
import uuid
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import orjson

from sandkeeper.engine.control import schemas
from sandkeeper.engine.control.http import ControlRequest, ControlResponse
from sandkeeper.engine.control.sandboxes import short_id
from sandkeeper.engine.errors import BadRequestError, ResourceNotFoundError
from sandkeeper.engine.sandboxes.events import (
    TYPES,
    EventLog,
    EventQuery,
    render_instant,
    render_rest,
)
from sandkeeper.engine.sandboxes.records import WebhookRecord
from sandkeeper.engine.sandboxes.webhooks import WebhookSender, resolve_receiver
from sandkeeper.engine.storage.database import EngineDatabase

_BUCKETS = 24


class EventRoutes:
    """Routes for events and webhooks."""

    def __init__(
        self, event_log: EventLog, webhooks: WebhookSender, database: EngineDatabase, team_id: str
    ) -> None:
        self._event_log = event_log
        self._webhooks = webhooks
        self._database = database
        self._team_id = team_id

    async def list_events(self, request: ControlRequest) -> ControlResponse:
        named = request.params.get("id")
        types = [t for text in request.query.get("types", []) for t in text.split(",") if t]
        query = EventQuery(
            sandbox_id=None if named is None else short_id(named),
            types=_checked_types(types),
            offset=request.number("offset", 0, 0),
            limit=request.number("limit", 10, 1, 100),
            ascending=request.flag("orderAsc"),
        )
        found = await self._event_log.list_events(query)
        return ControlResponse(200, [render_rest(event, self._team_id) for event in found])

    async def register(self, request: ControlRequest) -> ControlResponse:
        body = await request.parse(schemas.NewWebhook)
        webhook = WebhookRecord(
            id=str(uuid.uuid4()),
            name=body.name,
            url=await _checked_url(body.url),
            events=tuple(_checked_types(body.events)),
            secret=body.signature_secret,
            enabled=body.enabled,
            created_at=time.time(),
        )
        await self._webhooks.save(webhook)
        return ControlResponse(201, self._render(webhook))

    async def list_webhooks(self, _request: ControlRequest) -> ControlResponse:
        return ControlResponse(200, [self._render(w) for w in await self._webhooks.list_all()])

    async def get_webhook(self, request: ControlRequest) -> ControlResponse:
        return ControlResponse(200, self._render(await self._get(request)))

    async def update(self, request: ControlRequest) -> ControlResponse:
        webhook = await self._get(request)
        body = await request.parse(schemas.PatchWebhook)
        webhook = replace(
            webhook,
            name=webhook.name if body.name is None else body.name,
            url=webhook.url if body.url is None else await _checked_url(body.url),
            events=webhook.events if body.events is None else tuple(_checked_types(body.events)),
            secret=webhook.secret if body.signature_secret is None else body.signature_secret,
            enabled=webhook.enabled if body.enabled is None else body.enabled,
        )
        await self._webhooks.save(webhook)
        return ControlResponse(200, self._render(webhook))

    async def unregister(self, request: ControlRequest) -> ControlResponse:
        if not await self._webhooks.delete(request.params["id"]):
            raise ResourceNotFoundError(f"webhook '{request.params['id']}' not found")
        return ControlResponse(200, {})

    async def deliveries(self, request: ControlRequest) -> ControlResponse:
        """Return the attempts, gathered by event."""
        webhook = await self._get(request)
        limit = request.number("limit", 25, 1, 100)
        cursor = request.number("cursor", 0, 0)
        conditions, values = ["webhook_id = ?"], [webhook.id]
        for name, column in (("deliveryStatus", "status"), ("eventType", "event_type")):
            wanted = request.text(name)
            if wanted:
                conditions.append(f"{column} = ?")
                values.append(wanted)
        start, end = _period(request, default_s=7 * 86400)
        order = "ASC" if request.flag("orderAsc") else "DESC"
        rows = await self._database.run(
            lambda c: c.execute(
                "SELECT event_id, min(seq) FROM attempts "  # noqa: S608 - constants only
                f"WHERE {' AND '.join(conditions)} AND at BETWEEN ? AND ? "
                f"GROUP BY event_id ORDER BY 2 {order} LIMIT ? OFFSET ?",
                (*values, start, end, limit + 1, cursor),
            ).fetchall()
        )
        data = [await self._attempts_of(webhook.id, event_id) for event_id, _ in rows[:limit]]
        following = str(cursor + limit) if len(rows) > limit else None
        return ControlResponse(200, {"data": data, "nextCursor": following})

    async def _attempts_of(self, webhook_id: str, event_id: str) -> dict[str, Any]:
        rows = await self._database.run(
            lambda c: c.execute(
                "SELECT record FROM attempts WHERE webhook_id = ? AND event_id = ? ORDER BY seq",
                (webhook_id, event_id),
            ).fetchall()
        )
        attempts = [orjson.loads(text) for (text,) in rows]
        return {
            "eventId": event_id,
            "eventType": attempts[0]["eventType"],
            "sandboxId": attempts[0]["sandboxId"],
            "attempts": attempts,
        }

    async def stats(self, request: ControlRequest) -> ControlResponse:
        webhook = await self._get(request)
        start, end = _period(request, default_s=86400)
        rows = await self._database.run(
            lambda c: c.execute(
                "SELECT at, status, json_extract(record, '$.durationMs') FROM attempts "
                "WHERE webhook_id = ? AND at BETWEEN ? AND ?",
                (webhook.id, start, end),
            ).fetchall()
        )
        width = max((end - start) / _BUCKETS, 1e-9)
        buckets: dict[int, list[tuple[Any, ...]]] = {}
        for row in rows:
            index = min(_BUCKETS - 1, math.floor((row[0] - start) / width))
            buckets.setdefault(index, []).append(row)
        return ControlResponse(
            200,
            {
                **_count(rows),
                "buckets": [
                    {"timestamp": render_instant(start + index * width), **_count(bucket)}
                    for index, bucket in sorted(buckets.items())
                ],
            },
        )

    async def _get(self, request: ControlRequest) -> WebhookRecord:
        webhook = await self._webhooks.find(request.params["id"])
        if webhook is None:
            raise ResourceNotFoundError(f"webhook '{request.params['id']}' not found")
        return webhook

    def _render(self, webhook: WebhookRecord) -> dict[str, Any]:
        """Return everything but the secret, which is never shown again."""
        return {
            "id": webhook.id,
            "name": webhook.name,
            "createdAt": render_instant(webhook.created_at),
            "teamId": self._team_id,
            "url": webhook.url,
            "enabled": webhook.enabled,
            "events": webhook.events,
        }


def _count(rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    durations = [row[2] for row in rows]
    return {
        "total": len(rows),
        "failed": sum(row[1] == "failed" for row in rows),
        "durationMs": {
            "minimum": min(durations, default=0),
            "average": sum(durations) / len(durations) if durations else 0,
            "maximum": max(durations, default=0),
        },
    }


def _period(request: ControlRequest, default_s: float) -> tuple[float, float]:
    """Read `start` and `end`, as RFC 3339 or as seconds since the epoch."""
    now = time.time()
    start = _parse_instant(request, "start", now - default_s)
    return start, _parse_instant(request, "end", now)


def _parse_instant(request: ControlRequest, name: str, default: float) -> float:
    text = request.text(name)
    if not text:
        return default
    try:
        return float(text) if text.isdigit() else datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise BadRequestError(f"'{name}' must be an RFC 3339 instant") from None


def _checked_types(types: list[str]) -> list[str]:
    for name in types:
        if name not in TYPES:
            raise BadRequestError(f"'{name[:80]}' is no event type; known: {', '.join(TYPES)}")
    return types


async def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        raise BadRequestError("field 'url' must be an http or https URL")
    try:
        await resolve_receiver(url)
    except OSError:
        pass  # A name that is not known now may be known at the first delivery, which checks again.
    except ValueError as error:
        raise BadRequestError(f"field 'url': {error}") from None
    return url

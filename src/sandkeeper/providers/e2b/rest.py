"""The part of E2B's HTTP API that its SDK does not offer: events, webhooks, one sandbox's token
and the processor use of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx
import structlog

from sandkeeper.domain.errors import InstanceGoneError
from sandkeeper.providers.base import EventKind, LifecycleEvent, Webhook
from sandkeeper.providers.e2b.events import MalformedEventError, parse_event
from sandkeeper.providers.e2b.replies import HttpReply, UnexpectedReplyError, parse_http_date

log = structlog.get_logger(__name__)

#: E2B's largest page of events.
PAGE = 100
#: How long to wait for the reply that tells the server's time. A slower one tells less.
SKEW_TIMEOUT_S = 2.0


#: The walls of our own engine, and the word for any other provider's.
ENGINE_ISOLATIONS = frozenset({"bubblewrap", "gvisor"})
PROVIDER_ISOLATION = "provider"


class MalformedReplyError(ValueError):
    """A success whose body does not match the protocol."""


class E2BRest:
    """A plain client. Every reply that is not a success raises `UnexpectedReplyError`."""

    def __init__(self, *, api_url: str, api_key: str, request_timeout_s: float) -> None:
        self._http = httpx.AsyncClient(
            base_url=api_url,
            headers={"X-API-KEY": api_key},
            timeout=request_timeout_s,
            limits=httpx.Limits(max_connections=16),
        )
        self._tells_isolation = True

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def get_detail(self, instance_id: str) -> dict[str, Any]:
        """Return all that the control plane says about one sandbox, its access token included."""
        try:
            found = await self._ask("GET", f"/sandboxes/{quote(instance_id, safe='')}")
        except UnexpectedReplyError as error:
            if error.reply.status == 404 and error.reply.has_own_words:
                raise InstanceGoneError(instance_id=instance_id) from error
            raise
        if not isinstance(found, dict):
            raise MalformedReplyError("the sandbox is not a JSON object")
        self._tells_isolation = found.get("isolation") in ENGINE_ISOLATIONS
        return found

    async def read_isolation(self, instance_id: str) -> tuple[str | None, dict[str, Any] | None]:
        """Return what isolates a sandbox, and the detail that told it.

        Only our own engine tells it. E2B's cloud is asked once, and then no more. Both are None if
        the question failed, which must fail no creation.
        """
        if not self._tells_isolation:
            return PROVIDER_ISOLATION, None
        try:
            detail = await self.get_detail(instance_id)
        except (UnexpectedReplyError, InstanceGoneError, httpx.HTTPError, ValueError, OSError):
            return None, None
        told = detail.get("isolation")
        return (str(told) if told in ENGINE_ISOLATIONS else PROVIDER_ISOLATION), detail

    async def read_fingerprint(
        self, instance_id: str, path: str, skipped: Sequence[str]
    ) -> str | None:
        """Return the fingerprint of a folder; None if there is none. Only our own engine has it."""
        if not self._tells_isolation:
            return None
        params = {"path": path, "skip": list(skipped)}
        try:
            found = await self._ask(
                "GET", f"/sandboxes/{quote(instance_id, safe='')}/fingerprint", params=params
            )
        except UnexpectedReplyError as error:
            if error.reply.status != 404:
                raise
            return None
        told = found.get("fingerprint") if isinstance(found, dict) else None
        return told if isinstance(told, str) else None

    async def list_events(
        self, *, since: datetime, instance_id: str | None, pages_max: int
    ) -> list[LifecycleEvent]:
        """Return events at or after `since`, oldest first.

        Pages are read newest first. An event that arrives during the read pushes others to a later
        page, where they are seen twice, and none is missed.
        """
        suffix = "" if instance_id is None else f"/{quote(instance_id, safe='')}"
        found: dict[str, LifecycleEvent] = {}
        for page in range(pages_max):
            params = {"offset": page * PAGE, "limit": PAGE, "orderAsc": "false"}
            rows = await self._ask("GET", f"/events/sandboxes{suffix}", params=params)
            events = [event for row in _list(rows) if (event := _read(row)) is not None]
            found.update((event.event_id, event) for event in events if event.at >= since)
            if len(_list(rows)) < PAGE or any(event.at < since for event in events):
                break
        else:
            log.warning("events_not_read_to_the_end", pages_max=pages_max, since=since.isoformat())
        return sorted(found.values(), key=lambda event: (event.at, event.event_id))

    async def measure_cpu_pct(self, instance_ids: Sequence[str]) -> dict[str, float]:
        """Return the newest processor use of some sandboxes, in percent."""
        params = {"sandbox_ids": ",".join(instance_ids)}
        found = await self._ask("GET", "/sandboxes/metrics", params=params)
        rows = found.get("sandboxes") if isinstance(found, dict) else None
        if not isinstance(rows, dict):
            raise MalformedReplyError("the metrics are not a JSON object")
        return {
            instance_id: float(row["cpuUsedPct"])
            for instance_id, row in rows.items()
            if isinstance(row, dict) and isinstance(row.get("cpuUsedPct"), int | float)
        }

    async def measure_skew(
        self, clock: Callable[[], datetime]
    ) -> tuple[timedelta, timedelta] | None:
        """Return how far the server's clock is ahead of ours, at least and at most.

        A `Date` names a whole second, and the reply was sent at some moment of the call. None
        without one, or if it comes from a cache.
        """
        asked_at = clock()
        try:
            reply = await self._http.get(
                "/health", headers={"Cache-Control": "no-cache"}, timeout=SKEW_TIMEOUT_S
            )
        except (httpx.HTTPError, OSError):
            return None
        sent_at = parse_http_date(reply.headers.get("date", ""))
        if sent_at is None or "age" in reply.headers:
            return None
        return sent_at - clock(), sent_at + timedelta(seconds=1) - asked_at

    async def list_webhooks(self) -> list[Webhook]:
        return [_webhook(row) for row in _list(await self._ask("GET", "/events/webhooks"))]

    async def create_webhook(self, *, name: str, url: str, secret: str) -> Webhook:
        body = {
            "name": name,
            "url": url,
            "enabled": True,
            "events": [kind.value for kind in EventKind],
            "signatureSecret": secret,
        }
        return _webhook(await self._ask("POST", "/events/webhooks", json=body))

    async def update_webhook(self, webhook_id: str, changes: dict[str, object]) -> Webhook:
        path = f"/events/webhooks/{quote(webhook_id, safe='')}"
        return _webhook(await self._ask("PATCH", path, json=changes))

    async def delete_webhook(self, webhook_id: str) -> bool:
        try:
            await self._ask("DELETE", f"/events/webhooks/{quote(webhook_id, safe='')}")
        except UnexpectedReplyError as error:
            if error.reply.status == 404:
                return False
            raise
        return True

    async def _ask(self, method: str, path: str, **request: Any) -> object:
        response = await self._http.request(method, path, **request)
        if not response.is_success:
            raise UnexpectedReplyError(HttpReply.of(response))
        return response.json() if response.content else None


def _list(rows: object) -> list[object]:
    if not isinstance(rows, list):
        raise MalformedReplyError("the answer is not a list")
    return rows


def _read(row: object) -> LifecycleEvent | None:
    """Return the event, or None if it cannot be parsed: it must not hide those after it."""
    try:
        return parse_event(row)
    except MalformedEventError as error:
        log.warning("event_skipped", error=str(error))
        return None


def _webhook(row: object) -> Webhook:
    if not isinstance(row, dict):
        raise MalformedReplyError("the webhook is not a JSON object")
    return Webhook(
        webhook_id=str(row["id"]),
        name=str(row.get("name", "")),
        url=str(row["url"]),
        enabled=bool(row.get("enabled", True)),
        events=tuple(str(name) for name in row.get("events", ())),
    )

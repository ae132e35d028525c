"""Webhooks: registrations, signed deliveries with retries, and the log of attempts.

`events.append` writes pending deliveries; this module sends them, at least once: a crash between
a receiver's answer and our record of it sends the same event again, with the same event id.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import ipaddress
import logging
import socket
import sqlite3
import time
import uuid
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson

from sandkeeper.engine.sandboxes.events import render_instant, render_webhook
from sandkeeper.engine.sandboxes.records import EngineEvent, WebhookRecord
from sandkeeper.engine.storage.database import EngineDatabase

_log = logging.getLogger("sandkeeper.engine")

ATTEMPTS_MAX = 4  # The first and three retries, as E2B does.
RETRY_S = 10.0
_REQUEST_TIMEOUT_S = 10.0
_IN_FLIGHT_MAX = 8  # A webhook. More would crowd a slow receiver; fewer would delay a fast one.
_POLL_INTERVAL_S = 5.0
_KEPT_BODY_MAX = 4096


def sign(secret: str, body: bytes) -> str:
    """Sign a body as E2B does: SHA-256 over secret and body, base64 without padding."""
    digest = hashlib.sha256(secret.encode() + body).digest()
    return base64.b64encode(digest).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class _PendingDelivery:
    """One delivery that is due."""

    seq: int
    webhook: WebhookRecord
    event: EngineEvent
    attempts: int


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where a webhook is sent: its URL, and the addresses of its host that were checked."""

    url: httpx.URL
    addresses: tuple[str, ...]


class WebhookSender:
    """The registrations and the task that delivers to them."""

    def __init__(self, database: EngineDatabase, team_id: str, retry_s: float = RETRY_S) -> None:
        self._database = database
        self._team_id = team_id
        self._retry_s = retry_s
        self._nudged = asyncio.Event()
        self._in_flight: dict[int, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._client = httpx.AsyncClient(timeout=_REQUEST_TIMEOUT_S, trust_env=False)

    async def save(self, webhook: WebhookRecord) -> None:
        """Add or replace a registration."""
        await self._database.run(
            lambda c: c.execute(
                "INSERT INTO webhooks (id, record) VALUES (?, ?) "
                "ON CONFLICT (id) DO UPDATE SET record = excluded.record",
                (webhook.id, webhook.to_json()),
            )
        )

    async def find(self, webhook_id: str) -> WebhookRecord | None:
        row = await self._database.run(
            lambda c: c.execute(
                "SELECT record FROM webhooks WHERE id = ?", (webhook_id,)
            ).fetchone()
        )
        return None if row is None else WebhookRecord.from_json(row[0])

    async def list_all(self) -> list[WebhookRecord]:
        rows = await self._database.run(
            lambda c: c.execute("SELECT record FROM webhooks ORDER BY rowid").fetchall()
        )
        return [WebhookRecord.from_json(text) for (text,) in rows]

    async def delete(self, webhook_id: str) -> bool:
        """Remove a registration, its pending deliveries and its log."""

        def remove(connection: sqlite3.Connection) -> bool:
            connection.execute("DELETE FROM deliveries WHERE webhook_id = ?", (webhook_id,))
            connection.execute("DELETE FROM attempts WHERE webhook_id = ?", (webhook_id,))
            gone = connection.execute("DELETE FROM webhooks WHERE id = ?", (webhook_id,))
            return gone.rowcount > 0

        return await self._database.run(remove)

    def wake_up(self) -> None:
        """Check for pending deliveries now. Only saves waiting; nothing is lost without it."""
        self._nudged.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        try:
            while True:
                self._nudged.clear()
                now = time.time()
                try:
                    await self._deliver_due(now)
                    wait_s = await self._until_next(now)
                except sqlite3.Error:
                    _log.exception("pending deliveries could not be read; trying again")
                    wait_s = _POLL_INTERVAL_S
                with contextlib.suppress(TimeoutError):
                    # Not `wait_for`: in Python 3.11 it may swallow a cancellation.
                    async with asyncio.timeout(wait_s):
                        await self._nudged.wait()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._client.aclose()

    async def _until_next(self, now: float) -> float:
        """Return the seconds until the next delivery is due.

        Overdue ones are in progress or wait for one that is, whose end triggers the next check.
        """
        row = await self._database.run(
            lambda c: c.execute(
                "SELECT min(due_at) FROM deliveries WHERE due_at > ?", (now,)
            ).fetchone()
        )
        if row[0] is None:
            return _POLL_INTERVAL_S
        return min(_POLL_INTERVAL_S, max(0.0, float(row[0]) - time.time()))

    async def _deliver_due(self, now: float) -> None:
        # Copied here: the database's thread must not read what this thread changes.
        under_way = dict(self._in_flight)
        for owed in await self._database.run(lambda c: _read_due(c, now, under_way)):
            self._in_flight[owed.seq] = owed.webhook.id
            task = asyncio.create_task(self._deliver(owed))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _deliver(self, owed: _PendingDelivery) -> None:
        try:
            attempt = await self._attempt(owed)
            await self._database.run(lambda c: self._record_attempt(c, owed, attempt))
        except sqlite3.Error:
            _log.exception("a delivery could not be recorded; it is sent again")
        finally:
            self._in_flight.pop(owed.seq, None)
            self.wake_up()

    async def _attempt(self, owed: _PendingDelivery) -> dict[str, Any]:
        """Post once and return the line for the delivery log."""
        body = orjson.dumps(render_webhook(owed.event, self._team_id))
        delivery_id = str(uuid.uuid4())
        headers = {
            "content-type": "application/json",
            "e2b-webhook-id": owed.webhook.id,
            "e2b-delivery-id": delivery_id,
            "e2b-signature-version": "v1",
            "e2b-signature": sign(owed.webhook.secret, body),
        }
        began, began_at = time.monotonic(), time.time()
        status: int | None = None
        reply, reply_headers, error_class, error = None, None, None, None
        try:
            answer, reply = await self._post(owed.webhook.url, body, headers)
            status = answer.status_code
            reply_headers = orjson.dumps(dict(answer.headers)).decode()
            if not answer.is_success:
                error_class, error = "http_error", f"the receiver answered {status}"
        except httpx.TimeoutException as fault:
            error_class, error = "timeout", str(fault) or "no answer in time"
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as fault:
            error_class, error = _class_of(fault), str(fault)
        return {
            "id": delivery_id,
            "teamId": self._team_id,
            "webhookId": owed.webhook.id,
            "eventId": owed.event.id,
            "sandboxId": owed.event.sandbox_id,
            "eventType": owed.event.type,
            "status": "success" if error_class is None else "failed",
            "durationMs": round((time.monotonic() - began) * 1000),
            "requestBody": body.decode(),
            "requestHeaders": orjson.dumps({**headers, "e2b-signature": "[redacted]"}).decode(),
            "requestUrl": owed.webhook.url,
            "responseBody": reply,
            "responseHeaders": reply_headers,
            "responseHttpStatusCode": status,
            "errorClass": error_class,
            "errorMessage": error,
            "timestamp": render_instant(began_at),
            "at": began_at,
        }

    async def _post(
        self, url: str, body: bytes, headers: dict[str, str]
    ) -> tuple[httpx.Response, str]:
        """Send to the first of the checked addresses that accepts a connection."""
        receiver = await resolve_receiver(url)
        *others, last = receiver.addresses
        for address in others:
            with contextlib.suppress(httpx.ConnectError):
                return await self._post_to(address, receiver, body, headers)
        return await self._post_to(last, receiver, body, headers)

    async def _post_to(
        self, address: str, receiver: Receiver, body: bytes, headers: dict[str, str]
    ) -> tuple[httpx.Response, str]:
        async with self._client.stream(
            "POST",
            receiver.url.copy_with(host=address),
            content=body,
            headers={**headers, "host": receiver.url.netloc.decode("ascii")},
            extensions={"sni_hostname": receiver.url.raw_host.decode("ascii")},
        ) as answer:
            return answer, await _read_start(answer)

    def _record_attempt(
        self, connection: sqlite3.Connection, owed: _PendingDelivery, attempt: dict[str, Any]
    ) -> None:
        at = attempt.pop("at")
        connection.execute(
            "INSERT INTO attempts (webhook_id, event_id, event_type, status, at, record) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (
                owed.webhook.id,
                owed.event.id,
                owed.event.type,
                attempt["status"],
                at,
                orjson.dumps(attempt).decode(),
            ),
        )
        if attempt["status"] == "success" or owed.attempts + 1 >= ATTEMPTS_MAX:
            connection.execute("DELETE FROM deliveries WHERE seq = ?", (owed.seq,))
        else:
            connection.execute(
                "UPDATE deliveries SET attempts = attempts + 1, due_at = ? WHERE seq = ?",
                (time.time() + self._retry_s, owed.seq),
            )


def _read_due(
    connection: sqlite3.Connection, now: float, under_way: dict[int, str]
) -> list[_PendingDelivery]:
    """Return due deliveries not in progress, per webhook, so that none waits for another."""
    due = []
    marks = ", ".join(str(seq) for seq in under_way)
    for webhook_id, text in connection.execute("SELECT id, record FROM webhooks").fetchall():
        slots = _IN_FLIGHT_MAX - sum(one == webhook_id for one in under_way.values())
        rows = connection.execute(
            "SELECT d.seq, e.record, d.attempts FROM deliveries d "  # noqa: S608 - integers
            "JOIN events e ON e.id = d.event_id "
            f"WHERE d.webhook_id = ? AND d.due_at <= ? AND d.seq NOT IN ({marks}) "
            "ORDER BY d.seq LIMIT ?",
            (webhook_id, now, max(0, slots)),
        ).fetchall()
        webhook = WebhookRecord.from_json(text)
        due += [
            _PendingDelivery(seq, webhook, EngineEvent.from_json(event), tried)
            for seq, event, tried in rows
        ]
    return due


async def resolve_receiver(url: str) -> Receiver:
    """Return the addresses to send to, so that no later answer of the DNS names another one.

    Raises ValueError for a link-local or otherwise special network: cloud machines serve their
    credentials on such addresses. Loopback and private networks are where keepers run, so they are
    allowed.
    """
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    found = await asyncio.get_running_loop().getaddrinfo(
        parts.hostname, port, type=socket.SOCK_STREAM
    )
    addresses = tuple(dict.fromkeys(str(address[0]) for *_, address in found))
    for one in addresses:
        ip = ipaddress.ip_address(one.partition("%")[0])
        mapped = getattr(ip, "ipv4_mapped", None) or ip
        if mapped.is_link_local or mapped.is_multicast or mapped.is_unspecified:
            raise ValueError(f"{parts.hostname} is {ip}, where no webhook may be sent")
    try:
        return Receiver(httpx.URL(url), addresses)
    except httpx.InvalidURL as error:
        raise ValueError(str(error)) from None


async def _read_start(answer: httpx.Response) -> str:
    """Return the beginning of an answer, however long it is."""
    kept = b""
    async for chunk in answer.aiter_bytes():
        kept += chunk
        if len(kept) >= _KEPT_BODY_MAX:
            break
    return kept[:_KEPT_BODY_MAX].decode(errors="replace")


def _class_of(fault: Exception) -> str:
    """Name a failed request as E2B's delivery log does."""
    cause: BaseException | None = fault
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return "dns_error"
        cause = cause.__cause__ or cause.__context__
    return "transport_error" if isinstance(fault, httpx.TransportError) else "request_error"

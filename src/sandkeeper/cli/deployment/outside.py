"""The checks of `sandkeeper doctor` on a deployment from outside: all that lies before the keeper.

They change nothing. One of them sends a webhook without a signature, which the keeper must refuse
itself.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from typing import Final
from urllib.parse import urlsplit

import httpx

from sandkeeper.engine.runtime.contract import Capability

TIMEOUT_S: Final = 10.0
CERTIFICATE_DAYS_MIN: Final = 14
"""A certificate is renewed a month before its end; one that was not needs a look."""
CLOCK_S_MAX: Final = 2.0
STREAM_WITHIN_S: Final = 5.0
"""A keeper sends the first event at once. Later means that a proxy collects what it passes on."""
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


def is_this_machine(url: str) -> bool:
    """Return whether the URL names a loopback address."""
    host = urlsplit(url).hostname or ""
    return host in LOOPBACK or host.endswith(".localhost")


def check_outside(url: str, key: str | None) -> Iterator[Capability]:
    """Yield a finding for each part of the way to the keeper."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=url, timeout=TIMEOUT_S, follow_redirects=False) as http:
        yield _check_encryption(url)
        try:
            health = http.get("/healthz")
        except httpx.HTTPError as error:
            fix = "check the name, the firewall and the proxy; `curl -v` says more"
            yield Capability("health", ok=False, finding=f"{url} does not answer: {error}", fix=fix)
            return
        yield _check_health(health)
        yield _check_clock(health)
        yield from _check_readiness(http.get("/readyz", headers=headers))
        yield _check_webhooks(http)
        yield _check_metrics(http, url)
        yield _check_stream(http, headers)


def _check_encryption(url: str) -> Capability:
    parts = urlsplit(url)
    if parts.scheme != "https":
        ok = is_this_machine(url)
        finding = "not encrypted" + (", on this machine only" if ok else ": keys can be read")
        return Capability("TLS", ok, finding, "put a proxy with a certificate before the keeper")
    fix = "renew the certificate at the proxy, for the name in the URL"
    try:
        with (
            socket.create_connection((parts.hostname, parts.port or 443), TIMEOUT_S) as plain,
            ssl.create_default_context().wrap_socket(
                plain, server_hostname=parts.hostname
            ) as secure,
        ):
            certificate = secure.getpeercert() or {}
            protocol = secure.version()
    except OSError as error:
        return Capability("TLS", ok=False, finding=str(error), fix=fix)
    ends_at = ssl.cert_time_to_seconds(str(certificate["notAfter"]))
    days = (ends_at - time.time()) / 86400
    # A certificate that is made for half a day is renewed all the time.
    lasts = (ends_at - ssl.cert_time_to_seconds(str(certificate["notBefore"]))) / 86400
    ok = days > min(CERTIFICATE_DAYS_MIN, lasts / 4)
    return Capability("TLS", ok, f"{protocol}, the certificate ends in {days:.1f} days", fix)


def _check_health(health: httpx.Response) -> Capability:
    is_ours = health.is_success and "x-request-id" in health.headers
    finding = f"HTTP {health.status_code}" + ("" if is_ours else ", not from a keeper")
    fix = "route every path to the keeper, without a login page before it"
    return Capability("health", is_ours, finding, fix)


def _check_clock(health: httpx.Response) -> Capability:
    given = health.headers.get("date")
    if given is None:
        return Capability("clock", ok=False, finding="no Date in the answer", fix="let it pass")
    # The header has whole seconds, and the answer was on its way for a while.
    took_s = health.elapsed.total_seconds()
    ahead_s = (parsedate_to_datetime(given) - datetime.now(UTC)).total_seconds()
    ok = -CLOCK_S_MAX - 1 - took_s <= ahead_s <= CLOCK_S_MAX
    finding = f"differs by {abs(ahead_s):.0f} s from this machine's"
    return Capability("clock", ok, finding, "set both clocks with NTP")


def _check_readiness(ready: httpx.Response) -> Iterator[Capability]:
    try:
        said = ready.json()
        status = said["status"]
    except (ValueError, KeyError):
        finding = f"HTTP {ready.status_code} without a status"
        yield Capability("readiness", ok=False, finding=finding, fix="route /readyz to the keeper")
        return
    reasons = "; ".join(said.get("reasons", []))
    yield Capability(
        "readiness", status == "ready", f"{status}. {reasons}".strip(), "see the log of the keeper"
    )
    if "version" not in said:
        finding = "unknown: the answer has no details"
        fix = "set SANDKEEPER_OPERATOR_KEY to a key that may monitor"
        yield Capability("version", ok=False, finding=finding, fix=fix)
        return
    own = version("sandkeeper")
    finding = f"{said['version']}, this command is {own}"
    fix = "install the keeper's version here, or finish the upgrade of its replicas"
    yield Capability("version", said["version"] == own, finding, fix)


def _check_webhooks(http: httpx.Client) -> Capability:
    fix = "let POST /api/webhooks/e2b reach the keeper unchanged, without a login page before it"
    try:
        refused = http.post("/api/webhooks/e2b", content=b"{}")
        code = refused.json().get("code")
    except (httpx.HTTPError, ValueError, AttributeError) as error:
        return Capability(
            "webhooks", ok=False, finding=f"not refused by a keeper: {error}", fix=fix
        )
    if code == "feature_disabled":
        return Capability("webhooks", ok=True, finding="switched off")
    ok = code in {"invalid_signature", "invalid_request", "malformed_request"}
    finding = "an unsigned one reaches the keeper and is refused" if ok else f"answered by {code}"
    return Capability("webhooks", ok, finding, fix)


def _check_metrics(http: httpx.Client, url: str) -> Capability:
    answer = http.get("/metrics")
    is_open = answer.is_success and b"sandkeeper_" in answer.content
    ok = not is_open or is_this_machine(url)
    finding = "anyone can read them" if is_open else "not for everyone"
    return Capability("metrics", ok, finding, "hide /metrics at the proxy")


def _check_stream(http: httpx.Client, headers: dict[str, str]) -> Capability:
    """Open the fleet's live stream and look how long its first event takes."""
    fix = "switch off buffering and compression of text/event-stream at the proxy"
    began = time.monotonic()
    try:
        limits = httpx.Timeout(TIMEOUT_S, read=STREAM_WITHIN_S)
        with http.stream("GET", "/api/fleet/events", headers=headers, timeout=limits) as stream:
            if stream.status_code in {401, 403}:
                finding = f"HTTP {stream.status_code}: not checked without a key"
                fix = "set SANDKEEPER_OPERATOR_KEY"
                return Capability("live streams", ok=False, finding=finding, fix=fix)
            if stream.status_code != 200:
                finding = f"HTTP {stream.status_code}"
                return Capability("live streams", ok=False, finding=finding, fix=fix)
            encoding = stream.headers.get("content-encoding")
            next(stream.iter_raw())
    except (httpx.TimeoutException, StopIteration):
        finding = f"nothing came within {STREAM_WITHIN_S:.0f} s: a proxy collects it"
        return Capability("live streams", ok=False, finding=finding, fix=fix)
    except httpx.HTTPError as error:
        return Capability("live streams", ok=False, finding=str(error), fix=fix)
    if encoding:
        finding = f"compressed by a proxy ({encoding})"
        return Capability("live streams", ok=False, finding=finding, fix=fix)
    finding = f"the first event came after {time.monotonic() - began:.2f} s"
    return Capability("live streams", ok=True, finding=finding)

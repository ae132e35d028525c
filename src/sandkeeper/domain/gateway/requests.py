"""What a request to a preview is: a person's visit, a use of the app, or only traffic."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.policy import PreviewUse

MACHINES = re.compile(
    r"bot\b|bot/|crawl|spider|slurp|facebookexternalhit|whatsapp|telegram|slack|discord|skype"
    r"|embedly|preview|unfurl|pinterest|vkshare|mastodon|iframely|uptime|pingdom|statuscake"
    r"|monitor|healthcheck|kube-probe|zabbix|nagios|datadog|newrelic|site24x7|lighthouse"
    r"|curl/|wget/|python-|go-http|java/|okhttp|axios|node-fetch|undici|libwww|scrapy|httpx/",
    re.IGNORECASE,
)
"""Programs that open links on their own: unfurlers, crawlers, monitors, HTTP libraries."""

PAGES = frozenset({"document", "iframe", "frame", ""})
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
ICON = re.compile(r"/(?:favicon\.ico|apple-touch-icon[^/]*\.png)")
DEV_SOCKETS = re.compile(
    r"/(?:_next/(?:webpack-hmr|hmr)|__?webpack_hmr|@vite|_nuxt|__vite_hmr|sockjs-node|livereload"
    r"|browser-sync|__browser_sync|_stcore/stream|ws$|hmr)"
)
DEV_PROTOCOLS = frozenset({"vite-hmr", "vite-ping", "livereload"})
BEAT = re.compile(
    rb"\s*(?:[23]|3probe|2probe|5|p[io]ng|heartbeat|keep-?alive|\{[^{}]{0,80}"
    rb"\"(?:ping|pong|heartbeat|keepalive|keep-alive|noop)\"[^{}]{0,80}\})?\s*",
    re.IGNORECASE,
)


class RequestKind(StrEnum):
    """What a request is, by what the browser says about it."""

    NAVIGATION = "navigation"
    """A person opens a page."""
    RELOAD = "reload"
    """A page that opened itself again, without a person."""
    WRITE = "write"
    """The page changes something."""
    SOCKET = "socket"
    DEV_SOCKET = "dev_socket"
    """A development server's socket, which tells the page that files have changed."""
    ICON = "icon"
    BACKGROUND = "background"
    """A file of the page, a poll, or whatever a program asks for."""
    MACHINE = "machine"
    """A link preview, a crawler, a monitor, a prefetch."""

    @property
    def is_page(self) -> bool:
        """Return whether a page is shown for it."""
        return self in {RequestKind.NAVIGATION, RequestKind.RELOAD}

    @property
    def is_socket(self) -> bool:
        return self in {RequestKind.SOCKET, RequestKind.DEV_SOCKET}


def classify_request(
    method: str, path: str, headers: Mapping[str, str], *, is_socket: bool = False
) -> RequestKind:
    """Return what this request is; header names are in lower case."""
    if is_socket:
        protocols = {one.strip() for one in headers.get("sec-websocket-protocol", "").split(",")}
        is_dev = bool(protocols & DEV_PROTOCOLS or DEV_SOCKETS.match(path))
        return RequestKind.DEV_SOCKET if is_dev else RequestKind.SOCKET
    if method == "GET" and ICON.fullmatch(path):
        return RequestKind.ICON
    if _is_machine(headers):
        return RequestKind.MACHINE
    if method in WRITES:
        is_beacon = headers.get("sec-fetch-mode") == "no-cors"
        return RequestKind.BACKGROUND if is_beacon else RequestKind.WRITE
    if method == "GET" and _is_navigation(headers):
        is_own = headers.get("sec-fetch-site") == "same-origin"
        is_alone = is_own and headers.get("sec-fetch-user") != "?1"
        return RequestKind.RELOAD if is_alone else RequestKind.NAVIGATION
    return RequestKind.BACKGROUND


def find_use(kind: RequestKind, counts: PreviewUse) -> ActivityClass:
    """Return how a request counts: as use, which keeps the sandbox awake, or as traffic only."""
    used = {
        PreviewUse.NONE: frozenset[RequestKind](),
        PreviewUse.NAVIGATION: frozenset({RequestKind.NAVIGATION}),
        PreviewUse.INTERACTION: frozenset({RequestKind.NAVIGATION, RequestKind.WRITE}),
        PreviewUse.ALL: frozenset(RequestKind) - {RequestKind.MACHINE, RequestKind.DEV_SOCKET},
    }[counts]
    return ActivityClass.INTENT if kind in used else ActivityClass.PASSIVE


def is_use_of_socket(message: bytes, before: bytes | None) -> bool:
    """Return whether a message from the page is more than a heartbeat of its library.

    Those are known, or the same as the message before.
    """
    return message != before and not BEAT.fullmatch(message[:200])


def _is_navigation(headers: Mapping[str, str]) -> bool:
    if "text/html" not in headers.get("accept", ""):
        return False
    mode = headers.get("sec-fetch-mode")
    if mode is None:  # An old browser, or one on a plain address.
        return headers.get("user-agent", "").startswith("Mozilla/")
    return mode == "navigate" and headers.get("sec-fetch-dest", "") in PAGES


def _is_machine(headers: Mapping[str, str]) -> bool:
    purpose = " ".join(
        headers.get(name, "") for name in ("sec-purpose", "purpose", "x-purpose", "x-moz")
    ).lower()
    if "prefetch" in purpose or "preview" in purpose or "prerender" in purpose:
        return True
    return bool(MACHINES.search(headers.get("user-agent", "")))

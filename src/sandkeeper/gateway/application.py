"""The gateway as one ASGI application in front of the keeper's own."""

from __future__ import annotations

import asyncio
import hashlib
import time
from urllib.parse import quote

import structlog
from starlette.types import ASGIApp

from sandkeeper.api.deps import ApiContext
from sandkeeper.api.limits import RateLimit
from sandkeeper.api.status.cache import CachedStatus
from sandkeeper.common.dashboard_host import DASHBOARD_HOST
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.domain.gateway.addresses import PreviewAddress
from sandkeeper.domain.gateway.links import is_own_path
from sandkeeper.domain.gateway.requests import classify_request
from sandkeeper.domain.gateway.visits import (
    Admission,
    AnswerHere,
    PreviewProblem,
    Target,
    decide_visit,
)
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.gateway.admission import Visitors
from sandkeeper.gateway.exchange import PassExchange, is_exchange
from sandkeeper.gateway.fields import Crossing, RequestFields
from sandkeeper.gateway.limits import PreviewLimits
from sandkeeper.gateway.pages import EVENTS_PATH, Details, Pages, send_answer
from sandkeeper.gateway.records import VisitRecords
from sandkeeper.gateway.relaying import Exchange, pass_on
from sandkeeper.gateway.upstreams import Unreachable, Upstreams
from sandkeeper.gateway.visit import Visit
from sandkeeper.gateway.waiting import WaitingPages
from sandkeeper.hosting.keeper_keys import load_keys
from sandkeeper.providers.base import PortAddress
from sandkeeper.relay.asgi import Receive, Scope, Send
from sandkeeper.telemetry import name_owner

LEFT = 499
"""The status in figures and lists of a request whose client left before its answer."""
UNTOLD = frozenset(
    {
        PreviewProblem.SIGN_IN,
        PreviewProblem.REFUSED,
        PreviewProblem.LINK_OVER,
        PreviewProblem.NO_PREVIEW,
    }
)
"""Problems of those who may not know what there is."""
LINES = 20
LINES_WITHIN_S = 5.0

log = structlog.get_logger(__name__)

OWN_PATHS = "/.sandkeeper/"
"""Paths on every preview's host that are the gateway's own, and never reach an app."""


class Gateway:
    """Serves previews by their host names, and of everything else only its own health."""

    def __init__(self, context: ApiContext) -> None:
        services = context.services
        self._context = context
        self._clock = services.deps.clock
        self._urls = services.preview_urls
        self._names = services.preview_names
        self._defaults = services.preview_defaults
        self._visitors = Visitors(context.authenticator, context.preview_passes, self._urls)
        self._passes = PassExchange(
            services.share_links, context.preview_passes, is_secure=not self._urls.is_local
        )
        self._domains = services.preview_domains
        self._limits = PreviewLimits(services.deps.settings)
        self._pages = Pages(services.deps.settings.gateway_page)
        self._records = VisitRecords(services)
        self._looks = Looks()
        self._upstreams = Upstreams()
        keys = load_keys(services.deps.settings)
        self._fields = RequestFields([hashlib.sha256(key.encode()).hexdigest() for key in keys])
        self.waiting = WaitingPages(context.statuses, services.deps.clock)
        services.feed.follow(self.waiting.wake_up)

    def in_front_of(self, inner: ASGIApp) -> ASGIApp:
        """Return an application that serves previews, and hands all other hosts to `inner`."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            is_ours = scope["type"] != "lifespan" and self._is_ours(scope)
            await (self if is_ours else inner)(scope, receive, send)

        return serve if self._urls.domain else inner

    def close(self) -> None:
        """End the streams of waiting pages, which would never end on their own."""
        self.waiting.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return
        hosts = _read_hosts(scope)
        if scope["path"] == "/healthz" and not self._is_ours(scope):
            await send_answer(scope, send, 200, [(b"content-type", b"text/plain")], b"ok")
            return
        address = self._find_address(hosts[0]) if len(hosts) == 1 else None
        await self._visit(scope, receive, send, address)

    def _is_ours(self, scope: Scope) -> bool:
        """Return whether any Host names a preview: such a request never reaches the API."""
        return any(
            self._urls.owns(host) or self._domains.find(host) is not None
            for host in _read_hosts(scope)
        )

    def _find_address(self, host: str) -> PreviewAddress | None:
        return self._urls.parse(host) or self._domains.find_address(host)

    async def _visit(
        self, scope: Scope, receive: Receive, send: Send, address: PreviewAddress | None
    ) -> None:
        began = time.perf_counter()
        headers = _join_headers(scope)
        is_socket = scope["type"] == "websocket"
        method = scope.get("method", "GET")
        kind = classify_request(method, scope["path"], headers, is_socket=is_socket)
        if address is None:
            await self._pages.send(scope, send, PreviewProblem.NO_PREVIEW, kind, Details())
            return
        owner = await self._names.find(address.name)
        entry = await self._context.statuses.get(owner) if owner is not None else None
        policy = entry.sandbox.policy if entry is not None else None
        access = self._defaults.find_access(policy)
        admission, visitor = self._visitors.admit(owner, address, access, kind, headers)
        visit = Visit(scope, headers, kind, address, owner, entry, visitor, admission, began)
        if owner is not None:
            name_owner(owner)
        if is_exchange(scope["path"]) and not is_socket:
            await self._exchange(visit, send)
            return
        is_own = scope["path"].startswith(OWN_PATHS)
        if is_own and admission is Admission.ADMITTED and entry is not None:
            await self._serve_own(visit, entry, receive, send)
            return
        await self._proceed(visit, entry.sandbox if entry is not None else None, receive, send)

    async def _exchange(self, visit: Visit, send: Send) -> None:
        """Exchange a link or a code for a pass; what opens links on its own uses none up."""
        if visit.owner is None or not visit.kind.is_page:
            await self._answer(visit, send, PreviewProblem.SIGN_IN)
            return
        headers = await self._passes.make_answer(visit.scope, visit.owner, visit.address)
        if headers is None:
            await self._answer(visit, send, PreviewProblem.LINK_OVER)
        else:
            await send_answer(visit.scope, send, 303, headers)

    async def _proceed(
        self, visit: Visit, sandbox: Sandbox | None, receive: Receive, send: Send
    ) -> None:
        """Do what is decided for this state of the sandbox."""
        target = self._find_target(visit.address, sandbox)
        may_wake = sandbox is not None and self._defaults.may_wake(sandbox.policy)
        decision = decide_visit(visit.kind, visit.admission, target, may_wake=may_wake)
        if isinstance(decision, AnswerHere):
            if decision.wakes and sandbox is not None:
                await self._wake(visit, sandbox)
            await self._answer(visit, send, decision.problem)
        elif sandbox is not None and target is not None and target.port is not None:
            await self._pass_on(visit, sandbox, target.port, receive, send)

    def _find_target(self, address: PreviewAddress, sandbox: Sandbox | None) -> Target | None:
        if sandbox is None:
            return None
        is_waking = sandbox.wake is not None and sandbox.wake.step is not None
        port = address.port or sandbox.launch.port
        return Target(
            sandbox.state,
            is_waking=is_waking or sandbox.is_waking(self._clock()),
            is_ready=sandbox.run.ready or address.port is not None,
            port=port,
        )

    async def _serve_own(
        self, visit: Visit, entry: CachedStatus, receive: Receive, send: Send
    ) -> None:
        if visit.scope["path"] == EVENTS_PATH and visit.scope["type"] == "http":
            sandbox = entry.sandbox
            await self.waiting.serve(sandbox.owner, sandbox, visit.scope, receive, send)
        else:
            await self._answer(visit, send, PreviewProblem.NO_PREVIEW)

    async def _wake(self, visit: Visit, sandbox: Sandbox) -> None:
        """Start or join a wake; a refusal shows in the sandbox's own status, and on the page."""
        try:
            await self._context.services.wakes.start(
                sandbox.id, actor=f"visit:{visit.visitor.name}"
            )
        except SandkeeperError as error:
            log.warning("visit_does_not_wake", code=error.code, error=str(error))
        self._records.note_use(sandbox, visit.kind)

    async def _pass_on(
        self, visit: Visit, sandbox: Sandbox, port: int, receive: Receive, send: Send
    ) -> None:
        instance_id = sandbox.instance_id
        if instance_id is None:
            await self._answer(visit, send, PreviewProblem.INSTANCE_GONE)
            return
        if self._limits.is_over(sandbox.id, is_socket=visit.kind.is_socket):
            await self._answer(visit, send, PreviewProblem.TOO_MUCH)
            return
        self._records.note_use(sandbox, visit.kind)
        place = self._context.deps.providers.get(sandbox).locate_port(instance_id, port)
        exchange = Exchange(
            sandbox_id=sandbox.id,
            instance_id=instance_id,
            crossing=Crossing.make(f"{self._urls.scheme}://{visit.host}", place),
            limits=self._limits,
            on_use=lambda: self._records.note_message(sandbox, visit.kind),
        )
        problem = await self._relay(visit, exchange, place, receive, send)
        if problem is not None:
            await self._explain(visit, sandbox, port, problem, receive, send)
            return
        self._records.note_answer(
            visit, exchange.status or LEFT, exchange.took_ms, exchange.received, exchange.sent
        )
        if port == sandbox.launch.port and not sandbox.run.ready and 0 < exchange.status < 500:
            await self._context.services.app_monitor.look_again(sandbox)

    async def _relay(
        self,
        visit: Visit,
        exchange: Exchange,
        place: PortAddress,
        receive: Receive,
        send: Send,
    ) -> PreviewProblem | None:
        """Return the problem if the app did not answer."""
        try:
            upstream = await self._upstreams.dial(place)
        except Unreachable:
            return PreviewProblem.PROVIDER_AWAY
        scope = visit.scope
        fields = self._fields.build(scope, exchange.crossing, place, visit.host)
        with self._limits.socket(exchange.sandbox_id, is_held=visit.kind.is_socket):
            return await pass_on(exchange, upstream, fields, scope, receive, send)

    async def _explain(
        self,
        visit: Visit,
        sandbox: Sandbox,
        port: int,
        problem: PreviewProblem,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer for an app that did not, after a look at what has become of it."""
        services = self._context.services
        is_own_port = port == sandbox.launch.port
        if problem is PreviewProblem.INSTANCE_GONE and self._looks.may_look(sandbox.id):
            fresh = await services.verification.verify(sandbox.id)
            if fresh.state is not State.RUNNING:
                await self._proceed(visit, fresh, receive, send)
                return
        elif problem in {PreviewProblem.APP_STARTING, PreviewProblem.APP_BROKE_OFF} and is_own_port:
            fresh = await services.app_monitor.look_again(sandbox)
            if fresh.run.app_exit_code is not None:
                problem = PreviewProblem.APP_ENDED
        elif problem is PreviewProblem.APP_STARTING:
            problem = PreviewProblem.WRONG_PORT
        await self._answer(visit, send, problem)

    async def _answer(self, visit: Visit, send: Send, problem: PreviewProblem) -> None:
        details = Details()
        if visit.kind.is_page:
            details = await self._find_details(visit, problem)
        status = await self._pages.send(visit.scope, send, problem, visit.kind, details)
        took_ms = round((time.perf_counter() - visit.began) * 1000)
        self._records.note_answer(visit, status, took_ms)

    async def _find_details(self, visit: Visit, problem: PreviewProblem) -> Details:
        if problem in {PreviewProblem.SIGN_IN, PreviewProblem.REFUSED}:
            return Details(sign_in_url=self._find_sign_in_url(visit))
        entry = visit.entry
        if entry is None or problem in UNTOLD:
            return Details()
        sandbox = entry.sandbox
        if not visit.visitor.is_member:
            return Details()
        lines: tuple[str, ...] = ()
        if problem in {PreviewProblem.APP_ENDED, PreviewProblem.APP_BROKE_OFF}:
            lines = await self._read_lines(sandbox)
        return Details(name=sandbox.owner.id, lines=lines)

    async def _read_lines(self, sandbox: Sandbox) -> tuple[str, ...]:
        try:
            async with asyncio.timeout(LINES_WITHIN_S):
                return (await self._context.services.apps.read(sandbox, lines=LINES)).lines
        except (SandkeeperError, TimeoutError) as error:
            log.info("app_log_not_read", sandbox_id=sandbox.id, error=str(error))
            return ()

    def _find_sign_in_url(self, visit: Visit) -> str:
        """Return the dashboard's page that leads a member back here with a pass."""
        settings = self._context.deps.settings
        base = settings.public_url.rstrip("/")
        if not base and self._urls.is_local:
            base = f"http://{DASHBOARD_HOST}:{settings.port}"
        if not base:
            return ""
        path = visit.scope["path"] if is_own_path(visit.scope["path"]) else "/"
        here = f"{self._urls.scheme}://{visit.host}{path}"
        return f"{base}/previews/enter?to={quote(here, safe='')}"


class Looks:
    """Bounds how often visitors make the keeper ask a provider about one sandbox."""

    def __init__(self) -> None:
        self._limit = RateLimit()

    def may_look(self, sandbox_id: str) -> bool:
        """Return whether it was not asked within the last two seconds."""
        return not self._limit.spend(sandbox_id, rate=0.5, burst=1)


def _read_hosts(scope: Scope) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]


def _join_headers(scope: Scope) -> dict[str, str]:
    """Return the headers by name; those that came several times are joined as HTTP says."""
    joined: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        between = "; " if key == "cookie" else ", "
        joined[key] = f"{joined[key]}{between}{text}" if key in joined else text
    return joined

"""E2B's cloud, a self-hosted E2B and the local engine, through the official SDK.

The three differ by address and key only. What the SDK does not offer is in `rest`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import e2b
import httpx
from e2b import ConnectionConfig
from packaging.version import Version

from sandkeeper.domain.breaker import Breaker
from sandkeeper.domain.clock import SKEW_MAX
from sandkeeper.domain.errors import (
    InstanceGoneError,
    ProviderAmbiguousError,
    ProviderRefusedError,
    ProviderUnauthorizedError,
    ProviderUnavailableError,
    ProviderUnsupportedError,
    ResumeFailedError,
    SandkeeperError,
)
from sandkeeper.domain.work import RunningCommand
from sandkeeper.providers.base import (
    CreateSpec,
    Instance,
    InstancePage,
    InstanceState,
    LifecycleEvent,
    PortAddress,
    SdkConnectionInfo,
    Webhook,
    WebhookDelivery,
)
from sandkeeper.providers.e2b.calls import Calls
from sandkeeper.providers.e2b.commands import is_ours, name_command
from sandkeeper.providers.e2b.connections import Connections
from sandkeeper.providers.e2b.endpoint import E2BConnection, locate
from sandkeeper.providers.e2b.mapping import STATES, read_count
from sandkeeper.providers.e2b.metadata import (
    KEEPER,
    SANDBOX,
    make_creation_key,
    parse_metadata,
    render_metadata,
)
from sandkeeper.providers.e2b.replies import UnexpectedReplyError, find_reply
from sandkeeper.providers.e2b.rest import E2BRest, MalformedReplyError
from sandkeeper.providers.e2b.webhooks import build_test_delivery, parse_delivery
from sandkeeper.providers.rate_limit import RateLimiter

T = TypeVar("T")

PORT_PROBE_TIMEOUT_S = 5.0
# E2B's proxy returns this for a port on which nothing listens, and for a sandbox that does not run.
NO_SERVER = 502
# With the provider's own words, this says that it tried to resume and could not. A proxy's page,
# 502 and 503 say only that nothing was tried.
RESUME_FAILED = 500
# To a creation: its key is that of a request that is not answered yet.
UNDER_WAY = 409


class E2BProvider:
    """One account at one E2B endpoint. The contract is in `base`."""

    def __init__(
        self,
        connection: E2BConnection,
        *,
        keeper: str,
        breaker: Breaker,
        rate_limiter: RateLimiter | None = None,
        name: str = "e2b",
        region: str = "default",
        on_call: Callable[[str, str, float], None] | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.name = name
        self.region = region
        self.keeper = keeper
        self._measured = timedelta()
        self._clock = clock
        self._connection = connection
        self._params: dict[str, object] = {
            "api_key": connection.api_key,
            "api_url": connection.api_url,
            "sandbox_url": connection.sandbox_url,
            "domain": connection.domain,
            "request_timeout": connection.request_timeout_s,
            "retries": 0,  # RateLimiter and Calls do all the waiting; a create is never sent twice.
            "debug": False,
        }
        config = ConnectionConfig(**self._params)  # type: ignore[arg-type]  # See _params above.
        self._domain = config.domain
        self._sdk = e2b.E2B(**self._params).AsyncSandbox  # type: ignore[arg-type]  # Likewise.
        self._rate_limiter = rate_limiter or RateLimiter()
        self._calls = Calls(
            provider=name,
            rate_limiter=self._rate_limiter,
            breaker=breaker,
            clock=clock,
            on_call=on_call,
        )
        self._traffic_url = connection.sandbox_url or os.environ.get("E2B_SANDBOX_URL")
        self._traffic = httpx.AsyncClient(
            timeout=PORT_PROBE_TIMEOUT_S, limits=httpx.Limits(max_connections=32)
        )
        self._connections = Connections(
            api_url=config.api_url, sandbox_url=self._traffic_url, domain=config.domain
        )
        self._rest = E2BRest(
            api_url=config.api_url,
            api_key=config.api_key or "",
            request_timeout_s=connection.request_timeout_s,
        )

    async def create(self, spec: CreateSpec) -> Instance:
        async def create() -> Instance:
            sandbox = await self._sdk.create(
                template=spec.template,
                timeout=spec.timeout_s,
                metadata={**spec.metadata, **render_metadata(spec.tag)},
                envs=dict(spec.env),
                allow_internet_access=spec.allow_internet,
                lifecycle={"on_timeout": "pause", "auto_resume": False},
                request_timeout=self._connection.boot_timeout_s,
                idempotency_key=make_creation_key(spec),
            )
            running = self._running(sandbox, timeout_s=spec.timeout_s, port=spec.port)
            isolation, detail = await self._rest.read_isolation(sandbox.sandbox_id)
            if detail is not None:
                self._connections.keep(sandbox.sandbox_id, detail)
            return replace(
                running,
                started_at=running.seen_at,
                template=spec.template,
                tag=spec.tag,
                metadata=dict(spec.metadata),
                isolation=isolation,
                vcpus=read_count((detail or {}).get("cpuCount")),
                memory_mb=read_count((detail or {}).get("memoryMB")),
            )

        await self._rate_limiter.wait_to_create()
        try:
            return await self._perform("create", create, timeout_s=self._connection.boot_timeout_s)
        except ProviderRefusedError as error:
            reply = None if error.__cause__ is None else find_reply(error.__cause__)
            if reply is None or reply.status != UNDER_WAY:
                raise
            raise ProviderAmbiguousError(
                "The provider carries out an earlier creation of this sandbox."
            ) from error

    async def connect(
        self, instance_id: str, *, timeout_s: int, port: int | None = None, reboot: bool = False
    ) -> Instance:
        async def connect() -> Instance:
            sandbox = await self._sdk.connect(
                instance_id,
                timeout=timeout_s,
                on_resume="reboot" if reboot else "restore",
                request_timeout=self._connection.boot_timeout_s,
            )
            return self._running(sandbox, timeout_s=timeout_s, port=port)

        try:
            return await self._perform(
                "connect",
                connect,
                instance_id=instance_id,
                timeout_s=self._connection.boot_timeout_s,
            )
        except ProviderUnavailableError as error:
            reply = None if error.__cause__ is None else find_reply(error.__cause__)
            if reply is None or reply.status != RESUME_FAILED or not reply.has_own_words:
                raise
            raise ResumeFailedError(None, **error.fields) from error

    async def pause(self, instance_id: str) -> Instance:
        try:
            did_pause = await self._perform(
                "pause",
                lambda: self._sdk.pause(
                    instance_id, request_timeout=self._connection.boot_timeout_s
                ),
                instance_id=instance_id,
                timeout_s=self._connection.boot_timeout_s,
            )
        except InstanceGoneError:
            # A server without the route answers 404 as well: only `get` tells the two apart.
            found = await self.get(instance_id)
            if found.state is InstanceState.PAUSED:
                return found
            raise ProviderUnsupportedError(
                "This provider does not know how to pause.", instance_id=instance_id
            ) from None
        except ProviderUnauthorizedError as error:
            if error.fields.get("status") != 403:
                raise
            # The key may read but not pause: the plan does not include pausing.
            await self.get(instance_id)
            raise ProviderUnsupportedError(
                "This provider's plan does not allow to pause.", instance_id=instance_id
            ) from error
        if did_pause:
            return Instance(instance_id, InstanceState.PAUSED, self._clock())
        found = await self.get(instance_id)
        if found.state is not InstanceState.PAUSED:
            raise ProviderRefusedError(
                "The provider refuses to pause this instance now.", instance_id=instance_id
            )
        return found

    async def kill(self, instance_id: str) -> bool:
        did_kill = await self._perform(
            "kill",
            lambda: self._sdk.kill(instance_id),
            instance_id=instance_id,
        )
        if did_kill:
            return True
        try:
            await self.get(instance_id)
        except InstanceGoneError:
            return False
        raise ProviderRefusedError(
            "The provider says it cannot find what it still has.", instance_id=instance_id
        )

    async def set_timeout(self, instance_id: str, *, timeout_s: int) -> None:
        await self._perform(
            "set_timeout",
            lambda: self._sdk.set_timeout(instance_id, timeout_s),
            instance_id=instance_id,
        )

    async def get(self, instance_id: str, *, port: int | None = None) -> Instance:
        async def get() -> Instance:
            asked_at = self._clock()
            return self._seen(await self._sdk.get_info(instance_id), asked_at, port=port)

        return await self._perform("get", get, instance_id=instance_id)

    async def list_instances(
        self,
        *,
        cursor: str | None = None,
        limit: int = 100,
        sandbox_id: str | None = None,
        foreign: bool = False,
    ) -> InstancePage:
        metadata = {} if foreign else {KEEPER: self.keeper}
        if sandbox_id is not None:
            metadata[SANDBOX] = sandbox_id
        pages = self._sdk.list(
            query=e2b.SandboxQuery(metadata=metadata or None), limit=limit, next_token=cursor
        )

        async def read_page() -> InstancePage:
            asked_at = self._clock()
            infos = await pages.next_items()
            instances = tuple(self._seen(info, asked_at) for info in infos)
            return InstancePage(instances, pages.next_token if pages.has_next else None)

        try:
            return await self._perform("list", read_page)
        except ProviderRefusedError as error:
            # A list that is "not found" says nothing about any instance.
            raise ProviderAmbiguousError(provider=self.name, operation="list") from error

    async def list_events(
        self, *, since: datetime, instance_id: str | None = None, pages_max: int = 100
    ) -> Sequence[LifecycleEvent]:
        events = await self._perform_optional(
            "events",
            lambda: self._rest.list_events(
                since=since + self._skew, instance_id=instance_id, pages_max=pages_max
            ),
            timeout_s=self._connection.request_timeout_s * 4,
        )
        return [self._correct(event) for event in events]

    async def measure_skew(self) -> timedelta | None:
        bounds = await self._rest.measure_skew(self._clock)
        if bounds is None:
            return None
        # It moves only as far as the measurement is certain: two events keep their order.
        self._measured = min(max(self._measured, bounds[0]), bounds[1])
        return self._measured

    def parse_webhook(
        self, body: bytes, headers: Mapping[str, str], *, secret: str
    ) -> LifecycleEvent | None:
        event = parse_delivery(body, headers, secret=secret)
        return None if event is None else self._correct(event)

    def build_test_delivery(self, *, at: datetime, secret: str) -> WebhookDelivery:
        return build_test_delivery(at=at, secret=secret)

    async def list_webhooks(self) -> Sequence[Webhook]:
        return await self._perform_optional("webhooks", self._rest.list_webhooks)

    async def create_webhook(self, *, name: str, url: str, secret: str) -> Webhook:
        return await self._perform_optional(
            "webhooks", lambda: self._rest.create_webhook(name=name, url=url, secret=secret)
        )

    async def update_webhook(
        self,
        webhook_id: str,
        *,
        url: str | None = None,
        secret: str | None = None,
        enabled: bool | None = None,
    ) -> Webhook:
        given: dict[str, object | None] = {
            "url": url,
            "signatureSecret": secret,
            "enabled": enabled,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        return await self._perform_optional(
            "webhooks", lambda: self._rest.update_webhook(webhook_id, changes)
        )

    async def delete_webhook(self, webhook_id: str) -> bool:
        return await self._perform_optional(
            "webhooks", lambda: self._rest.delete_webhook(webhook_id)
        )

    async def open_sdk_sandbox(self, instance_id: str) -> e2b.AsyncSandbox:
        return self.build_sdk_sandbox(await self.get_connection_info(instance_id))

    async def get_connection_info(self, instance_id: str) -> SdkConnectionInfo:
        async def get() -> SdkConnectionInfo:
            return self._connections.read(instance_id, await self._rest.get_detail(instance_id))

        told = self._connections.take(instance_id)
        if told is not None:
            return told
        return await self._perform("get", get, instance_id=instance_id)

    def build_sdk_sandbox(self, access: SdkConnectionInfo) -> e2b.AsyncSandbox:
        headers = {
            "E2b-Sandbox-Id": access.instance_id,
            "E2b-Sandbox-Port": str(ConnectionConfig.envd_port),
        }
        if access.access_token:
            headers["X-Access-Token"] = access.access_token
        return self._sdk(
            sandbox_id=access.instance_id,
            sandbox_domain=access.domain,
            envd_version=Version(access.envd_version),
            envd_access_token=access.access_token,
            traffic_access_token=None,
            connection_config=ConnectionConfig(
                extra_sandbox_headers=headers,
                **self._params,  # type: ignore[arg-type]  # See __init__.
            ),
        )

    async def list_commands(self, access: SdkConnectionInfo) -> Sequence[RunningCommand]:
        began = time.monotonic()
        try:
            found = await self.build_sdk_sandbox(access).commands.list()
        except Exception as error:
            raise self.translate(error, instance_id=access.instance_id) from error
        finally:
            self.record_sdk_call("list_commands", time.monotonic() - began)
        return [RunningCommand(one.pid, name_command(one)) for one in found if not is_ours(one)]

    async def measure_cpu_pct(self, instance_ids: Sequence[str]) -> Mapping[str, float]:
        return await self._perform_optional(
            "metrics", lambda: self._rest.measure_cpu_pct(instance_ids)
        )

    async def read_fingerprint(
        self, instance_id: str, path: str, skipped: Sequence[str]
    ) -> str | None:
        return await self._perform(
            "fingerprint",
            lambda: self._rest.read_fingerprint(instance_id, path, skipped),
            instance_id=instance_id,
        )

    def translate(self, error: Exception, *, instance_id: str) -> SandkeeperError:
        return self._calls.translate(error, "native", instance_id)[1]

    def record_sdk_call(self, operation: str, duration_s: float) -> None:
        self._calls.count(f"inside_{operation}", "done", duration_s)

    async def probe_port(self, instance_id: str, port: int) -> bool:
        # A given address serves all sandboxes and tells them apart by headers, not by host names,
        # which this machine may not resolve.
        url = self._traffic_url or self.preview_url(instance_id, port)
        headers = {"E2b-Sandbox-Id": instance_id, "E2b-Sandbox-Port": str(port)}
        try:
            async with self._traffic.stream("GET", url, headers=headers) as answer:
                return answer.status_code != NO_SERVER
        except Exception:  # noqa: BLE001  Whatever it is, no app answers there.
            return False

    def preview_url(self, instance_id: str, port: int) -> str:
        return self._url(instance_id, port, self._domain)

    def locate_port(self, instance_id: str, port: int) -> PortAddress:
        return locate(self.preview_url(instance_id, port), self._traffic_url)

    async def close(self) -> None:
        await self._traffic.aclose()
        await self._rest.close()

    async def _perform(
        self,
        operation: str,
        act: Callable[[], Awaitable[T]],
        *,
        instance_id: str | None = None,
        timeout_s: float | None = None,
    ) -> T:
        # The SDK's own timeout comes first and says more; this one is for what the SDK misses.
        limit_s = (timeout_s or self._connection.request_timeout_s) + 2
        return await self._calls.perform(operation, act, timeout_s=limit_s, instance_id=instance_id)

    async def _perform_optional(
        self,
        operation: str,
        act: Callable[[], Awaitable[T]],
        *,
        timeout_s: float | None = None,
    ) -> T:
        """Call a route that a self-hosted E2B may not have: a 404 means "not offered"."""

        async def offered() -> T:
            try:
                return await act()
            except UnexpectedReplyError as error:
                if error.reply.status != 404:
                    raise
                raise ProviderUnsupportedError(
                    f"This provider does not offer {operation}.", provider=self.name
                ) from error

        return await self._perform(operation, offered, timeout_s=timeout_s)

    def _running(self, sandbox: e2b.AsyncSandbox, *, timeout_s: int, port: int | None) -> Instance:
        now = self._clock()
        url = None if port is None else self._url(sandbox.sandbox_id, port, sandbox.sandbox_domain)
        return Instance(
            instance_id=sandbox.sandbox_id,
            state=InstanceState.RUNNING,
            seen_at=now,
            end_at=now + timedelta(seconds=timeout_s),
            url=url,
        )

    def _seen(self, info: e2b.SandboxInfo, asked_at: datetime, port: int | None = None) -> Instance:
        if not isinstance(info.sandbox_id, str):
            raise MalformedReplyError("an instance without an id")
        domain = info.sandbox_domain or self._domain
        return Instance(
            instance_id=info.sandbox_id,
            state=STATES[info.state],
            seen_at=asked_at,
            started_at=info.started_at.astimezone(UTC) - self._skew,
            end_at=info.end_at.astimezone(UTC) - self._skew,
            template=info.template_id,
            tag=parse_metadata(info.metadata),
            metadata=dict(info.metadata),
            url=None if port is None else self._url(info.sandbox_id, port, domain),
            vcpus=read_count(info.cpu_count),
            memory_mb=read_count(info.memory_mb),
        )

    @property
    def _skew(self) -> timedelta:
        """Return how far the provider's times are to be set back."""
        return self._measured if abs(self._measured) > SKEW_MAX else timedelta()

    def _correct(self, event: LifecycleEvent) -> LifecycleEvent:
        end_at = None if event.end_at is None else event.end_at - self._skew
        return replace(event, at=event.at - self._skew, end_at=end_at)

    def _url(self, instance_id: str, port: int, domain: str) -> str:
        template = self._connection.preview_url or "https://{port}-{instance}.{domain}"
        return template.format(port=port, instance=instance_id, domain=domain)

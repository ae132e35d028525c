"""Providers for tests and benchmarks: one that works, in memory, and some that fail on purpose.

`SimulatedProvider` passes the same contract suite as E2B itself. It covers what a real engine
cannot show in a test's time: a thousand sandboxes, a wrong clock, events out of order. Each other
class wraps a provider and breaks one thing.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from e2b import AsyncSandbox

from sandkeeper.domain.clock import SKEW_MAX
from sandkeeper.domain.errors import (
    InstanceGoneError,
    ProviderAmbiguousError,
    ProviderRateLimitedError,
    ProviderUnavailableError,
    ProviderUnsupportedError,
    ResumeFailedError,
    SandkeeperError,
    WrongStateError,
)
from sandkeeper.domain.work import RunningCommand
from sandkeeper.providers.acting_claim import check_deadline
from sandkeeper.providers.base import (
    CreateSpec,
    EventKind,
    Instance,
    InstancePage,
    InstanceState,
    LifecycleEvent,
    PortAddress,
    Provider,
    SdkConnectionInfo,
    Webhook,
    WebhookDelivery,
)
from sandkeeper.providers.e2b.webhooks import build_test_delivery, parse_delivery


def _utc_now() -> datetime:
    return datetime.now(UTC)


class SimulatedProvider:
    """Keep instances in memory. Nothing runs in them and no timeout ends them.

    `latency_s` is how long every call takes, `clock` the provider's own, and `clock_ahead` how far
    the dates of its events are ahead of that. `end` ends an instance as the provider would.
    `instances` and `events` may be read freely, and `acts` lists every mutating call as (verb,
    instance). `commands` and `cpu_pct` are what a check finds in an instance.
    """

    def __init__(
        self,
        *,
        keeper: str = "test",
        name: str = "simulated",
        region: str = "default",
        latency_s: float = 0.0,
        clock: Callable[[], datetime] = _utc_now,
    ) -> None:
        self.keeper = keeper
        self.name = name
        self.region = region
        self.latency_s = latency_s
        self.clock = clock
        self.instances: dict[str, Instance] = {}
        self._specs: dict[str, CreateSpec] = {}
        self.events: list[LifecycleEvent] = []
        self.acts: list[tuple[str, str]] = []
        self.webhooks: dict[str, Webhook] = {}
        self.commands: dict[str, list[RunningCommand]] = {}
        self.cpu_pct: dict[str, float] = {}
        self.clock_ahead = timedelta()
        self._skew = timedelta()

    async def create(self, spec: CreateSpec) -> Instance:
        await self._wait_latency()
        for made in self.instances.values():
            if self._specs.get(made.instance_id) == spec:
                return replace(made, run_id=None)
        now = self.clock()
        instance_id = "i" + uuid.uuid4().hex[:20]
        self._specs[instance_id] = spec
        url = None if spec.port is None else self.preview_url(instance_id, spec.port)
        instance = Instance(
            instance_id=instance_id,
            state=InstanceState.RUNNING,
            seen_at=now,
            started_at=now,
            end_at=now + timedelta(seconds=spec.timeout_s),
            template=spec.template,
            tag=spec.tag,
            metadata=dict(spec.metadata),
            url=url,
            run_id=str(uuid.uuid4()),
            isolation="provider",
        )
        self.acts.append(("create", instance_id))
        self.instances[instance_id] = instance
        self._emit(instance, EventKind.CREATED)
        return replace(instance, run_id=None)

    async def connect(
        self, instance_id: str, *, timeout_s: int, port: int | None = None, reboot: bool = False
    ) -> Instance:
        del reboot  # Nothing runs here, so a resume and a reboot are the same.
        await self._wait_latency()
        known = self._get(instance_id)
        now = self.clock()
        end_at = now + timedelta(seconds=timeout_s)
        self.acts.append(("connect", instance_id))
        if known.state is InstanceState.PAUSED:
            known = replace(
                known, state=InstanceState.RUNNING, started_at=now, run_id=str(uuid.uuid4())
            )
            self._put(replace(known, end_at=end_at), EventKind.RESUMED)
        else:
            longest = end_at if known.end_at is None else max(known.end_at, end_at)
            self._put(replace(known, end_at=longest), EventKind.UPDATED)
        return self._seen(instance_id, now, port)

    async def pause(self, instance_id: str) -> Instance:
        await self._wait_latency()
        known = self._get(instance_id)
        if known.state is InstanceState.RUNNING:
            self.acts.append(("pause", instance_id))
            self._put(replace(known, state=InstanceState.PAUSED), EventKind.PAUSED)
        return self._seen(instance_id, self.clock())

    async def kill(self, instance_id: str) -> bool:
        await self._wait_latency()
        self.acts.append(("kill", instance_id))
        if instance_id not in self.instances:
            return False
        self.end(instance_id, reason="request")
        return True

    async def set_timeout(self, instance_id: str, *, timeout_s: int) -> None:
        await self._wait_latency()
        known = self._get(instance_id)
        if known.state is not InstanceState.RUNNING:
            raise InstanceGoneError(instance_id=instance_id)
        self.acts.append(("set_timeout", instance_id))
        end_at = self.clock() + timedelta(seconds=timeout_s)
        self._put(replace(known, end_at=end_at), EventKind.UPDATED)

    async def get(self, instance_id: str, *, port: int | None = None) -> Instance:
        asked_at = self.clock()
        await self._wait_latency()
        self._get(instance_id)
        return self._seen(instance_id, asked_at, port)

    async def list_instances(
        self,
        *,
        cursor: str | None = None,
        limit: int = 100,
        sandbox_id: str | None = None,
        foreign: bool = False,
    ) -> InstancePage:
        asked_at = self.clock()
        await self._wait_latency()
        fitting = sorted(
            instance_id
            for instance_id, known in self.instances.items()
            if (foreign or (known.tag is not None and known.tag.keeper == self.keeper))
            and (sandbox_id is None or (known.tag and known.tag.sandbox_id == sandbox_id))
            and (cursor is None or instance_id > cursor)
        )
        page = fitting[:limit]
        more = page[-1] if len(fitting) > limit else None
        return InstancePage(tuple(self._seen(one, asked_at) for one in page), more)

    async def list_events(
        self, *, since: datetime, instance_id: str | None = None, pages_max: int = 100
    ) -> Sequence[LifecycleEvent]:
        await self._wait_latency()
        fitting = [
            event
            for event in self.events
            if event.at - self._skew >= since and instance_id in (None, event.instance_id)
        ]
        return [replace(event, at=event.at - self._skew) for event in fitting[-pages_max * 100 :]]

    async def measure_skew(self) -> timedelta | None:
        await self._wait_latency()
        self._skew = self.clock_ahead if abs(self.clock_ahead) > SKEW_MAX else timedelta()
        return self.clock_ahead

    def parse_webhook(
        self, body: bytes, headers: Mapping[str, str], *, secret: str
    ) -> LifecycleEvent | None:
        event = parse_delivery(body, headers, secret=secret)
        return None if event is None else replace(event, at=event.at - self._skew)

    def build_test_delivery(self, *, at: datetime, secret: str) -> WebhookDelivery:
        return build_test_delivery(at=at, secret=secret)

    async def list_webhooks(self) -> Sequence[Webhook]:
        await self._wait_latency()
        return list(self.webhooks.values())

    async def create_webhook(self, *, name: str, url: str, secret: str) -> Webhook:
        del secret
        await self._wait_latency()
        events = tuple(kind.value for kind in EventKind)
        webhook = Webhook(str(uuid.uuid4()), name, url, enabled=True, events=events)
        self.webhooks[webhook.webhook_id] = webhook
        return webhook

    async def update_webhook(
        self,
        webhook_id: str,
        *,
        url: str | None = None,
        secret: str | None = None,
        enabled: bool | None = None,
    ) -> Webhook:
        del secret
        await self._wait_latency()
        webhook = self.webhooks[webhook_id]
        webhook = replace(
            webhook,
            url=webhook.url if url is None else url,
            enabled=webhook.enabled if enabled is None else enabled,
        )
        self.webhooks[webhook_id] = webhook
        return webhook

    async def delete_webhook(self, webhook_id: str) -> bool:
        await self._wait_latency()
        return self.webhooks.pop(webhook_id, None) is not None

    async def open_sdk_sandbox(self, instance_id: str) -> AsyncSandbox:
        raise ProviderUnsupportedError("Nothing runs in a simulated sandbox.", id=instance_id)

    async def get_connection_info(self, instance_id: str) -> SdkConnectionInfo:
        await self._wait_latency()
        self._get(instance_id)
        return SdkConnectionInfo(
            instance_id=instance_id,
            api_url="https://api.simulated.test",
            sandbox_url=None,
            domain="simulated.test",
            envd_version="0.6.13",
            access_token=None,
        )

    def build_sdk_sandbox(self, access: SdkConnectionInfo) -> AsyncSandbox:
        raise ProviderUnsupportedError(
            "Nothing runs in a simulated sandbox.", id=access.instance_id
        )

    async def list_commands(self, access: SdkConnectionInfo) -> Sequence[RunningCommand]:
        await self._wait_latency()
        if self._get(access.instance_id).state is not InstanceState.RUNNING:
            raise WrongStateError(state="paused")
        return self.commands.get(access.instance_id, [])

    async def measure_cpu_pct(self, instance_ids: Sequence[str]) -> Mapping[str, float]:
        await self._wait_latency()
        return {one: self.cpu_pct[one] for one in instance_ids if one in self.cpu_pct}

    async def read_fingerprint(
        self, instance_id: str, path: str, skipped: Sequence[str]
    ) -> str | None:
        """Return None: a simulated sandbox has no files."""

    def translate(self, error: Exception, *, instance_id: str) -> SandkeeperError:
        return ProviderAmbiguousError(str(error), instance_id=instance_id)

    def record_sdk_call(self, operation: str, duration_s: float) -> None:
        """Do nothing: nothing runs inside, so there is nothing to count."""

    async def probe_port(self, instance_id: str, port: int) -> bool:
        del port
        known = self.instances.get(instance_id)
        return known is not None and known.state is InstanceState.RUNNING

    def preview_url(self, instance_id: str, port: int) -> str:
        return f"https://{port}-{instance_id}.simulated.test"

    def locate_port(self, instance_id: str, port: int) -> PortAddress:
        return PortAddress("127.0.0.1", 9, is_tls=False, authority=f"{port}-{instance_id}.test")

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def end(self, instance_id: str, *, reason: str) -> None:
        """End an instance as the provider itself would: permanently, with a killed event."""
        self._emit(self.instances.pop(instance_id), EventKind.KILLED, kill_reason=reason)

    def vanish(self, instance_id: str) -> None:
        """Lose an instance without an event, as happens to 1 to 3 of 100 runs."""
        del self.instances[instance_id]

    def _get(self, instance_id: str) -> Instance:
        known = self.instances.get(instance_id)
        if known is None:
            raise InstanceGoneError(instance_id=instance_id)
        return known

    def _put(self, instance: Instance, kind: EventKind) -> None:
        self.instances[instance.instance_id] = instance
        self._emit(instance, kind)

    def _seen(self, instance_id: str, at: datetime, port: int | None = None) -> Instance:
        url = None if port is None else self.preview_url(instance_id, port)
        return replace(self._get(instance_id), seen_at=at, url=url, run_id=None)

    def _emit(self, instance: Instance, kind: EventKind, *, kill_reason: str | None = None) -> None:
        self.events.append(
            LifecycleEvent(
                event_id=str(uuid.uuid4()),
                kind=kind,
                instance_id=instance.instance_id,
                run_id=instance.run_id,
                at=self.clock() + self.clock_ahead,
                kill_reason=kill_reason,
                end_at=instance.end_at if kind is EventKind.UPDATED else None,
                tag=instance.tag,
            )
        )

    async def _wait_latency(self) -> None:
        check_deadline()  # As every provider does, right before a call.
        await asyncio.sleep(self.latency_s)


class MisbehavingProvider:
    """Pass everything on to another provider, and let a subclass break the asynchronous calls.

    Only the calls named in `operations` are broken; without it, all of them.
    """

    def __init__(self, provider: Provider, *operations: str) -> None:
        self._provider = provider
        self._operations = frozenset(operations)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._provider, name)
        is_broken = not self._operations or name in self._operations
        if not asyncio.iscoroutinefunction(value) or not is_broken:
            return value

        async def broken(*args: Any, **kwargs: Any) -> Any:
            return await self.inject_fault(lambda: value(*args, **kwargs))

        return broken

    async def inject_fault(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make the call the way this provider does."""
        return await call()


class NeverProvider(MisbehavingProvider):
    """Do nothing and never answer."""

    async def inject_fault(self, call: Callable[[], Awaitable[Any]]) -> Any:
        del call
        await asyncio.Event().wait()


class DownProvider(MisbehavingProvider):
    """Be unreachable while `is_down`."""

    is_down = True

    async def inject_fault(self, call: Callable[[], Awaitable[Any]]) -> Any:
        if self.is_down:
            raise ProviderUnavailableError
        return await call()


class LostReplyProvider(MisbehavingProvider):
    """Do what was requested and lose the answer."""

    async def inject_fault(self, call: Callable[[], Awaitable[Any]]) -> Any:
        await call()
        raise ProviderUnavailableError


class RateLimitedProvider(MisbehavingProvider):
    """Refuse every call for `retry_after_s`."""

    retry_after_s = 30.0

    async def inject_fault(self, call: Callable[[], Awaitable[Any]]) -> Any:
        del call
        raise ProviderRateLimitedError(retry_after_s=self.retry_after_s)


class ForgetfulProvider(MisbehavingProvider):
    """Lose files on a resume: run `forgotten`, a shell line, inside after each resume.

    This simulates a disk that lost files or went back to an older state during the pause (E2B's
    issue 884).
    """

    forgotten = ""

    async def connect(self, instance_id: str, **options: Any) -> Instance:
        """Resume, then lose the files."""
        instance = await self._provider.connect(instance_id, **options)
        if self.forgotten:
            native = await self._provider.open_sdk_sandbox(instance_id)
            # The loss lies in the past: what changes during the comparison counts as an edit.
            await native.commands.run(f"{self.forgotten}\nsleep 0.2")
        return instance


class DenyingProvider(MisbehavingProvider):
    """Answer "not found" to the first `denials` connects to an instance that exists."""

    denials = 1

    async def connect(self, instance_id: str, **options: Any) -> Instance:
        """Deny, or resume."""
        if self.denials > 0:
            self.denials -= 1
            raise InstanceGoneError(instance_id=instance_id)
        return await self._provider.connect(instance_id, **options)


class BlindProvider(MisbehavingProvider):
    """Answer "not found" to the next `denials` gets and connects; lists stay right."""

    denials = 0

    async def get(self, instance_id: str, **options: Any) -> Instance:
        """Deny, or look."""
        self._deny(instance_id)
        return await self._provider.get(instance_id, **options)

    async def connect(self, instance_id: str, **options: Any) -> Instance:
        """Deny, or resume."""
        self._deny(instance_id)
        return await self._provider.connect(instance_id, **options)

    def _deny(self, instance_id: str) -> None:
        if self.denials > 0:
            self.denials -= 1
            raise InstanceGoneError(instance_id=instance_id)


class StillbornProvider(MisbehavingProvider):
    """Answer the next `stillborn` creations, and lose their instances a moment later."""

    stillborn = 1

    async def create(self, spec: CreateSpec) -> Instance:
        """Create an instance, and perhaps lose it."""
        instance = await self._provider.create(spec)
        if self.stillborn > 0:
            self.stillborn -= 1
            await self._provider.kill(instance.instance_id)
        return instance


class UnrestorableProvider(MisbehavingProvider):
    """Fail to restore any memory: only a reboot from the disk succeeds."""

    async def connect(self, instance_id: str, *, reboot: bool = False, **options: Any) -> Instance:
        """Reboot, or fail."""
        if not reboot:
            raise ResumeFailedError("The memory cannot be restored.")
        return await self._provider.connect(instance_id, reboot=True, **options)


class UnpausableProvider(MisbehavingProvider):
    """A provider whose plan cannot pause."""

    async def pause(self, instance_id: str) -> Instance:
        """Refuse."""
        raise ProviderUnsupportedError(
            "This provider's plan does not allow to pause.", instance_id=instance_id
        )

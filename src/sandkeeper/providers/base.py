"""The contract between Sandkeeper and the provider that runs the sandboxes.

A *provider* is an E2B-compatible endpoint: E2B's cloud, a self-hosted E2B or the local engine. The
event types are E2B's, and the SDK handles (`AsyncSandbox`) are E2B's own objects. Only
`sandkeeper.providers.e2b` and the composition know how such an endpoint is called.

An *instance* is one incarnation there (E2B's `sandboxID`); a *run* is one execution of it between a
resume and the next pause.

The contract, for every implementation:

- **Reads change nothing.** `get`, `list_instances`, `list_events`, `list_webhooks`,
  `list_commands`, `measure_cpu_pct`, `read_fingerprint` and `open_sdk_sandbox` resume nothing,
  extend nothing and do not count as activity.
- **Calls are idempotent.** Pausing a paused instance, killing one that is gone and connecting to
  one that runs all succeed and say so. Every call may be repeated after a crash.
- **Gone is not unreachable.** `InstanceGoneError` is raised only when the provider itself
  confirmed that this instance does not exist. A timeout, a dropped connection, a proxy's error page
  or an unreadable response is another error, and the instance must be presumed alive.
- **Every call ends.** Each has a request timeout; concurrency and the rate of creation are bounded;
  a provider that keeps failing is not called for a while.
- **Rate limits are obeyed.** After "too many requests" nothing is sent before the named time. Short
  waits happen inside the call, longer ones raise `ProviderRateLimitedError`.
- **Nothing is anonymous.** A created instance carries its owner, our id and the generation in its
  metadata, so that one whose record was lost in a crash is found again by `list_instances`.
- **No decisions.** A provider knows no policy, no database and no other provider.

All times are aware UTC. Every method may be called concurrently with every other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from e2b import AsyncSandbox

from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.domain.work import RunningCommand


class InstanceState(StrEnum):
    """The reported state of an instance that exists. One that does not raises instead."""

    RUNNING = "running"
    PAUSED = "paused"


class EventKind(StrEnum):
    """The six lifecycle events of E2B. Any other type is skipped by name."""

    CREATED = "sandbox.lifecycle.created"
    RESUMED = "sandbox.lifecycle.resumed"
    UPDATED = "sandbox.lifecycle.updated"
    PAUSED = "sandbox.lifecycle.paused"
    KILLED = "sandbox.lifecycle.killed"
    CHECKPOINTED = "sandbox.lifecycle.checkpointed"


@dataclass(frozen=True, slots=True)
class OwnershipMetadata:
    """The metadata by which an instance names its record, before and after a crash.

    `keeper` tells two installations on one account apart: each lists and removes only its own.
    """

    keeper: str
    sandbox_id: str
    owner_kind: str
    owner_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class CreateSpec:
    """Everything needed to create an instance.

    `timeout_s` is how long it may run before the provider itself acts. The provider then pauses it,
    so an outage of Sandkeeper kills nothing.
    """

    tag: OwnershipMetadata
    template: str
    timeout_s: int
    env: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    port: int | None = None
    allow_internet: bool | None = None


@dataclass(frozen=True, slots=True)
class Instance:
    """What the provider reports about one instance, at `seen_at` of our clock.

    `tag` is None for an instance that no keeper created. `run_id` is known only from events: E2B's
    control plane does not report it. `url` is the address of the port that the caller named.
    `isolation` is known from a creation: "bubblewrap" or "gvisor" at our own engine, elsewhere
    "provider", whose own matter it is. The size is what lists and gets tell.
    """

    instance_id: str
    state: InstanceState
    seen_at: datetime
    started_at: datetime | None = None
    end_at: datetime | None = None
    template: str | None = None
    tag: OwnershipMetadata | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None
    run_id: str | None = None
    isolation: str | None = None
    vcpus: int | None = None
    memory_mb: int | None = None


@dataclass(frozen=True, slots=True)
class SdkConnectionInfo:
    """Everything a program needs to build the official SDK's own object for an instance.

    `sandbox_url` is None where each sandbox has its own address under `domain`. The token is valid
    for this instance only; the account's key is never part of it.
    """

    instance_id: str
    api_url: str
    sandbox_url: str | None
    domain: str
    envd_version: str
    access_token: str | None


@dataclass(frozen=True, slots=True)
class PortAddress:
    """How this machine reaches a port of an instance; `authority` is the Host that names it."""

    host: str
    port: int
    is_tls: bool
    authority: str


@dataclass(frozen=True, slots=True)
class InstancePage:
    """One page of a list; `next_cursor` is None on the last."""

    instances: tuple[Instance, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class LifecycleEvent:
    """Something that happened to an instance, in the provider's terms.

    `at` is by the provider's clock, corrected if that clock is known to differ from ours.
    `event_id` is the same however often and by whichever way it arrives. `kill_reason` is the
    reason the provider gave (request, timeout, …) and only killed events have one. `end_at` is the
    new end of an instance whose lifetime was changed.
    """

    event_id: str
    kind: EventKind
    instance_id: str
    run_id: str | None
    at: datetime
    kill_reason: str | None = None
    end_at: datetime | None = None
    tag: OwnershipMetadata | None = None


@dataclass(frozen=True, slots=True)
class Webhook:
    """A registration at the provider. The provider never returns the secret again."""

    webhook_id: str
    name: str
    url: str
    enabled: bool
    events: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WebhookDelivery:
    """One signed webhook request: its raw body and its headers, names in lower case."""

    body: bytes
    headers: Mapping[str, str]


class Provider(Protocol):
    """One account at one E2B-compatible endpoint in one region."""

    @property
    def name(self) -> str:
        """Return the provider's name; stored with each sandbox."""
        ...

    @property
    def region(self) -> str:
        """Return the provider's region; with the name it selects breaker and limits."""
        ...

    @property
    def keeper(self) -> str:
        """Return the name with which this installation tags what it creates."""
        ...

    async def create(self, spec: CreateSpec) -> Instance:
        """Create and return a running instance. Waits for the creation rate.

        While an instance of this spec lives, return that one: a creation whose reply was lost, or
        that is carried out late, makes no second one. ProviderAmbiguousError means that an earlier
        creation is under way.
        """
        ...

    async def connect(
        self, instance_id: str, *, timeout_s: int, port: int | None = None, reboot: bool = False
    ) -> Instance:
        """Resume the instance if paused and return it, with at least `timeout_s` still to live.

        With `reboot` it starts from its disk alone, for a memory image that cannot be restored.
        Raise `ResumeFailedError` if the provider itself says that it could not be resumed.
        """
        ...

    async def pause(self, instance_id: str) -> Instance:
        """Pause the instance and return it; it may have been paused already.

        Raise `ProviderUnsupportedError` if this provider cannot pause: then nothing has changed.
        """
        ...

    async def kill(self, instance_id: str) -> bool:
        """End the instance permanently. False if it was already gone."""
        ...

    async def set_timeout(self, instance_id: str, *, timeout_s: int) -> None:
        """Let the running instance live `timeout_s` from now, shorter or longer than before."""
        ...

    async def get(self, instance_id: str, *, port: int | None = None) -> Instance:
        """Return the instance as it is now, without changing it."""
        ...

    async def list_instances(
        self,
        *,
        cursor: str | None = None,
        limit: int = 100,
        sandbox_id: str | None = None,
        foreign: bool = False,
    ) -> InstancePage:
        """Return a page of this keeper's instances, running and paused; of one sandbox if named.

        With `foreign`, every instance of the account is listed, also those of other clients.
        """
        ...

    async def measure_skew(self) -> timedelta | None:
        """Return how far the provider's clock is ahead of ours, at least; None if it is not known.

        From then on, all times that this object returns are corrected by it.
        """
        ...

    async def list_events(
        self, *, since: datetime, instance_id: str | None = None, pages_max: int = 100
    ) -> Sequence[LifecycleEvent]:
        """Return all events at or after `since`, oldest first, from at most `pages_max` pages.

        If the bound is reached, the newest are returned and the oldest are missing: list the
        instances too.
        """
        ...

    def parse_webhook(
        self, body: bytes, headers: Mapping[str, str], *, secret: str
    ) -> LifecycleEvent | None:
        """Return the event of a delivery with a valid signature.

        None for an unknown type. Raise `InvalidSignatureError` before anything in the body is
        trusted, and `InvalidRequestError` for a signed body that cannot be parsed.
        """
        ...

    def build_test_delivery(self, *, at: datetime, secret: str) -> WebhookDelivery:
        """Return a signed delivery about a sandbox that does not exist, to test the receiver."""
        ...

    async def list_webhooks(self) -> Sequence[Webhook]:
        """Return all registrations of the account."""
        ...

    async def create_webhook(self, *, name: str, url: str, secret: str) -> Webhook:
        """Register for all six events."""
        ...

    async def update_webhook(
        self,
        webhook_id: str,
        *,
        url: str | None = None,
        secret: str | None = None,
        enabled: bool | None = None,
    ) -> Webhook:
        """Change what is given and leave the rest."""
        ...

    async def delete_webhook(self, webhook_id: str) -> bool:
        """Unregister. False if it was already gone."""
        ...

    async def open_sdk_sandbox(self, instance_id: str) -> AsyncSandbox:
        """Return the official SDK's own object for this instance, without resuming it."""
        ...

    async def get_connection_info(self, instance_id: str) -> SdkConnectionInfo:
        """Return how this instance is reached from elsewhere, without changing it."""
        ...

    def build_sdk_sandbox(self, access: SdkConnectionInfo) -> AsyncSandbox:
        """Return the SDK's object for what `get_connection_info` returned, without a request."""
        ...

    async def list_commands(self, access: SdkConnectionInfo) -> Sequence[RunningCommand]:
        """Return the commands that run inside and that others started through its agent.

        Commands of ours are left out. Raise for an instance that does not run or cannot answer.
        """
        ...

    async def measure_cpu_pct(self, instance_ids: Sequence[str]) -> Mapping[str, float]:
        """Return the processor use of at most 100 instances in percent, as far as it is known."""
        ...

    async def read_fingerprint(
        self, instance_id: str, path: str, skipped: Sequence[str]
    ) -> str | None:
        """Return what stays the same while nothing below a folder changes; None if not offered.

        Folders with one of the names in `skipped` do not count.
        """
        ...

    def translate(self, error: Exception, *, instance_id: str) -> SandkeeperError:
        """Return the Sandkeeper error for an error of an SDK object.

        `WrongStateError` says that the instance does not run: `get` tells paused from gone.
        """
        ...

    def record_sdk_call(self, operation: str, duration_s: float) -> None:
        """Count the time spent waiting for an SDK object, next to the provider's own calls."""
        ...

    async def probe_port(self, instance_id: str, port: int) -> bool:
        """Return True when an app answers on this port. False for anything else; never raises.

        It takes the same path as a browser's traffic, and resumes nothing.
        """
        ...

    def preview_url(self, instance_id: str, port: int) -> str:
        """Return the address at which a browser reaches this port. No request is made."""
        ...

    def locate_port(self, instance_id: str, port: int) -> PortAddress:
        """Return how requests reach this port over HTTP. No request is made."""
        ...

    async def close(self) -> None:
        """Close the connections. Calls in progress end with `ProviderUnavailableError`."""
        ...

"""One project's sandbox: its state and the actions on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from sandkeeper.api import schemas
from sandkeeper.client.connection import HttpConnection, build_body
from sandkeeper.client.errors import WakeTimedOutError, get_error_class
from sandkeeper.client.files import AsyncFiles
from sandkeeper.client.leases import hold_lease
from sandkeeper.client.sdk_handles import build_sdk_sandbox, get_async_sandbox_class
from sandkeeper.client.streams import read_events
from sandkeeper.domain.errors import InvalidRequestError, SandkeeperError, WakeFailedError

if TYPE_CHECKING:
    from e2b import AsyncSandbox

    from sandkeeper.api.schemas.files import ForkOut
    from sandkeeper.api.schemas.sandboxes import (
        ActivityName,
        ActivityOut,
        AdoptionOut,
        ChangeOut,
        ExplanationOut,
        Status,
    )
    from sandkeeper.api.schemas.sessions import Leased
    from sandkeeper.api.schemas.wakes import AppLogOut, WakeOut, WarmResult

# The interval between polls of a wake in progress.
POLL_INTERVAL_S = 0.2


class AsyncProject:
    """The sandbox of one owner. Creating this object sends no request.

    `address` is a project's id, or `job:…` and `session:…` for the other owners.
    """

    def __init__(self, connection: HttpConnection, address: str) -> None:
        if not address or "/" in address:
            raise InvalidRequestError("A project's id must not be empty or contain a slash.")
        self.address = address
        self._connection = connection
        self._path = f"/api/sandboxes/{quote(address, safe='')}"
        self.files = AsyncFiles(connection, self._path)

    async def create(
        self,
        *,
        template: str = "base",
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        port: int | None = None,
        start_command: str | None = None,
        workdir: str | None = None,
        region: str | None = None,
        tenant: str | None = None,
        idle: Literal["fixed", "adaptive"] | None = None,
        idle_timeout_s: float | None = None,
        lifecycle_timeout_s: float | None = None,
    ) -> Status:
        """Create the project's sandbox, or return the existing one.

        `region` may name several, comma-separated, preferred first.
        """
        policy = build_body(
            schemas.sandboxes.PolicyRequest,
            idle=idle,
            idle_timeout_ms=_to_ms(idle_timeout_s),
            lifecycle_timeout_ms=_to_ms(lifecycle_timeout_s),
        )
        body = build_body(
            schemas.sandboxes.CreateSandboxRequest,
            template=template,
            env=dict(env or {}),
            metadata=dict(metadata or {}),
            port=port,
            start_command=start_command,
            workdir=workdir,
            region=region,
            tenant=tenant,
            policy=policy,
        )
        return await self._connection.request(
            schemas.sandboxes.Status, "PUT", self._path, body=body, idempotent=True
        )

    async def adopt(
        self,
        instance_id: str,
        *,
        port: int | None = None,
        start_command: str | None = None,
        workdir: str | None = None,
        region: str | None = None,
        from_keeper: str | None = None,
        tenant: str | None = None,
        dry_run: bool = False,
    ) -> AdoptionOut:
        """Take a running or paused instance at the provider as the project's sandbox.

        `from_keeper` names the keeper whose mark it carries, if that one no longer uses it.
        """
        body = build_body(
            schemas.sandboxes.AdoptRequestBody,
            instance_id=instance_id,
            port=port,
            start_command=start_command,
            workdir=workdir,
            region=region,
            from_keeper=from_keeper,
            tenant=tenant,
            dry_run=dry_run,
        )
        return await self._connection.request(
            schemas.sandboxes.AdoptionOut, "POST", f"{self._path}/adopt", body=body
        )

    async def fork(self, project: str, *, version: int | None = None) -> ForkOut:
        """Create a new project from a version of this one; by default from its present files.

        It has the same template, app, environment and policy. Raise SandboxExistsError if the name
        is taken.
        """
        body = build_body(schemas.files.ForkRequest, project=project, version=version)
        return await self._connection.request(
            schemas.files.ForkOut, "POST", f"{self._path}/fork", body=body, idempotent=True
        )

    async def status(self) -> Status:
        """Return the status. Does not wake the sandbox or reset its idle timer."""
        return await self._connection.request(
            schemas.sandboxes.Status, "GET", f"{self._path}/status"
        )

    async def wake(self, *, within_s: float = 300) -> WakeOut:
        """Start the sandbox from any state, with its files and app. Callers join one wake.

        The result's receipt lists what was kept, restored and lost. Raise the error of a failed
        wake, and WakeTimedOutError if it is still in progress after `within_s`.
        """
        try:
            async with asyncio.timeout(within_s):
                return [wake async for wake in self.waking()][-1]
        except TimeoutError:
            raise WakeTimedOutError(
                f"The wake is still in progress after {within_s:g} s."
            ) from None

    async def waking(self) -> AsyncGenerator[WakeOut, None]:
        """Wake the sandbox and yield the wake at every step until it succeeds. Raise its error."""
        wake = await self._connection.request(
            schemas.wakes.WakeOut,
            "POST",
            f"{self._path}/wake",
            query={"wait": 0},
            retry_errors=False,
        )
        shown = None
        while True:
            now = (wake.status, wake.attempt, wake.step)
            if now != shown:
                shown = now
                yield wake
            if wake.status == "succeeded":
                return
            if wake.status == "failed":
                raise _failure(wake)
            await asyncio.sleep(POLL_INTERVAL_S)
            wake = await self._connection.request(
                schemas.wakes.WakeOut, "GET", f"{self._path}/wake"
            )

    async def warm(self) -> WarmResult:
        """Resume a paused sandbox before its user needs it, if the budget allows.

        A refusal is a result, not an error. It does not count as activity: an unused sandbox is
        paused again after a short grace time.
        """
        return await self._connection.request(
            schemas.wakes.WarmResult, "POST", f"{self._path}/warm"
        )

    async def log(self, lines: int = 100) -> AppLogOut:
        """Return the last lines of the app's log; none if the sandbox is not running."""
        return await self._connection.request(
            schemas.wakes.AppLogOut, "GET", f"{self._path}/log", query={"lines": lines}
        )

    async def pause(self) -> Status:
        """Pause the sandbox; do nothing if it is paused."""
        return await self._connection.request(
            schemas.sandboxes.Status, "POST", f"{self._path}/pause"
        )

    async def kill(self) -> Status:
        """Kill the sandbox. Its record and kept files stay."""
        return await self._connection.request(
            schemas.sandboxes.Status, "DELETE", self._path, idempotent=True
        )

    async def verify(self) -> Status:
        """Check the state with the provider and return the updated status."""
        return await self._connection.request(
            schemas.sandboxes.Status, "POST", f"{self._path}/verify"
        )

    async def extend(self, by_s: float = 3600) -> Status:
        """Set the time to live, counted from now."""
        body = build_body(schemas.sandboxes.ExtendRequest, by_ms=round(by_s * 1000))
        return await self._connection.request(
            schemas.sandboxes.Status, "POST", f"{self._path}/extend", body=body
        )

    async def touch(self, kind: ActivityName = "intent", *, source: str = "api") -> ActivityOut:
        """Report activity: user intent, running work, or a passive view."""
        body = build_body(schemas.sandboxes.ActivityRequest, kind=kind, source=source)
        return await self._connection.request(
            schemas.sandboxes.ActivityOut, "POST", f"{self._path}/activity", body=body
        )

    async def explain(self) -> ExplanationOut:
        """Explain why it is awake or paused, what happens next and when, and what prevents it."""
        return await self._connection.request(
            schemas.sandboxes.ExplanationOut, "GET", f"{self._path}/explain"
        )

    @contextlib.asynccontextmanager
    async def lease(self, *, holder: str = "client") -> AsyncIterator[AsyncSandbox]:
        """Lease the sandbox during the block, as an object of the E2B SDK; wake it if needed."""
        async with self.hold(holder=holder) as leased:
            yield build_sdk_sandbox(get_async_sandbox_class(), leased.connection)

    @contextlib.asynccontextmanager
    async def hold(self, *, holder: str = "client") -> AsyncIterator[Leased]:
        """Lease the sandbox during the block; yield the lease, the status and the connection."""
        body = build_body(schemas.sessions.LeaseRequest, holder=holder)
        leased = await self._connection.request(
            schemas.sessions.Leased, "POST", f"{self._path}/leases", body=body
        )
        async with hold_lease(self._connection, leased.lease):
            yield leased

    async def history(self, *, limit: int = 100) -> list[ChangeOut]:
        """Return the history, newest first."""
        page = await self._connection.request(
            schemas.sandboxes.History, "GET", f"{self._path}/history", query={"limit": limit}
        )
        return page.items

    async def events(self, *, after: int | None = None) -> AsyncGenerator[Status | ChangeOut, None]:
        """Yield the current status, then every change and the resulting status, without end.

        An interrupted stream is resumed where it stopped. `after` is the `seq` of the last change
        that the caller knows.
        """
        stream = read_events(self._connection, f"{self._path}/events", after=after)
        async with contextlib.aclosing(stream) as events:
            async for event in events:
                yield event


def _failure(wake: WakeOut) -> SandkeeperError:
    code = wake.error.code if wake.error else WakeFailedError.code
    message = wake.error.message if wake.error else None
    return get_error_class(code, {})(message, wake_id=wake.id)


def _to_ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)

"""One project's sandbox: what it is, and what may be done with it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from e2b import AsyncSandbox

from sandkeeper.api.schemas.sandboxes import (
    ActivityOut,
    ActivityRequest,
    ChangeOut,
    CreateSandboxRequest,
    ExplanationOut,
    ExtendRequest,
    History,
    PolicyRequest,
    Status,
)
from sandkeeper.api.schemas.sessions import Leased, LeaseRequest
from sandkeeper.api.schemas.wakes import AppLogOut, WakeOut, WarmResult
from sandkeeper.client.connection import build_body
from sandkeeper.client.errors import WakeTimedOutError, find_error_class
from sandkeeper.client.files import AsyncFiles
from sandkeeper.client.leases import keep_lease
from sandkeeper.client.sdk_handles import build_sdk_sandbox
from sandkeeper.client.streams import read_events
from sandkeeper.domain.errors import InvalidRequestError, WakeFailedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    from sandkeeper.api.schemas.sandboxes import ActivityName
    from sandkeeper.client.connection import HttpConnection
    from sandkeeper.domain.errors import SandkeeperError

# How often a wake under way is looked at.
POLL_INTERVAL_S = 0.2


class AsyncProject:
    """The sandbox of one owner. Making this object asks nothing of the keeper.

    `address` is a project's id, or `job:…` and `session:…` for the other owners.
    """

    def __init__(self, connection: HttpConnection, address: str) -> None:
        if not address or "/" in address:
            raise InvalidRequestError("A project's id is not empty and has no slash in it.")
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
        idle: Literal["fixed", "adaptive"] | None = None,
        idle_timeout_s: float | None = None,
        lifecycle_timeout_s: float | None = None,
    ) -> Status:
        """The project's sandbox: created if there is none, and the one it has otherwise.

        `region` may name several with commas, the nearest first.
        """
        policy = build_body(
            PolicyRequest,
            idle=idle,
            idle_timeout_ms=_to_ms(idle_timeout_s),
            lifecycle_timeout_ms=_to_ms(lifecycle_timeout_s),
        )
        asked = build_body(
            CreateSandboxRequest,
            template=template,
            env=dict(env or {}),
            metadata=dict(metadata or {}),
            port=port,
            start_command=start_command,
            workdir=workdir,
            region=region,
            policy=policy,
        )
        return await self._connection.request(Status, "PUT", self._path, body=asked, once=True)

    async def status(self) -> Status:
        """What the keeper knows now. It wakes nothing and keeps nothing awake."""
        return await self._connection.request(Status, "GET", f"{self._path}/status")

    async def wake(self, *, within_s: float = 300) -> WakeOut:
        """Make it run, whatever it was, with its files and its app. All callers join one wake.

        The receipt in the answer says what was kept, restored and lost. Raises the error with which
        the wake failed, and WakeTimedOutError if it is still under way after `within_s`.
        """
        try:
            async with asyncio.timeout(within_s):
                return [wake async for wake in self.waking()][-1]
        except TimeoutError:
            raise WakeTimedOutError(f"The wake is still under way after {within_s:g} s.") from None

    async def waking(self) -> AsyncGenerator[WakeOut, None]:
        """Wake it, and give the wake at every step until it has succeeded. Raises its error."""
        wake = await self._connection.request(
            WakeOut, "POST", f"{self._path}/wake", query={"wait": 0}, repeat_told=False
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
            wake = await self._connection.request(WakeOut, "GET", f"{self._path}/wake")

    async def warm(self) -> WarmResult:
        """Resume it ahead of its user, if it sleeps and the budget allows; told, never raised.

        It is no use of the sandbox: if nobody comes, it sleeps again after a short grace.
        """
        return await self._connection.request(WarmResult, "POST", f"{self._path}/warm")

    async def log(self, lines: int = 100) -> AppLogOut:
        """The app's last lines. A sandbox that does not run is not woken, and has none."""
        return await self._connection.request(
            AppLogOut, "GET", f"{self._path}/log", query={"lines": lines}
        )

    async def pause(self) -> Status:
        """Put it to sleep; one that sleeps already is left as it is."""
        return await self._connection.request(Status, "POST", f"{self._path}/pause")

    async def kill(self) -> Status:
        """End it for good. Its record and its kept files stay."""
        return await self._connection.request(Status, "DELETE", self._path, once=True)

    async def verify(self) -> Status:
        """The record after a comparison with the provider's truth."""
        return await self._connection.request(Status, "POST", f"{self._path}/verify")

    async def extend(self, by_s: float = 3600) -> Status:
        """Let it run so much longer, counted from now."""
        asked = build_body(ExtendRequest, by_ms=round(by_s * 1000))
        return await self._connection.request(Status, "POST", f"{self._path}/extend", body=asked)

    async def touch(self, kind: ActivityName = "intent", *, source: str = "api") -> ActivityOut:
        """Say that somebody did something, that a command still runs, or that somebody looks."""
        asked = build_body(ActivityRequest, kind=kind, source=source)
        return await self._connection.request(
            ActivityOut, "POST", f"{self._path}/activity", body=asked
        )

    async def explain(self) -> ExplanationOut:
        """Why it is awake or asleep, what acts next and when, and what would prevent it."""
        return await self._connection.request(ExplanationOut, "GET", f"{self._path}/explain")

    @contextlib.asynccontextmanager
    async def lease(self, *, holder: str = "client") -> AsyncIterator[AsyncSandbox]:
        """Its native E2B sandbox, woken if it sleeps and in use for the length of the block."""
        async with self.hold(holder=holder) as leased:
            yield build_sdk_sandbox(AsyncSandbox, leased.connection)

    @contextlib.asynccontextmanager
    async def hold(self, *, holder: str = "client") -> AsyncIterator[Leased]:
        """The same without the native object: the lease, the status, how to reach it."""
        asked = build_body(LeaseRequest, holder=holder)
        leased = await self._connection.request(Leased, "POST", f"{self._path}/leases", body=asked)
        async with keep_lease(self._connection, leased.lease):
            yield leased

    async def history(self, *, limit: int = 100) -> list[ChangeOut]:
        """What happened to it, newest first."""
        page = await self._connection.request(
            History, "GET", f"{self._path}/history", query={"limit": limit}
        )
        return page.items

    async def events(self, *, after: int | None = None) -> AsyncGenerator[Status | ChangeOut, None]:
        """It, live: its status at once, then each change and the status that it led to.

        Never ends by itself; a broken stream is taken up where it stopped. `after` is the `seq` of
        the last change that the caller knows.
        """
        stream = read_events(self._connection, f"{self._path}/events", after=after)
        async with contextlib.aclosing(stream) as events:
            async for event in events:
                yield event


def _failure(wake: WakeOut) -> SandkeeperError:
    code = wake.error.code if wake.error else WakeFailedError.code
    message = wake.error.message if wake.error else None
    return find_error_class(code, {})(message, wake_id=wake.id)


def _to_ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)

"""The async client of a keeper, remote or embedded."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload
from urllib.parse import quote

from sandkeeper.api import schemas
from sandkeeper.client.connection import HttpConnection, RetryPolicy, build_body
from sandkeeper.client.costs import AsyncCosts, AsyncQuotas
from sandkeeper.client.jobs import AsyncJobs
from sandkeeper.client.pools import AsyncPools
from sandkeeper.client.projects import AsyncProject
from sandkeeper.client.sdk_handles import build_sdk_sandbox, get_async_sandbox_class
from sandkeeper.client.sessions import AsyncSessions
from sandkeeper.client.streams import read_events
from sandkeeper.hosting.discovery import find_key, resolve_url

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager

    import httpx
    from e2b import AsyncSandbox

    from sandkeeper.api.schemas.access import ClientToken, Me
    from sandkeeper.api.schemas.admin import Readiness
    from sandkeeper.api.schemas.fleet import FleetSummary, HealthOut
    from sandkeeper.api.schemas.sandboxes import ChangeOut, Status
    from sandkeeper.api.schemas.sessions import SessionAcquired
    from sandkeeper.client.sessions import SessionOptions
    from sandkeeper.hosting.local_engine import RunningEngine
    from sandkeeper.integrations.embedded import EmbeddedKeeper

N = TypeVar("N", bound="AsyncSandbox")


class AsyncSandkeeper:
    """A typed client of a keeper's API. Close it, or use it as a context manager.

    The URL defaults to `SANDKEEPER_URL` or the local keeper, the key to `SANDKEEPER_OPERATOR_KEY`
    or the one in the data folder.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        retry: RetryPolicy | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._connection = HttpConnection(
            url=resolve_url(url), key=find_key(key), retry=retry, transport=transport
        )
        self.sessions = AsyncSessions(self._connection)
        self.jobs = AsyncJobs(self._connection)
        self.pools = AsyncPools(self._connection)
        self.costs = AsyncCosts(self._connection)
        self.quotas = AsyncQuotas(self._connection)

    @staticmethod
    def embedded(
        *, engine: bool | RunningEngine | None = None, **settings: object
    ) -> AbstractAsyncContextManager[EmbeddedKeeper]:
        """Run a keeper inside this process while the context is open.

        `engine` is a running engine, or whether to use a local one; by default a local one is used
        unless E2B's variables or a region name a provider. For `settings` see docs/settings.md.
        """
        # Imported late: `embedded` imports the whole keeper and this module, for its base class.
        from sandkeeper.integrations.embedded import open_embedded  # noqa: PLC0415

        return open_embedded(engine=engine, **settings)

    def project(self, address: str) -> AsyncProject:
        """Return a project's sandbox. Sends no request."""
        return AsyncProject(self._connection, address)

    @overload
    def lease(
        self, user_id: str, task_id: str | None = None, **options: Unpack[SessionOptions]
    ) -> AbstractAsyncContextManager[AsyncSandbox]: ...
    @overload
    def lease(
        self,
        user_id: str,
        task_id: str | None = None,
        *,
        sandbox_class: type[N],
        **options: Unpack[SessionOptions],
    ) -> AbstractAsyncContextManager[N]: ...
    def lease(
        self,
        user_id: str,
        task_id: str | None = None,
        *,
        sandbox_class: type[Any] | None = None,
        **options: Unpack[SessionOptions],
    ) -> AbstractAsyncContextManager[Any]:
        """Lease the conversation's sandbox as an object of the E2B SDK, running and healthy.

        The same user and task get the same sandbox with its files and processes; the keeper manages
        its lifecycle. If `e2b_code_interpreter` is installed its class is used, so `run_code`
        works; `sandbox_class` chooses another.
        """
        return self._lease(sandbox_class, self.sessions.hold(user_id, task_id, **options))

    @contextlib.asynccontextmanager
    async def _lease(
        self, sandbox_class: type[Any] | None, holding: AbstractAsyncContextManager[SessionAcquired]
    ) -> AsyncIterator[Any]:
        async with holding as acquired:
            wanted = sandbox_class or get_async_sandbox_class(acquired.kind)
            yield build_sdk_sandbox(wanted, acquired.connection)

    async def list(
        self,
        *,
        states: Sequence[str] = (),
        search: str = "",
        region: str = "",
        tenant: str = "",
        sort: str = "",
    ) -> AsyncGenerator[Status, None]:
        """Yield all matching sandboxes, reading page by page."""
        cursor: str | None = None
        while True:
            page = await self._connection.request(
                schemas.sandboxes.SandboxPage,
                "GET",
                "/api/sandboxes",
                query={
                    "state": ",".join(states),
                    "search": search,
                    "region": region,
                    "tenant": tenant,
                    "sort": sort,
                    "cursor": cursor,
                },
            )
            for status in page.items:
                yield status
            cursor = page.next_cursor
            if cursor is None:
                return

    async def events(
        self, projects: Sequence[str] = (), *, after: int | None = None
    ) -> AsyncGenerator[Status | ChangeOut, None]:
        """Yield live changes of the fleet, or of the named projects, without end."""
        query = {"project": list(projects)} if projects else None
        stream = read_events(self._connection, "/api/fleet/events", query=query, after=after)
        async with contextlib.aclosing(stream) as events:
            async for event in events:
                yield event

    async def summary(self) -> FleetSummary:
        """Return the fleet's counts and health."""
        return await self._connection.request(
            schemas.fleet.FleetSummary, "GET", "/api/fleet/summary"
        )

    async def health(self) -> HealthOut:
        """Return the health thresholds with their current values."""
        return await self._connection.request(schemas.fleet.HealthOut, "GET", "/api/fleet/health")

    async def readiness(self) -> Readiness:
        """Return whether the keeper is ready, and the state of its background tasks."""
        return await self._connection.request(schemas.admin.Readiness, "GET", "/readyz")

    async def me(self) -> Me:
        """Return who the keeper takes the caller for. Raise UnauthenticatedError."""
        return await self._connection.request(schemas.access.Me, "GET", "/api/me")

    async def issue_client_token(self, address: str, *, ttl_s: int | None = None) -> ClientToken:
        """Issue a short-lived browser token for this project only; return it with its id."""
        body = build_body(schemas.access.ClientTokenRequest, project=address, ttl_s=ttl_s)
        return await self._connection.request(
            schemas.access.ClientToken, "POST", "/api/client-tokens", body=body
        )

    async def revoke_client_token(self, token_id: str) -> None:
        """Revoke a client token by its id; it stops working within two seconds."""
        path = f"/api/client-tokens/{quote(token_id, safe='')}"
        await self._connection.send("DELETE", path)

    async def close(self) -> None:
        """Close the connections. Sandboxes are not affected."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

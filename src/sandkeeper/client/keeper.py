"""The async client: one keeper, across a network or in this very process."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload
from urllib.parse import quote

from e2b import AsyncSandbox

from sandkeeper.api.schemas.access import ClientToken
from sandkeeper.api.schemas.sandboxes import (
    ChangeOut,
    ClientTokenRequest,
    FleetSummary,
    HealthOut,
    Readiness,
    SandboxPage,
    Status,
)
from sandkeeper.client.connection import HttpConnection, RetryPolicy, build_body
from sandkeeper.client.jobs import AsyncJobs
from sandkeeper.client.pools import AsyncPools
from sandkeeper.client.projects import AsyncProject
from sandkeeper.client.sdk_handles import build_sdk_sandbox, find_async_class
from sandkeeper.client.sessions import AsyncSessions
from sandkeeper.client.streams import read_events
from sandkeeper.hosting.discovery import find_key, find_url

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager

    import httpx

    from sandkeeper.api.schemas.sessions import SessionAcquired
    from sandkeeper.client.sessions import SessionOptions
    from sandkeeper.hosting.local_engine import RunningEngine
    from sandkeeper.integrations.embedded import EmbeddedKeeper

N = TypeVar("N", bound=AsyncSandbox)


class AsyncSandkeeper:
    """A keeper's API, typed. Close it, or use it as a context manager.

    Without a URL it is `SANDKEEPER_URL` or the configured port of this machine; without a key it is
    `SANDKEEPER_OPERATOR_KEY` or the one in the data folder.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        patience: RetryPolicy | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._connection = HttpConnection(
            url=find_url(url), key=find_key(key), patience=patience, transport=transport
        )
        self.sessions = AsyncSessions(self._connection)
        self.jobs = AsyncJobs(self._connection)
        self.pools = AsyncPools(self._connection)

    @staticmethod
    def embedded(
        *, engine: bool | RunningEngine | None = None, **settings: object
    ) -> AbstractAsyncContextManager[EmbeddedKeeper]:
        """A keeper that runs inside this process while the context is open.

        `engine` is a running one, or says whether there should be a local one; by default there is
        unless E2B's own variables or a region name a provider. `settings` are those of
        docs/settings.md.
        """
        from sandkeeper.integrations.embedded import open_embedded  # noqa: PLC0415  It imports the whole keeper.

        return open_embedded(engine=engine, **settings)

    def project(self, address: str) -> AsyncProject:
        """The sandbox of a project. Nothing is asked yet."""
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
        """A native E2B sandbox of this conversation, running, healthy and in use.

        It is the same one for the same user and task, with its files and processes, and the keeper
        cares for its life. Where `e2b_code_interpreter` is installed it is of its class, and
        `run_code` works; `sandbox_class` names another.
        """
        return self._lease(sandbox_class, self.sessions.hold(user_id, task_id, **options))

    @contextlib.asynccontextmanager
    async def _lease(
        self, sandbox_class: type[Any] | None, holding: AbstractAsyncContextManager[SessionAcquired]
    ) -> AsyncIterator[Any]:
        async with holding as acquired:
            wanted = sandbox_class or find_async_class(acquired.kind)
            yield build_sdk_sandbox(wanted, acquired.connection)

    async def list(
        self,
        *,
        states: Sequence[str] = (),
        search: str = "",
        region: str = "",
        sort: str = "",
    ) -> AsyncGenerator[Status, None]:
        """Every sandbox that fits, page by page."""
        cursor: str | None = None
        while True:
            page = await self._connection.request(
                SandboxPage,
                "GET",
                "/api/sandboxes",
                query={
                    "state": ",".join(states),
                    "search": search,
                    "region": region,
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
        """The fleet, live, or the named projects of it. Never ends by itself."""
        query = {"project": list(projects)} if projects else None
        stream = read_events(self._connection, "/api/fleet/events", query=query, after=after)
        async with contextlib.aclosing(stream) as events:
            async for event in events:
                yield event

    async def summary(self) -> FleetSummary:
        """The fleet in numbers, with its health."""
        return await self._connection.request(FleetSummary, "GET", "/api/fleet/summary")

    async def health(self) -> HealthOut:
        """The health header's lights."""
        return await self._connection.request(HealthOut, "GET", "/api/fleet/health")

    async def readiness(self) -> Readiness:
        """Whether the keeper can do its work, and how its background does."""
        return await self._connection.request(Readiness, "GET", "/readyz")

    async def issue_client_token(self, address: str, *, ttl_s: int | None = None) -> ClientToken:
        """A short-lived token for a browser, good for this project only, and its id."""
        asked = build_body(ClientTokenRequest, project=address, ttl_s=ttl_s)
        return await self._connection.request(ClientToken, "POST", "/api/client-tokens", body=asked)

    async def revoke_client_token(self, token_id: str) -> None:
        """Revoke a client token by its id; it opens nothing more within two seconds."""
        path = f"/api/client-tokens/{quote(token_id, safe='')}"
        await self._connection.send("DELETE", path)

    async def close(self) -> None:
        """Give back connections. No sandbox changes."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

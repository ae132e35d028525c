"""Sessions: a conversation's sandbox, leased during a block."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

from sandkeeper.api import schemas
from sandkeeper.client.connection import HttpConnection, build_body
from sandkeeper.client.leases import hold_lease

if TYPE_CHECKING:
    from sandkeeper.api.schemas.sessions import (
        KindName,
        SandboxMetrics,
        SessionAcquired,
        SessionOut,
        SessionReleased,
        StreamOut,
    )


class SessionOptions(TypedDict, total=False):
    """Options of a session. All but the kind apply only when its sandbox is created."""

    conversation_id: str | None
    kind: KindName
    template: str | None
    env: Mapping[str, str]
    metadata: Mapping[str, str]
    region: str | None
    tenant: str | None
    idle: Literal["fixed", "adaptive"] | None
    idle_timeout_s: float | None
    on_idle: str | None
    shared: bool
    holder: str
    lease_s: float | None


class AsyncSessions:
    """Acquires, holds, transfers and closes sessions."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection

    async def acquire(
        self, user_id: str, task_id: str | None = None, **options: Unpack[SessionOptions]
    ) -> SessionAcquired:
        """Get the conversation's sandbox, running and healthy, with a lease that the caller renews.

        Without a task or conversation id a new session is opened. `hold` also renews and releases.
        """
        given = {name: value for name, value in options.items() if value is not None}
        for name in ("idle_timeout_s", "lease_s"):
            seconds = given.pop(name, None)
            if isinstance(seconds, int | float):
                given[f"{name.removesuffix('_s')}_ms"] = round(seconds * 1000)
        body = build_body(
            schemas.sessions.AcquireSessionRequest, user_id=user_id, task_id=task_id, **given
        )
        return await self._connection.request(
            schemas.sessions.SessionAcquired, "POST", "/api/sessions/acquire", body=body
        )

    @contextlib.asynccontextmanager
    async def hold(
        self, user_id: str, task_id: str | None = None, **options: Unpack[SessionOptions]
    ) -> AsyncIterator[SessionAcquired]:
        """Acquire a session during the block; its lease is renewed, so it is never idle."""
        acquired = await self.acquire(user_id, task_id, **options)
        lease_s = options.get("lease_s")
        async with hold_lease(self._connection, acquired.lease, lease_s=lease_s):
            yield acquired

    async def touch(self, session_id: str) -> SessionOut:
        """Report that the session is still needed. Does not wake its sandbox."""
        return await self._connection.request(
            schemas.sessions.SessionOut, "POST", f"/api/sessions/{session_id}/touch", body={}
        )

    async def release(self, session_id: str, *, lease_id: str | None = None) -> SessionReleased:
        """Release the sandbox; the session stays open until its idle time is over.

        Without `lease_id` no lease is released; the result's `leases` are those that remain.
        """
        body = {} if lease_id is None else {"leaseId": lease_id}
        return await self._connection.request(
            schemas.sessions.SessionReleased,
            "POST",
            f"/api/sessions/{session_id}/release",
            body=body,
        )

    async def transfer(
        self, session_id: str, *, task_id: str | None = None, conversation_id: str | None = None
    ) -> SessionOut:
        """Transfer the sandbox with its files to another conversation of the same user."""
        named = {"taskId": task_id, "conversationId": conversation_id}
        body = {name: value for name, value in named.items() if value is not None}
        return await self._connection.request(
            schemas.sessions.SessionOut, "POST", f"/api/sessions/{session_id}/transfer", body=body
        )

    async def close(self, session_id: str) -> None:
        """Close the session and kill its sandbox, unless another conversation shares it."""
        await self._connection.send("DELETE", f"/api/sessions/{session_id}")

    async def start_stream(self, session_id: str) -> StreamOut:
        """Start a desktop's live view if needed, and wait until it is ready."""
        return await self._connection.request(
            schemas.sessions.StreamOut, "POST", f"/api/sessions/{session_id}/stream"
        )

    async def show_stream(self, session_id: str) -> StreamOut:
        """Return the state of a desktop's live view without starting it."""
        return await self._connection.request(
            schemas.sessions.StreamOut, "GET", f"/api/sessions/{session_id}/stream"
        )

    async def stop_stream(self, session_id: str) -> None:
        """Stop the live view; do nothing if there is none."""
        await self._connection.send("DELETE", f"/api/sessions/{session_id}/stream")

    async def show(self, session_id: str) -> SessionOut:
        """Return an open session and its sandbox."""
        return await self._connection.request(
            schemas.sessions.SessionOut, "GET", f"/api/sessions/{session_id}"
        )

    async def list(
        self, *, kind: KindName | None = None, user_id: str | None = None
    ) -> AsyncGenerator[SessionOut, None]:
        """Yield all open sessions."""
        cursor: str | None = None
        while True:
            page = await self._connection.request(
                schemas.sessions.SessionPage,
                "GET",
                "/api/sessions",
                query={"kind": kind, "user": user_id, "cursor": cursor},
            )
            for session in page.items:
                yield session
            cursor = page.next_cursor
            if cursor is None:
                return

    async def metrics(self) -> SandboxMetrics:
        """Return the number of sessions, by kind and in total."""
        return await self._connection.request(
            schemas.sessions.SandboxMetrics, "GET", "/api/sessions/metrics"
        )

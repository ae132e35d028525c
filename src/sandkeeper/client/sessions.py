"""Sessions: a conversation's sandbox, leased for the length of a block."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Literal, Unpack

from typing_extensions import TypedDict

from sandkeeper.api.schemas.sessions import (
    AcquireSessionRequest,
    SandboxMetrics,
    SessionAcquired,
    SessionOut,
    SessionPage,
    StreamOut,
)
from sandkeeper.client.connection import build_body
from sandkeeper.client.leases import keep_lease

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    from sandkeeper.api.schemas.sessions import KindName
    from sandkeeper.client.connection import HttpConnection


class SessionOptions(TypedDict, total=False):
    """How a session is wished. All but the kind matter only when its sandbox is made."""

    conversation_id: str | None
    kind: KindName
    template: str | None
    env: Mapping[str, str]
    metadata: Mapping[str, str]
    region: str | None
    idle: Literal["fixed", "adaptive"] | None
    idle_timeout_s: float | None
    on_idle: str | None
    shared: bool
    holder: str
    lease_s: float | None


class AsyncSessions:
    """Acquires, holds, hands over and closes."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection

    async def acquire(
        self, user_id: str, task_id: str | None = None, **options: Unpack[SessionOptions]
    ) -> SessionAcquired:
        """The conversation's sandbox, running and healthy, with a lease that the caller renews.

        Without a task or conversation id it is a new session. `hold` renews and releases by itself.
        """
        given = {name: value for name, value in options.items() if value is not None}
        for name in ("idle_timeout_s", "lease_s"):
            seconds = given.pop(name, None)
            if isinstance(seconds, int | float):
                given[f"{name.removesuffix('_s')}_ms"] = round(seconds * 1000)
        asked = build_body(AcquireSessionRequest, user_id=user_id, task_id=task_id, **given)
        return await self._connection.request(
            SessionAcquired, "POST", "/api/sessions/acquire", body=asked
        )

    @contextlib.asynccontextmanager
    async def hold(
        self, user_id: str, task_id: str | None = None, **options: Unpack[SessionOptions]
    ) -> AsyncIterator[SessionAcquired]:
        """A session for the length of a block: meanwhile it is in use, and never idle."""
        acquired = await self.acquire(user_id, task_id, **options)
        lease_s = options.get("lease_s")
        async with keep_lease(self._connection, acquired.lease, lease_s=lease_s):
            yield acquired

    async def touch(self, session_id: str) -> SessionOut:
        """Say that the session is still needed. Wakes nothing."""
        return await self._connection.request(
            SessionOut, "POST", f"/api/sessions/{session_id}/touch", body={}
        )

    async def release(self, session_id: str, *, lease_id: str | None = None) -> SessionOut:
        """Give the sandbox back for now; the session stays open until it was idle for too long."""
        body = {} if lease_id is None else {"leaseId": lease_id}
        return await self._connection.request(
            SessionOut, "POST", f"/api/sessions/{session_id}/release", body=body
        )

    async def transfer(
        self, session_id: str, *, task_id: str | None = None, conversation_id: str | None = None
    ) -> SessionOut:
        """Hand the sandbox with its files to another conversation of the same user."""
        named = {"taskId": task_id, "conversationId": conversation_id}
        body = {name: value for name, value in named.items() if value is not None}
        return await self._connection.request(
            SessionOut, "POST", f"/api/sessions/{session_id}/transfer", body=body
        )

    async def close(self, session_id: str) -> None:
        """Close the session and end its sandbox, unless another conversation shares it."""
        await self._connection.send("DELETE", f"/api/sessions/{session_id}")

    async def start_stream(self, session_id: str) -> StreamOut:
        """A desktop's live view, started unless it is there, and ready to be watched."""
        return await self._connection.request(
            StreamOut, "POST", f"/api/sessions/{session_id}/stream"
        )

    async def show_stream(self, session_id: str) -> StreamOut:
        """A desktop's live view as it is. Starts and wakes nothing."""
        return await self._connection.request(
            StreamOut, "GET", f"/api/sessions/{session_id}/stream"
        )

    async def stop_stream(self, session_id: str) -> None:
        """End the live view; one that is not there is no error."""
        await self._connection.send("DELETE", f"/api/sessions/{session_id}/stream")

    async def show(self, session_id: str) -> SessionOut:
        """An open session and its sandbox."""
        return await self._connection.request(SessionOut, "GET", f"/api/sessions/{session_id}")

    async def list(
        self, *, kind: KindName | None = None, user_id: str | None = None
    ) -> AsyncGenerator[SessionOut, None]:
        """Every open session."""
        cursor: str | None = None
        while True:
            page = await self._connection.request(
                SessionPage,
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
        """The sessions' counts, by kind and in total."""
        return await self._connection.request(SandboxMetrics, "GET", "/api/sessions/metrics")

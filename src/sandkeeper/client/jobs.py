"""Jobs: builds with their own sandbox, paused until their preview is opened.

Use `keeper.project(f"job:{job_id}")` for everything else of a job's sandbox, such as its files.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, TypedDict, Unpack
from urllib.parse import quote

from sandkeeper.api import schemas
from sandkeeper.client.connection import RESPONSE_TIMEOUT_S, HttpConnection, build_body
from sandkeeper.client.errors import WakeTimedOutError
from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.domain.job import RebuildStatus

if TYPE_CHECKING:
    from sandkeeper.api.schemas.wakes import (
        JobOut,
        Rebuilt,
        Resumed,
        Snapshot,
    )

# The longest time that one request waits for the keeper, well below the response timeout.
WAIT_MAX_S = RESPONSE_TIMEOUT_S / 3
# The interval between polls of a rebuild in progress.
POLL_INTERVAL_S = 0.5


class JobOptions(TypedDict, total=False):
    """Options of a new job and its sandbox."""

    template: str
    env: Mapping[str, str]
    metadata: Mapping[str, str]
    port: int | None
    start_command: str | None
    workspace_path: str | None
    region: str | None
    tenant: str | None
    idle_timeout_s: float | None
    lifecycle_timeout_s: float | None
    stage_label: str | None
    build_version: str | None
    debug_id: str | None


class JobProgress(TypedDict, total=False):
    """Build progress reported by the host application."""

    stage_label: str
    build_version: str
    debug_id: str


class AsyncJobs:
    """Creates, pauses and resumes jobs."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection

    async def create(self, job_id: str | None = None, **options: Unpack[JobOptions]) -> JobOut:
        """Create a job with its own sandbox; return an existing job unchanged.

        Without an id the job gets a new one.
        """
        given: dict[str, object] = {**options, **({} if job_id is None else {"job_id": job_id})}
        times = {
            f"{name.removesuffix('_s')}_ms": round(seconds * 1000)
            for name in ("idle_timeout_s", "lifecycle_timeout_s")
            if isinstance(seconds := given.pop(name, None), int | float)
        }
        request = build_body(
            schemas.wakes.CreateJobRequest,
            policy=build_body(schemas.sandboxes.PolicyRequest, **times),
            **given,
        )
        # A port of None means that the job has no preview; it differs from an omitted port.
        body = request.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return await self._connection.request(
            schemas.wakes.JobOut, "POST", "/api/jobs", body=body, idempotent=True
        )

    async def show(self, job_id: str) -> JobOut:
        """Return the job with the state of its sandbox. Raise JobNotFoundError."""
        return await self._connection.request(schemas.wakes.JobOut, "GET", _path(job_id))

    async def list(self) -> AsyncGenerator[JobOut, None]:
        """Yield all jobs, newest first."""
        cursor: str | None = None
        while True:
            page = await self._connection.request(
                schemas.wakes.Dashboard, "GET", "/api/dashboard", query={"cursor": cursor}
            )
            for job in page.jobs:
                yield job
            cursor = page.next_cursor
            if cursor is None:
                return

    async def change(
        self, job_id: str, *, error_message: str | None = None, **words: Unpack[JobProgress]
    ) -> JobOut:
        """Update the job's stage, version or failure."""
        body = build_body(schemas.wakes.UpdateJobRequest, error_message=error_message, **words)
        return await self._connection.request(
            schemas.wakes.JobOut, "PATCH", _path(job_id), body=body
        )

    async def mark_ready(self, job_id: str, **words: Unpack[JobProgress]) -> JobOut:
        """Mark the build as done: capture its files and pause its sandbox."""
        body = build_body(schemas.wakes.UpdateJobRequest, **words)
        return await self._connection.request(
            schemas.wakes.JobOut, "POST", f"{_path(job_id)}/ready", body=body
        )

    async def snapshot(self, job_id: str) -> Snapshot:
        """Capture the files and pause the sandbox; do nothing if it is paused."""
        return await self._connection.request(
            schemas.wakes.Snapshot, "POST", f"{_path(job_id)}/snapshot"
        )

    async def resume(self, job_id: str, *, within_s: float = WAIT_MAX_S) -> Resumed:
        """Resume the paused preview and return its URL.

        A lost sandbox is not recreated. Raise SandboxExpiredError if only a rebuild helps, and
        SandboxUnreachableError if a retry may help.
        """
        return await self._connection.request(
            schemas.wakes.Resumed,
            "POST",
            f"{_path(job_id)}/resume",
            query={"wait": min(within_s, WAIT_MAX_S)},
            retry_errors=False,
        )

    async def ask_rebuild(self, job_id: str) -> Rebuilt:
        """Return the cost of a rebuild, and the `confirmation` that `rebuild` needs."""
        return await self._connection.request(
            schemas.wakes.Rebuilt, "POST", f"{_path(job_id)}/rebuild", body={}
        )

    async def rebuild(self, job_id: str, *, confirmation: str, within_s: float = 300) -> Rebuilt:
        """Rebuild the job from its kept files, which uses the confirmed credit.

        A confirmation is good for one rebuild, however often it is sent, so an interrupted caller
        can send it again. Raise WakeTimedOutError if it is still in progress after `within_s`.
        """
        if not confirmation:
            raise InvalidRequestError("A rebuild needs the confirmation from `ask_rebuild`.")
        body = build_body(schemas.wakes.RebuildRequest, confirmation=confirmation)
        deadline = time.monotonic() + within_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            rebuilt = await self._connection.request(
                schemas.wakes.Rebuilt,
                "POST",
                f"{_path(job_id)}/rebuild",
                body=body,
                query={"wait": min(left_s, WAIT_MAX_S)},
            )
            if RebuildStatus(rebuilt.rebuild_status or "").is_over:
                return rebuilt
            if time.monotonic() >= deadline:
                raise WakeTimedOutError(f"The rebuild is still in progress after {within_s:g} s.")
            await asyncio.sleep(POLL_INTERVAL_S)


def _path(job_id: str) -> str:
    if not job_id or "/" in job_id:
        raise InvalidRequestError("A job's id must not be empty or contain a slash.")
    return f"/api/jobs/{quote(job_id, safe='')}"

"""Jobs: builds with a sandbox each, ready and asleep until somebody wants to see them.

Everything else about a job's sandbox, its files too, is `keeper.project(f"job:{job_id}")`.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Unpack
from urllib.parse import quote

from typing_extensions import TypedDict

from sandkeeper.api.schemas.sandboxes import PolicyRequest
from sandkeeper.api.schemas.wakes import (
    CreateJobRequest,
    Dashboard,
    JobOut,
    RebuildRequest,
    Rebuilt,
    Resumed,
    Snapshot,
    UpdateJobRequest,
)
from sandkeeper.client.connection import ANSWER_S, build_body
from sandkeeper.client.errors import WakeTimedOutError
from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.domain.job import RebuildStatus

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from sandkeeper.client.connection import HttpConnection

# The longest that one request waits for the keeper's work, well below when its answer is given up.
WAIT_S = ANSWER_S / 3
# How often a rebuild that is still under way is asked about.
POLL_INTERVAL_S = 0.5


class JobOptions(TypedDict, total=False):
    """What a new job and its sandbox should be."""

    template: str
    env: Mapping[str, str]
    metadata: Mapping[str, str]
    port: int | None
    start_command: str | None
    workspace_path: str | None
    region: str | None
    idle_timeout_s: float | None
    lifecycle_timeout_s: float | None
    stage_label: str | None
    build_version: str | None
    debug_id: str | None


class JobTexts(TypedDict, total=False):
    """What whoever builds has to say of a job."""

    stage_label: str
    build_version: str
    debug_id: str


class AsyncJobs:
    """Begins jobs, puts them to sleep and brings them back."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection

    async def create(self, job_id: str | None = None, **options: Unpack[JobOptions]) -> JobOut:
        """Begin a job with a sandbox of its own; one that has begun already is given as it is.

        Without an id the job gets a new one.
        """
        given: dict[str, object] = {**options, **({} if job_id is None else {"job_id": job_id})}
        times = {
            f"{name.removesuffix('_s')}_ms": round(seconds * 1000)
            for name in ("idle_timeout_s", "lifecycle_timeout_s")
            if isinstance(seconds := given.pop(name, None), int | float)
        }
        asked = build_body(CreateJobRequest, policy=build_body(PolicyRequest, **times), **given)
        # A port of None says that the job serves nothing, and is not the same as none given.
        body = asked.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return await self._connection.request(JobOut, "POST", "/api/jobs", body=body, once=True)

    async def show(self, job_id: str) -> JobOut:
        """The job and how its sandbox is. Raises JobNotFoundError."""
        return await self._connection.request(JobOut, "GET", _path(job_id))

    async def list(self) -> AsyncGenerator[JobOut, None]:
        """Every job, newest first."""
        cursor: str | None = None
        while True:
            page = await self._connection.request(
                Dashboard, "GET", "/api/dashboard", query={"cursor": cursor}
            )
            for job in page.jobs:
                yield job
            cursor = page.next_cursor
            if cursor is None:
                return

    async def change(
        self, job_id: str, *, error_message: str | None = None, **words: Unpack[JobTexts]
    ) -> JobOut:
        """Note the job's stage, version or failure."""
        asked = build_body(UpdateJobRequest, error_message=error_message, **words)
        return await self._connection.request(JobOut, "PATCH", _path(job_id), body=asked)

    async def mark_ready(self, job_id: str, **words: Unpack[JobTexts]) -> JobOut:
        """Say that the build is done: its files are kept, and its sandbox goes to sleep at once."""
        asked = build_body(UpdateJobRequest, **words)
        return await self._connection.request(JobOut, "POST", f"{_path(job_id)}/ready", body=asked)

    async def snapshot(self, job_id: str) -> Snapshot:
        """Keep the files and put the sandbox to sleep; one that sleeps is left as it is."""
        return await self._connection.request(Snapshot, "POST", f"{_path(job_id)}/snapshot")

    async def resume(self, job_id: str, *, within_s: float = WAIT_S) -> Resumed:
        """Bring the sleeping preview back, and give its address.

        What is gone is not replaced: SandboxExpiredError says that only a rebuild helps, and
        SandboxUnreachableError that another try may.
        """
        return await self._connection.request(
            Resumed,
            "POST",
            f"{_path(job_id)}/resume",
            query={"wait": min(within_s, WAIT_S)},
            repeat_told=False,
        )

    async def ask_rebuild(self, job_id: str) -> Rebuilt:
        """What a rebuild costs: `message`, `credits`, and the `confirmation` for `rebuild`."""
        return await self._connection.request(Rebuilt, "POST", f"{_path(job_id)}/rebuild", body={})

    async def rebuild(self, job_id: str, *, confirmation: str, within_s: float = 300) -> Rebuilt:
        """Rebuild the job from its kept files, which uses the credit that was confirmed.

        A confirmation stands for one rebuild, however often it is sent: whoever was interrupted
        sends it again. Raises WakeTimedOutError if it is still under way after `within_s`.
        """
        if not confirmation:
            raise InvalidRequestError("A rebuild needs the confirmation that `ask_rebuild` gave.")
        asked = build_body(RebuildRequest, confirmation=confirmation)
        ends = time.monotonic() + within_s
        while True:
            left_s = max(0.0, ends - time.monotonic())
            rebuilt = await self._connection.request(
                Rebuilt,
                "POST",
                f"{_path(job_id)}/rebuild",
                body=asked,
                query={"wait": min(left_s, WAIT_S)},
            )
            if RebuildStatus(rebuilt.rebuild_status or "").is_over:
                return rebuilt
            if time.monotonic() >= ends:
                raise WakeTimedOutError(f"The rebuild is still under way after {within_s:g} s.")
            await asyncio.sleep(POLL_INTERVAL_S)


def _path(job_id: str) -> str:
    if not job_id or "/" in job_id:
        raise InvalidRequestError("A job's id is not empty and has no slash in it.")
    return f"/api/jobs/{quote(job_id, safe='')}"

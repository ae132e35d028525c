"""Jobs and their rebuilds. A job has at most one open rebuild; an index enforces that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select, tuple_, update
from sqlalchemy.exc import IntegrityError

from sandkeeper.domain.errors import JobNotFoundError
from sandkeeper.domain.job import Job, JobStatus, Rebuild, RebuildStatus
from sandkeeper.store.database import Database
from sandkeeper.store.tables.sandboxes import JOBS, REBUILDS

_J = JOBS.c
_R = REBUILDS.c
_OPEN = [status.value for status in RebuildStatus if not status.is_over]


class JobStore:
    """Reads and writes of both tables."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def insert_new(self, job: Job) -> tuple[Job, bool]:
        """Return the job with this id, and whether it is this new one."""
        async with self._database.writing() as connection:
            statement = self._database.insert_ignoring(JOBS, ["id"])
            made = (await connection.execute(statement, _job_row(job))).rowcount
        return (job, True) if made else (await self.get(job.id), False)

    async def get(self, job_id: str) -> Job:
        """Return the job with this id; raise JobNotFoundError."""
        async with self._database.reading() as connection:
            found = (await connection.execute(select(JOBS).where(_J.id == job_id))).mappings()
            row = found.first()
        if row is None:
            raise JobNotFoundError("Job not found", job_id=job_id)
        return _job(row)

    async def change(self, job_id: str, **changes: Any) -> Job:
        """Change these fields and return the job. Concurrent changes to other fields stay."""
        statement = update(JOBS).where(_J.id == job_id).values(**changes).returning(JOBS)
        async with self._database.writing() as connection:
            row = (await connection.execute(statement)).mappings().first()
        if row is None:
            raise JobNotFoundError("Job not found", job_id=job_id)
        return _job(row)

    async def list_newest(
        self, *, limit: int, after: tuple[datetime, str] | None = None
    ) -> Sequence[Job]:
        """Return jobs, newest first, starting after the given one."""
        statement = select(JOBS).order_by(_J.created_at.desc(), _J.id.desc()).limit(limit)
        if after is not None:
            statement = statement.where(tuple_(_J.created_at, _J.id) < after)
        async with self._database.reading() as connection:
            return [_job(row) for row in (await connection.execute(statement)).mappings()]

    async def begin_rebuild(self, rebuild: Rebuild, *, driver: str) -> tuple[Rebuild, bool]:
        """Return the rebuild with this id or the open one, and whether it is this new one.

        ``driver`` is the replica that drives a new one.
        """
        row = _rebuild_row(rebuild) | {"driver": driver}
        try:
            async with self._database.writing() as connection:
                await connection.execute(insert(REBUILDS).values(**row))
        except IntegrityError:
            known = await self.find_rebuild(rebuild.id) or await self.find_open(rebuild.job_id)
            return (known or rebuild), False
        return rebuild, True

    async def find_rebuild(self, rebuild_id: str) -> Rebuild | None:
        """Return the rebuild with this id."""
        async with self._database.reading() as connection:
            statement = select(REBUILDS).where(_R.id == rebuild_id)
            row = (await connection.execute(statement)).mappings().first()
        return None if row is None else _rebuild(row)

    async def find_open(self, job_id: str) -> Rebuild | None:
        """Return the job's rebuild that is not over."""
        statement = select(REBUILDS).where(_R.job_id == job_id, _R.status.in_(_OPEN))
        async with self._database.reading() as connection:
            row = (await connection.execute(statement)).mappings().first()
        return None if row is None else _rebuild(row)

    async def list_due(self, *, now: datetime, limit: int) -> Sequence[Rebuild]:
        """Return rebuilds without a driver."""
        statement = (
            select(REBUILDS).where(_R.status.in_(_OPEN), _R.due_at <= now).order_by(_R.due_at)
        )
        async with self._database.reading() as connection:
            rows = (await connection.execute(statement.limit(limit))).mappings()
            return [_rebuild(row) for row in rows]

    async def claim_rebuild(
        self, rebuild_id: str, *, driver: str, now: datetime, until: datetime
    ) -> Rebuild | None:
        """Claim the rebuild until ``until``; None if it is over or another one drives it."""
        statement = (
            update(REBUILDS)
            .where(_R.id == rebuild_id, _R.status.in_(_OPEN), _R.due_at <= now)
            .values(due_at=until, driver=driver)
            .returning(REBUILDS)
        )
        async with self._database.writing() as connection:
            row = (await connection.execute(statement)).mappings().first()
        return None if row is None else _rebuild(row)

    async def prolong_rebuild(self, rebuild_id: str, *, until: datetime) -> None:
        """Extend the driver's lease: the rebuild is still in progress."""
        async with self._database.writing() as connection:
            await connection.execute(
                update(REBUILDS)
                .where(_R.id == rebuild_id, _R.status.in_(_OPEN))
                .values(due_at=until)
            )

    async def save_rebuild(self, rebuild: Rebuild) -> Rebuild:
        """Write the rebuild without its lease; one that is over stays as it ended."""
        row = {name: value for name, value in _rebuild_row(rebuild).items() if name != "due_at"}
        async with self._database.writing() as connection:
            await connection.execute(
                update(REBUILDS).where(_R.id == rebuild.id, _R.status.in_(_OPEN)).values(**row)
            )
        return rebuild


def _job_row(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in Job.__slots__} | {"status": job.status.value}


def _job(row: Mapping[Any, Any]) -> Job:
    found = {name: row[name] for name in Job.__slots__}
    return Job(**found | {"status": JobStatus(found["status"])})


def _rebuild_row(rebuild: Rebuild) -> dict[str, Any]:
    row = {name: getattr(rebuild, name) for name in Rebuild.__slots__}
    return row | {"status": rebuild.status.value}


def _rebuild(row: Mapping[Any, Any]) -> Rebuild:
    found = {name: row[name] for name in Rebuild.__slots__}
    return Rebuild(**found | {"status": RebuildStatus(found["status"])})

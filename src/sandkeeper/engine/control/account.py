"""The account of E2B's API: here one team with one key, and its metrics."""

from __future__ import annotations

import sqlite3
import time
import uuid

from sandkeeper.engine.control.http import ControlRequest, ControlResponse
from sandkeeper.engine.errors import BadRequestError, ResourceNotFoundError
from sandkeeper.engine.sandboxes import events
from sandkeeper.engine.sandboxes.events import render_instant
from sandkeeper.engine.sandboxes.model import RUN_MAX_S
from sandkeeper.engine.storage.database import EngineDatabase

TEAM_NAME = "local"
POINTS_MAX = 500
STEP_MIN_S = 15
DEFAULT_SPAN_S = 3600
_METRICS = ("concurrent_sandboxes", "sandbox_start_rate")
_STARTS = (events.CREATED, events.RESUMED)
_ENDS = (events.PAUSED, events.KILLED)

Point = tuple[int, int, float]
"""The end of a step, the most sandboxes that ran in it at once, and how many started a second."""


class AccountRoutes:
    """Teams, keys and what the team uses."""

    def __init__(self, database: EngineDatabase, team_id: str, key: str) -> None:
        self._database = database
        self._team_id = team_id
        self._key = key

    async def list_teams(self, _request: ControlRequest) -> ControlResponse:
        team = {
            "teamID": self._team_id,
            "name": TEAM_NAME,
            "apiKey": self._key,
            "isDefault": True,
        }
        return ControlResponse(200, [team])

    async def list_keys(self, _request: ControlRequest) -> ControlResponse:
        prefix, _, value = self._key.rpartition("_")
        key = {
            "id": str(uuid.uuid5(uuid.NAMESPACE_OID, self._team_id)),
            "name": TEAM_NAME,
            "mask": {
                "prefix": f"{prefix}_" if prefix else "",
                "valueLength": len(value),
                "maskedValuePrefix": value[:2],
                "maskedValueSuffix": value[-4:],
            },
            "createdAt": render_instant(0),
            "createdBy": None,
            "lastUsed": None,
        }
        return ControlResponse(200, [key])

    async def metrics(self, request: ControlRequest) -> ControlResponse:
        points = await self._list_points(request)
        body = [
            {
                "timestamp": render_instant(at),
                "timestampUnix": at,
                "concurrentSandboxes": count,
                "sandboxStartRate": rate,
            }
            for at, count, rate in points
        ]
        return ControlResponse(200, body)

    async def max_metric(self, request: ControlRequest) -> ControlResponse:
        wanted = request.text("metric")
        if wanted not in _METRICS:
            raise BadRequestError(f"'metric' must be {' or '.join(_METRICS)}")
        column = 1 + _METRICS.index(wanted)
        highest = max(await self._list_points(request), key=lambda point: point[column])
        body = {
            "timestamp": render_instant(highest[0]),
            "timestampUnix": highest[0],
            "value": highest[column],
        }
        return ControlResponse(200, body)

    async def _list_points(self, request: ControlRequest) -> list[Point]:
        if request.params["id"] != self._team_id:
            raise ResourceNotFoundError("there is no such team here; GET /teams names the one")
        now = int(time.time()) + 1
        end = min(request.number("end", now, 0), now)
        start = request.number("start", max(0, end - DEFAULT_SPAN_S), 0)
        if start > end:
            raise BadRequestError("'start' must not be after 'end'")
        step = max(STEP_MIN_S, -(-(end - start) // POINTS_MAX))
        changes = await self._database.run(lambda c: _read_changes(c, start - RUN_MAX_S, end))
        return count_points(changes, start, end, step)


def count_points(
    changes: list[tuple[float, str, str]], start: int, end: int, step: int
) -> list[Point]:
    """Count from the events, oldest first, what ran and started at each step."""
    running: set[str] = set()
    points: list[Point] = []
    position = 0
    for at in (*range(start, end, step), end):
        started, most = 0, len(running)
        while position < len(changes) and changes[position][0] <= at:
            changed_at, kind, sandbox_id = changes[position]
            if kind in _ENDS:
                running.discard(sandbox_id)
            else:
                running.add(sandbox_id)
                started += changed_at > at - step
            position += 1
            most = max(most, len(running))
        points.append((at, most, started / step))
    return points


def _read_changes(
    connection: sqlite3.Connection, since: int, until: int
) -> list[tuple[float, str, str]]:
    kinds = (*_STARTS, *_ENDS)
    rows = connection.execute(
        "SELECT at, type, sandbox_id FROM events WHERE at >= ? AND at <= ? "
        "AND type IN (?, ?, ?, ?) ORDER BY seq",
        (since, until + 1, *kinds),
    )
    return [(float(at), str(kind), str(sandbox_id)) for at, kind, sandbox_id in rows]

"""Log lines: repeats are counted instead of written, and each line names what it is about."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import structlog
from structlog.testing import capture_logs

from sandkeeper.api.middleware import RequestMiddleware
from sandkeeper.api.wire_errors import RouteNotFoundError
from sandkeeper.common.log_names import LogNames
from sandkeeper.telemetry import Metrics, RepeatFilter, _name_the_request


class Written:
    """What a filter lets through at times that the test sets."""

    def __init__(self, **options: Any) -> None:
        self.now = 0.0
        self._filter = RepeatFilter(clock=lambda: self.now, **options)
        self.lines: list[dict[str, Any]] = []

    def write(self, fact: str, level: str = "warning", **fields: Any) -> None:
        try:
            event = {"event": fact, "level": level, **fields}
            self.lines.append(dict(self._filter(None, level, event)))
        except structlog.DropEvent:
            pass


def test_34_leaks_seen_a_hundred_times_write_34_lines_and_then_say_how_many_were_not_written() -> (
    None
):
    log = Written(window_s=600)
    for _ in range(100):
        for number in range(34):
            log.write("leak_not_removed", instance_id=f"i{number}")
    assert len(log.lines) == 34
    log.now = 601
    log.write("leak_not_removed", instance_id="i0")
    assert log.lines[-1]["repeats_not_written"] == 34 * 99


def test_one_fact_of_very_many_things_is_bounded() -> None:
    log = Written(lines_max=50)
    for number in range(1000):
        log.write("operation_failed", sandbox_id=f"s{number}")
    assert len(log.lines) == 50


def test_what_is_no_warning_is_always_written() -> None:
    log = Written()
    for _ in range(3):
        log.write("sandbox_paused", level="info")
    assert len(log.lines) == 3


@pytest.mark.parametrize(("failure", "status"), [(RouteNotFoundError(), 404), (OSError("x"), 500)])
async def test_a_failed_request_is_in_the_log_under_the_id_that_its_caller_got(
    failure: Exception, status: int
) -> None:
    async def fail(scope: Any, _receive: Any, _send: Any) -> None:
        scope["path_params"] = {"project": "shop"}
        raise failure

    app = RequestMiddleware(fail, metrics=Metrics())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://k") as client:
        with capture_logs(processors=[_name_the_request]) as lines:
            answer = await client.get("/nowhere")
    assert answer.status_code == status
    line = lines[0]
    assert line["request_id"] == answer.json()["requestId"] == answer.headers["x-request-id"]
    assert (line["event"], line["status"], line["project"]) == ("request_error", status, "shop")
    assert ["exc_info" in line and line["exc_info"] is not None for line in lines] == (
        [False] if status == 404 else [False, True]
    )


def test_a_line_about_a_sandbox_or_its_instance_names_the_owner_and_the_sessions_key() -> None:
    names = LogNames(names_max=2)
    names.note_sandbox("sb-1", kind="session", owner_id="se-1", instance_id="i-1")
    names.note_session("se-1", key="ann:t1")
    lines: list[dict[str, Any]] = [
        {"sandbox_id": "sb-1"},
        {"instance_id": "i-1"},
        {"session_id": "se-1"},
        {"sandbox_id": "sb-2"},
        {"task": "prune"},
    ]
    for line in lines:
        names.add(line)
    named = {"sandbox_id": "sb-1", "session": "se-1", "session_key": "ann:t1"}
    assert lines[0] == named
    assert lines[1] == named | {"instance_id": "i-1"}
    assert lines[2] == {"session_id": "se-1", "session_key": "ann:t1"}
    assert lines[3:] == [{"sandbox_id": "sb-2"}, {"task": "prune"}]


def test_the_names_of_very_many_sandboxes_are_bounded() -> None:
    names = LogNames(names_max=2)
    for number in range(4):
        names.note_sandbox(f"sb-{number}", kind="project", owner_id="p", instance_id=None)
    lines: list[dict[str, Any]] = [{"sandbox_id": f"sb-{number}"} for number in range(4)]
    for line in lines:
        names.add(line)
    assert ["project" in line for line in lines] == [False, False, True, True]

"""What becomes of running sandboxes when Ctrl-C stops `sandkeeper up`: nothing pauses them then."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import structlog

from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.domain.states import State

if TYPE_CHECKING:
    from sandkeeper.domain.sandbox import Sandbox
    from sandkeeper.services.composition import Services

log = structlog.get_logger(__name__)

PAUSE_WITHIN_S: Final = 45.0
"""After this time the rest is left running: Ctrl-C should end a program."""
PARALLEL: Final = 8
PAGE: Final = 500
NAMED: Final = 5


class OnExit(StrEnum):
    """What Ctrl-C does with running sandboxes."""

    PAUSE = "pause"
    LEAVE = "leave"
    ASK = "ask"


async def settle_running(services: Services, choice: OnExit, say: Callable[[str], None]) -> str:
    """Pause what runs, or leave it, as chosen; return the sentence to end with."""
    running = await _list_running(services)
    if not running:
        return "No sandbox is running."
    if choice is OnExit.ASK and sys.stdin.isatty():
        say(f"{_count(running)} running. Pause them? [Y/n] ")
        answer = await asyncio.to_thread(sys.stdin.readline)
        choice = OnExit.LEAVE if answer.strip().lower() in ("n", "no") else OnExit.PAUSE
    if choice is not OnExit.LEAVE:
        say(f"{_count(running)} running: pausing. Ctrl-C again leaves the rest running.\n")
        await _pause(services, running)
        running = await _list_running(services)
        if not running:
            return "All sandboxes are paused, with their files."
    names = ", ".join(str(one.owner.id) for one in running[:NAMED])
    more = ", …" if len(running) > NAMED else ""
    return (
        f"{_count(running)} still running ({names}{more}), and nothing pauses them until the next "
        "start."
    )


async def _list_running(services: Services) -> list[Sandbox]:
    from sandkeeper.store.sandboxes.query import SandboxQuery  # noqa: PLC0415  Slow to import.

    found: list[Sandbox] = []
    cursor: str | None = None
    while True:
        query = SandboxQuery(states=(State.RUNNING,), limit=PAGE)
        page = await services.deps.store.sandboxes.list(query, cursor)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return found


async def _pause(services: Services, running: list[Sandbox]) -> None:
    waiting = iter(running)

    async def work() -> None:
        for sandbox in waiting:
            try:
                await services.lifecycle.pause(
                    sandbox.id, actor="cli", reason="paused at the end of `sandkeeper up`"
                )
            except SandkeeperError as error:
                log.warning("not_paused_on_exit", sandbox_id=sandbox.id, error=str(error))

    try:
        async with asyncio.timeout(PAUSE_WITHIN_S):
            await asyncio.gather(*(work() for _ in range(PARALLEL)))
    except TimeoutError:
        log.warning("not_all_paused_on_exit", within_s=PAUSE_WITHIN_S)


def _count(running: list[Sandbox]) -> str:
    return "1 sandbox is" if len(running) == 1 else f"{len(running)} sandboxes are"

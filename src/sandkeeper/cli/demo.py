"""The demo fleet: a few small real sandboxes in different states, to have something to see."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.domain.sandbox import Launch, Owner, Policy

if TYPE_CHECKING:
    from sandkeeper.api.context import Context

log = structlog.get_logger(__name__)

ACTOR = "demo"
NAMES = ("shop-builder", "landing", "notes", "weather", "chess", "budget", "garden", "radio")
DEMO_MAX = 50


async def start_demo(context: Context, *, count: int) -> None:
    """Make `count` sandboxes that are not there yet; every third sleeps, every fifth is ended."""
    names = [_name(number) for number in range(min(count, DEMO_MAX))]
    results = await asyncio.gather(
        *(_start(context, name, number) for number, name in enumerate(names)),
        return_exceptions=True,
    )
    for name, result in zip(names, results, strict=True):
        if isinstance(result, SandkeeperError):
            log.warning("demo_sandbox_failed", project=name, error=str(result))
        elif isinstance(result, BaseException):
            raise result


async def _start(context: Context, name: str, number: int) -> None:
    made = await context.creation.create(
        Owner.project(name),
        launch=Launch(template="base", metadata={"demo": "yes"}),
        policy=Policy(idle_timeout_s=context.settings.idle_timeout_s),
        actor=ACTOR,
    )
    if not made.is_new:
        return
    if number % 5 == 4:
        await context.lifecycle.kill(made.sandbox.id, actor=ACTOR)
    elif number % 3 == 2:
        await context.lifecycle.pause(made.sandbox.id, actor=ACTOR)


def _name(number: int) -> str:
    base = NAMES[number % len(NAMES)]
    return base if number < len(NAMES) else f"{base}-{number // len(NAMES) + 1}"

"""The demo fleet: a few small real sandboxes in different states."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.policy import Launch, Policy
from sandkeeper.web import Assets

if TYPE_CHECKING:
    from sandkeeper.api.deps import ApiContext

log = structlog.get_logger(__name__)

ACTOR = "demo"
SCRIPT = "dashboard/demo.json"
"""The sandboxes of the demo, each with its app; the dashboard's button creates the same ones."""
DEMO_MAX = 50


async def start_demo(context: ApiContext, *, count: int) -> None:
    """Create `count` sandboxes unless they exist; pause some and kill some."""
    script = Assets().find(SCRIPT)
    assert script is not None
    kinds = orjson.loads(script.body)["sandboxes"]
    numbers = range(min(count, DEMO_MAX))
    results = await asyncio.gather(
        *(_start(context, kinds[number % len(kinds)], number // len(kinds)) for number in numbers),
        return_exceptions=True,
    )
    for number, result in zip(numbers, results, strict=True):
        if isinstance(result, SandkeeperError):
            log.warning("demo_sandbox_failed", number=number, error=str(result))
        elif isinstance(result, BaseException):
            raise result


async def _start(context: ApiContext, kind: dict[str, Any], round_: int) -> None:
    request = kind["request"]
    idle_ms = request.get("policy", {}).get("idleTimeoutMs")
    made = await context.services.creation.create(
        Owner.project(f"{kind['project']}-{round_ + 1}" if round_ else kind["project"]),
        launch=Launch(
            template="base",
            metadata=request["metadata"],
            port=request["port"],
            start_command=request["startCommand"],
        ),
        policy=Policy(
            idle_timeout_s=idle_ms / 1000 if idle_ms else context.deps.settings.idle_timeout_s
        ),
        actor=ACTOR,
    )
    if not made.is_new:
        return
    if kind["then"] == "kill":
        await context.services.lifecycle.kill(made.sandbox.id, actor=ACTOR)
    elif kind["then"] == "pause":
        await context.services.lifecycle.pause(made.sandbox.id, actor=ACTOR)

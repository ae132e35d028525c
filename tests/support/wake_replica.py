"""A replica that wakes real sandboxes with real files; or one that dies at a step of a wake
(`python -m support.wake_replica DATABASE FOLDER ENGINE KEY KEEPER SANDBOX STEP`), or stands still
at it until it is continued (`stop:STEP`), or at its second upload (`stop:upload`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from e2b import AsyncSandbox

from sandkeeper.domain.breaker import Breaker
from sandkeeper.domain.decisions.wake import Wake
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.policy import Launch, Policy
from sandkeeper.domain.receipt import StepName
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.providers.base import Provider
from sandkeeper.providers.e2b.endpoint import E2BConnection
from sandkeeper.providers.e2b.provider import E2BProvider
from sandkeeper.providers.rate_limit import RateLimiter
from sandkeeper.services.files import capture
from sandkeeper.services.files.agent.client import AgentClient
from sandkeeper.services.files.capture import FileCapture
from sandkeeper.services.wake.app import AppRunner
from sandkeeper.services.wake.progress import nothing_on_step
from sandkeeper.services.wake.wakes import Wakes
from sandkeeper.store import Store, open_store
from support.deps import MovableClock, make_deps
from support.sweep_replica import Replica

WORKDIR = "/home/user/app"
PORT = 8000
PYTHON_APP = f"python3 -m http.server {PORT}"
STAY = Policy(idle_timeout_s=None)


def connect(engine_url: str, key: str, keeper: str) -> E2BProvider:
    return E2BProvider(
        E2BConnection(api_key=key, api_url=engine_url, sandbox_url=engine_url),
        keeper=keeper,
        breaker=Breaker(failures_max=1000),
        rate_limiter=RateLimiter(concurrency_max=20, creates_per_s=100),
    )


@dataclass
class Waker:
    """One replica with everything that a wake needs."""

    replica: Replica
    provider: Provider
    files: FileCapture
    apps: AppRunner
    wakes: Wakes

    @classmethod
    def over(
        cls,
        store: Store,
        provider: Provider,
        folder: Path,
        *,
        clock: MovableClock | None = None,
        name: str = "one",
        pause_s: float = 0.05,
        app_start_timeout_s: float = 60,
        files_url: str = "",
        wake_lease_s: float = 15,
        on_step: Callable[[Wake, StepName], Awaitable[None]] = nothing_on_step,
    ) -> Waker:
        deps = make_deps(
            store,
            provider,
            clock=clock,
            replica=name,
            lease_s=60,
            wake_retry_s=pause_s,
            wake_lease_s=wake_lease_s,
            app_start_timeout_s=app_start_timeout_s,
            files_url=files_url,
            data=folder,
        )
        replica = Replica(deps, on_step=on_step)
        return cls(replica, provider, replica.files, replica.apps, replica.wakes)

    async def create(
        self,
        project: str,
        *,
        command: str | None = PYTHON_APP,
        port: int | None = PORT,
        policy: Policy = STAY,
    ) -> Sandbox:
        """A sandbox whose app was started; returns when that is over."""
        made = await self.replica.creation.create(
            Owner.project(project),
            launch=Launch(template="base", port=port, start_command=command, workdir=WORKDIR),
            policy=policy,
            actor="test",
        )
        return await self.settle(made.sandbox)

    async def wake(self, sandbox: Sandbox, **options: Any) -> Wake:
        """The wake when it is over, with what was added to its receipt beside its use."""
        begun = await self.wakes.start(sandbox.id, actor="test", **options)
        ended = await self.wakes.wait(begun, within_s=120)
        await self.replica.after_resume.wait()
        await self.settle(sandbox)
        return await self.replica.store.wakes.find(ended.id) or ended

    async def settle(self, sandbox: Sandbox) -> Sandbox:
        """The record after the wake that is under way."""
        under_way = await self.replica.store.wakes.find_open(sandbox.id)
        if under_way is not None:
            await self.wakes.wait(under_way, within_s=120)
        return await self.get(sandbox)

    async def get(self, sandbox: Sandbox) -> Sandbox:
        return await self.replica.get(sandbox)

    async def enter(self, sandbox: Sandbox) -> AsyncSandbox:
        fresh = await self.get(sandbox)
        assert fresh.instance_id is not None
        return await self.provider.open_sdk_sandbox(fresh.instance_id)

    async def write(self, sandbox: Sandbox, path: str, text: str) -> None:
        await (await self.enter(sandbox)).files.write(f"{WORKDIR}/{path}", text)

    async def capture(self, sandbox: Sandbox) -> None:
        await self.files.capture(await self.get(sandbox))

    async def instances(self, sandbox: Sandbox) -> list[str]:
        page = await self.provider.list_instances(sandbox_id=sandbox.id)
        return [one.instance_id for one in page.instances]


async def browse(engine_url: str, sandbox: Sandbox, path: str = "", port: int = PORT) -> str:
    """What a browser would see on the preview."""
    headers = {"E2b-Sandbox-Id": sandbox.instance_id or "", "E2b-Sandbox-Port": str(port)}
    async with httpx.AsyncClient(timeout=30) as client:
        answer = await client.get(f"{engine_url}/{path}", headers=headers)
        answer.raise_for_status()
        return answer.text


class StoppingClient(AgentClient):
    """Stands still before the second upload, through whichever lane it goes."""

    uploads = 0

    async def upload(self, path: str, chunks: AsyncIterator[bytes]) -> None:
        StoppingClient.uploads += 1
        if StoppingClient.uploads == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        await super().upload(path, chunks)


async def die_at(arguments: list[str]) -> None:
    """Wake one sandbox, and die or stand still as the named step begins."""
    database, folder, engine_url, key, keeper, sandbox_id, last = arguments
    last, does_stop = last.removeprefix("stop:"), last.startswith("stop:")
    if last == "upload":
        capture.AgentClient = StoppingClient  # type: ignore[misc]  # For this process only.

    async def die(_wake: Wake, step: StepName) -> None:
        if step.value == last:
            os.kill(os.getpid(), signal.SIGSTOP if does_stop else signal.SIGKILL)

    async with open_store(database, migrate=False) as store:
        provider = connect(engine_url, key, keeper)
        lease_s = 1 if does_stop else 15
        waker = Waker.over(
            store, provider, Path(folder), name="doomed", on_step=die, wake_lease_s=lease_s
        )
        begun = await waker.wakes.start(sandbox_id, actor="test")
        ended = await waker.wakes.wait(begun, within_s=60)
        await provider.close()
    sys.stdout.write(f"it ended: {ended}\n")


if __name__ == "__main__":
    asyncio.run(die_at(sys.argv[1:]))

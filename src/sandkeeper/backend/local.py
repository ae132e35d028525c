"""The same backend on this machine: an engine that runs already, or one that is started for it.

An engine serves every backend of this process that names its data folder, and ends with the last of
them, or with the process. Sandboxes outlive it: the next engine over the folder takes them back, so
`connect_backend` works from another process, later.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from sandkeeper.backend.e2b import E2BBackend
from sandkeeper.local_engine import EngineFailedError, LocalEngine
from sandkeeper.settings import user_data_folder

if TYPE_CHECKING:
    from pathlib import Path

FIND_S = 5


@dataclass(frozen=True, slots=True)
class Found:
    """An engine that answers, and the key that it takes."""

    url: str
    key: str

    @property
    def sdk_options(self) -> dict[str, Any]:
        return {"api_key": self.key, "api_url": self.url, "sandbox_url": self.url}


@dataclass(slots=True)
class _Shared:
    """An engine of ours, or one being started, and how many backends use it."""

    engine: LocalEngine
    starting: asyncio.Task[Found]
    loop: asyncio.AbstractEventLoop
    users: int = 0


_engines: dict[Path, _Shared] = {}


class LocalBackend(E2BBackend):
    """One sandbox of the local engine. The contract is in `contract`."""

    _shared: _Shared | None = None

    @property
    def data(self) -> Path:
        return (self.config.data or user_data_folder() / "engine").expanduser().absolute()

    async def _find_options(self) -> dict[str, Any]:
        shared = _engines.get(self.data)
        if shared is None or shared.loop is not asyncio.get_running_loop():
            found = await find_engine(self.data)
            if found is not None:
                return found.sdk_options
            shared = _engines.get(self.data)
        if shared is None or shared.loop.is_closed():
            engine = LocalEngine(data=self.data, port=0)
            shared = _Shared(
                engine, asyncio.create_task(_start(engine)), asyncio.get_running_loop()
            )
            _engines[self.data] = shared
        shared.users += 1
        self._shared = shared
        try:
            return (await asyncio.shield(shared.starting)).sdk_options
        except BaseException:
            await self._release()
            raise

    async def _release(self) -> None:
        shared, self._shared = self._shared, None
        if shared is None:
            return
        shared.users -= 1
        if shared.users == 0:
            if _engines.get(self.data) is shared:
                del _engines[self.data]
            await shared.engine.stop()


async def find_engine(data: Path) -> Found | None:
    """The engine that works over this folder now, or None."""
    try:
        url = (data / "engine.url").read_text().strip()
    except OSError:
        return None
    keys = [os.environ.get("E2B_API_KEY"), _read_key(data)]
    async with httpx.AsyncClient(timeout=FIND_S) as client:
        for key in keys:
            if not key:
                continue
            try:
                answer = await client.get(
                    f"{url}/v2/sandboxes", params={"limit": 1}, headers={"X-API-KEY": key}
                )
            except httpx.HTTPError:
                return None
            if answer.is_success:
                return Found(url, key)
    return None


async def _start(engine: LocalEngine) -> Found:
    """Start it. If another process was faster with the same folder, theirs is as good."""
    try:
        await engine.launch()
        await engine.wait_until_ready()
    except EngineFailedError:
        found = await find_engine(engine.data)
        if found is None:
            raise
        return found
    return Found(engine.url, engine.key)


def _read_key(data: Path) -> str | None:
    try:
        return (data / "engine.key").read_text().strip()
    except OSError:
        return None

"""What tests of the client share.

keeper    a sync client of a keeper in this process, from the pytest plugin that we ship
serving   serves an ASGI application on a real port for the length of a block
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from starlette.types import ASGIApp

from sandkeeper.hosting.asgi_server import bind, serve


@pytest.fixture
def serving() -> Callable[[ASGIApp], AbstractAsyncContextManager[str]]:
    @asynccontextmanager
    async def run(app: ASGIApp) -> AsyncIterator[str]:
        listener = bind("127.0.0.1", 0)
        stop = asyncio.Event()
        task = asyncio.create_task(serve(app, listener, stop=stop))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stop.set()
            await task

    return run

"""An event loop in a thread, so that the async client can be used without one.

`blocking` and `streaming` turn a method of the async client into a method of the sync client with
the same signature, so every method is implemented once.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Portal:
    """Runs coroutines in its own daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="sandkeeper-client", daemon=True
        )
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine and return its result. Cancel it if the caller is interrupted."""
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("This client is closed.")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @contextlib.contextmanager
    def enter(self, context: AbstractAsyncContextManager[R]) -> Iterator[R]:
        """Use an async context manager as a sync one."""
        value = self.call(_enter(context))
        try:
            yield value
        except BaseException as error:
            if not self.call(_leave(context, error)):
                raise
        else:
            self.call(_leave(context, None))

    def close(self) -> None:
        """Stop the loop and its thread. Safe to call twice."""
        if self._loop.is_closed():
            return
        self.call(_cancel_all_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SyncProxy(Protocol):
    """An object of the sync client: the portal, and the async object behind it."""

    _portal: Portal
    _client: Any


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """Return the method as a blocking one."""

    def call(self: SyncProxy, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._portal.call(method(self._client, *args, **kwargs))

    return _named_as(method, call)


def streaming(
    method: Callable[Concatenate[Any, P], AsyncGenerator[R, None]],
) -> Callable[Concatenate[Any, P], Iterator[R]]:
    """Return the async generator as an iterator; leaving the loop closes it."""

    def iterate(self: SyncProxy, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        portal, stream = self._portal, method(self._client, *args, **kwargs)
        try:
            while True:
                try:
                    item = portal.call(_next(stream))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            portal.call(_close(stream))

    return _named_as(method, iterate)


def _named_as(method: Callable[..., object], call: Callable[P, R]) -> Callable[P, R]:
    for name in ("__name__", "__qualname__", "__doc__"):
        setattr(call, name, getattr(method, name))
    return call


async def _next(stream: AsyncGenerator[R, None]) -> R:
    return await anext(stream)


async def _close(stream: AsyncGenerator[Any, None]) -> None:
    await stream.aclose()


async def _enter(context: AbstractAsyncContextManager[R]) -> R:
    return await context.__aenter__()


async def _leave(
    context: AbstractAsyncContextManager[Any], error: BaseException | None
) -> bool | None:
    trace = error.__traceback__ if error is not None else None
    return await context.__aexit__(type(error) if error is not None else None, error, trace)


async def _cancel_all_tasks() -> None:
    """Cancel all other tasks of the loop and wait for them."""
    rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await asyncio.get_running_loop().shutdown_default_executor()

"""The sync client: the async one behind a portal. What its methods do is told there."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from e2b import Sandbox

from sandkeeper.client.files import AsyncFiles
from sandkeeper.client.jobs import AsyncJobs
from sandkeeper.client.keeper import AsyncSandkeeper
from sandkeeper.client.pools import AsyncPools
from sandkeeper.client.portal import Portal, blocking, streaming
from sandkeeper.client.projects import AsyncProject
from sandkeeper.client.sdk_handles import build_sdk_sandbox, find_class
from sandkeeper.client.sessions import AsyncSessions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from sandkeeper.api.schemas.sessions import Leased, SessionAcquired
    from sandkeeper.client.connection import RetryPolicy
    from sandkeeper.client.sessions import SessionOptions
    from sandkeeper.hosting.local_engine import RunningEngine

N = TypeVar("N", bound=Sandbox)


class SyncFiles:
    """The kept files of one sandbox."""

    def __init__(self, portal: Portal, behind: AsyncFiles) -> None:
        self._portal = portal
        self._behind = behind

    list = blocking(AsyncFiles.list)
    read = blocking(AsyncFiles.read)
    write = blocking(AsyncFiles.write)
    delete = blocking(AsyncFiles.delete)
    capture = blocking(AsyncFiles.capture)
    read_archive = streaming(AsyncFiles.read_archive)
    write_archive = blocking(AsyncFiles.write_archive)


class Project:
    """The sandbox of one owner."""

    def __init__(self, portal: Portal, behind: AsyncProject) -> None:
        self._portal = portal
        self._behind = behind
        self.address = behind.address
        self.files = SyncFiles(portal, behind.files)

    create = blocking(AsyncProject.create)
    status = blocking(AsyncProject.status)
    wake = blocking(AsyncProject.wake)
    warm = blocking(AsyncProject.warm)
    waking = streaming(AsyncProject.waking)
    log = blocking(AsyncProject.log)
    pause = blocking(AsyncProject.pause)
    kill = blocking(AsyncProject.kill)
    verify = blocking(AsyncProject.verify)
    extend = blocking(AsyncProject.extend)
    touch = blocking(AsyncProject.touch)
    explain = blocking(AsyncProject.explain)
    history = blocking(AsyncProject.history)
    events = streaming(AsyncProject.events)

    @contextmanager
    def lease(self, *, holder: str = "client") -> Iterator[Sandbox]:
        """Its native E2B sandbox, woken if it sleeps and in use for the length of the block."""
        with self.hold(holder=holder) as leased:
            yield build_sdk_sandbox(Sandbox, leased.connection)

    def hold(self, *, holder: str = "client") -> AbstractContextManager[Leased]:
        """The same without the native object."""
        return self._portal.enter(self._behind.hold(holder=holder))


class SyncSessions:
    """Acquires, holds, hands over and closes."""

    def __init__(self, portal: Portal, behind: AsyncSessions) -> None:
        self._portal = portal
        self._behind = behind

    acquire = blocking(AsyncSessions.acquire)
    touch = blocking(AsyncSessions.touch)
    release = blocking(AsyncSessions.release)
    transfer = blocking(AsyncSessions.transfer)
    close = blocking(AsyncSessions.close)
    show = blocking(AsyncSessions.show)
    start_stream = blocking(AsyncSessions.start_stream)
    show_stream = blocking(AsyncSessions.show_stream)
    stop_stream = blocking(AsyncSessions.stop_stream)
    list = streaming(AsyncSessions.list)
    metrics = blocking(AsyncSessions.metrics)

    def hold(
        self, user_id: str, task_id: str | None = None, **options: Unpack[SessionOptions]
    ) -> AbstractContextManager[SessionAcquired]:
        """A session for the length of a block: meanwhile it is in use, and never idle."""
        return self._portal.enter(self._behind.hold(user_id, task_id, **options))


class SyncJobs:
    """Begins jobs, puts them to sleep and brings them back."""

    def __init__(self, portal: Portal, behind: AsyncJobs) -> None:
        self._portal = portal
        self._behind = behind

    create = blocking(AsyncJobs.create)
    show = blocking(AsyncJobs.show)
    list = streaming(AsyncJobs.list)
    change = blocking(AsyncJobs.change)
    mark_ready = blocking(AsyncJobs.mark_ready)
    snapshot = blocking(AsyncJobs.snapshot)
    resume = blocking(AsyncJobs.resume)
    ask_rebuild = blocking(AsyncJobs.ask_rebuild)
    rebuild = blocking(AsyncJobs.rebuild)


class SyncPools:
    """Lists pools and sets their size."""

    def __init__(self, portal: Portal, behind: AsyncPools) -> None:
        self._portal = portal
        self._behind = behind

    list = blocking(AsyncPools.list)
    set = blocking(AsyncPools.set)


class Sandkeeper:
    """A keeper's API for programs without an event loop. Close it, or use it as a context manager.

    It may be shared by threads.
    """

    def __init__(
        self, url: str | None = None, key: str | None = None, *, patience: RetryPolicy | None = None
    ) -> None:
        self._bridge(Portal(), AsyncSandkeeper(url, key, patience=patience))

    def _bridge(self, portal: Portal, behind: AsyncSandkeeper) -> None:
        self._portal = portal
        self._behind = behind
        self.sessions = SyncSessions(portal, behind.sessions)
        self.jobs = SyncJobs(portal, behind.jobs)
        self.pools = SyncPools(portal, behind.pools)

    @classmethod
    @contextmanager
    def embedded(
        cls, *, engine: bool | RunningEngine | None = None, **settings: object
    ) -> Iterator[Self]:
        """A keeper that runs inside this process, in a thread, while the context is open."""
        with ExitStack() as stack:
            portal = Portal()
            stack.callback(portal.close)
            opening = AsyncSandkeeper.embedded(engine=engine, **settings)
            keeper = cls.__new__(cls)
            keeper._bridge(portal, stack.enter_context(portal.enter(opening)))
            yield keeper

    def project(self, address: str) -> Project:
        """The sandbox of a project. Nothing is asked yet."""
        return Project(self._portal, self._behind.project(address))

    @overload
    def lease(
        self, user_id: str, task_id: str | None = None, **options: Unpack[SessionOptions]
    ) -> AbstractContextManager[Sandbox]: ...
    @overload
    def lease(
        self,
        user_id: str,
        task_id: str | None = None,
        *,
        sandbox_class: type[N],
        **options: Unpack[SessionOptions],
    ) -> AbstractContextManager[N]: ...
    def lease(
        self,
        user_id: str,
        task_id: str | None = None,
        *,
        sandbox_class: type[Any] | None = None,
        **options: Unpack[SessionOptions],
    ) -> AbstractContextManager[Any]:
        """A native E2B sandbox of this conversation, running, healthy and in use.

        It is of the class of `e2b_code_interpreter`, or for a desktop of `e2b_desktop`, where that
        is installed; `sandbox_class` names another.
        """
        return _lease(sandbox_class, self.sessions.hold(user_id, task_id, **options))

    list = streaming(AsyncSandkeeper.list)
    events = streaming(AsyncSandkeeper.events)
    summary = blocking(AsyncSandkeeper.summary)
    health = blocking(AsyncSandkeeper.health)
    readiness = blocking(AsyncSandkeeper.readiness)
    issue_client_token = blocking(AsyncSandkeeper.issue_client_token)
    revoke_client_token = blocking(AsyncSandkeeper.revoke_client_token)

    def close(self) -> None:
        """Give back connections and the thread. No sandbox changes."""
        with contextlib.suppress(RuntimeError):  # Closed before.
            self._portal.call(self._behind.close())
        self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@contextmanager
def _lease(
    sandbox_class: type[Any] | None, holding: AbstractContextManager[SessionAcquired]
) -> Iterator[Any]:
    with holding as acquired:
        yield build_sdk_sandbox(sandbox_class or find_class(acquired.kind), acquired.connection)


def get_sandbox_metrics(url: str | None = None, key: str | None = None) -> dict[str, Any]:
    """The sessions' counts as plain values: `execution`, `desktop` and `totals`."""
    with Sandkeeper(url, key) as keeper:
        return keeper.sessions.metrics().model_dump()

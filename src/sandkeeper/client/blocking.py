"""The sync client: the async client behind a portal, where its methods are documented."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from sandkeeper.client.costs import AsyncCosts, AsyncQuotas
from sandkeeper.client.files import AsyncFiles
from sandkeeper.client.jobs import AsyncJobs
from sandkeeper.client.keeper import AsyncSandkeeper
from sandkeeper.client.pools import AsyncPools
from sandkeeper.client.portal import Portal, blocking, streaming
from sandkeeper.client.projects import AsyncProject
from sandkeeper.client.sdk_handles import build_sdk_sandbox, get_sandbox_class
from sandkeeper.client.sessions import AsyncSessions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from e2b import Sandbox

    from sandkeeper.api.schemas.sessions import Leased, SessionAcquired
    from sandkeeper.client.connection import RetryPolicy
    from sandkeeper.client.sessions import SessionOptions
    from sandkeeper.hosting.local_engine import RunningEngine

N = TypeVar("N", bound="Sandbox")


class SyncFiles:
    """The kept files of one sandbox."""

    def __init__(self, portal: Portal, client: AsyncFiles) -> None:
        self._portal = portal
        self._client = client

    list = blocking(AsyncFiles.list)
    versions = blocking(AsyncFiles.versions)
    diff = blocking(AsyncFiles.diff)
    diff_file = blocking(AsyncFiles.diff_file)
    restore = blocking(AsyncFiles.restore)
    checkpoint = blocking(AsyncFiles.checkpoint)
    delete_checkpoint = blocking(AsyncFiles.delete_checkpoint)
    read = blocking(AsyncFiles.read)
    write = blocking(AsyncFiles.write)
    delete = blocking(AsyncFiles.delete)
    capture = blocking(AsyncFiles.capture)
    read_archive = streaming(AsyncFiles.read_archive)
    write_archive = blocking(AsyncFiles.write_archive)


class Project:
    """The sandbox of one owner."""

    def __init__(self, portal: Portal, client: AsyncProject) -> None:
        self._portal = portal
        self._client = client
        self.address = client.address
        self.files = SyncFiles(portal, client.files)

    create = blocking(AsyncProject.create)
    adopt = blocking(AsyncProject.adopt)
    fork = blocking(AsyncProject.fork)
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
        """Lease the sandbox during the block, as an object of the E2B SDK; wake it if needed."""
        with self.hold(holder=holder) as leased:
            yield build_sdk_sandbox(get_sandbox_class(), leased.connection)

    def hold(self, *, holder: str = "client") -> AbstractContextManager[Leased]:
        """Lease the sandbox during the block; yield the lease, the status and the connection."""
        return self._portal.enter(self._client.hold(holder=holder))


class SyncSessions:
    """Acquires, holds, transfers and closes sessions."""

    def __init__(self, portal: Portal, client: AsyncSessions) -> None:
        self._portal = portal
        self._client = client

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
        """Acquire a session during the block; its lease is renewed, so it is never idle."""
        return self._portal.enter(self._client.hold(user_id, task_id, **options))


class SyncJobs:
    """Creates, pauses and resumes jobs."""

    def __init__(self, portal: Portal, client: AsyncJobs) -> None:
        self._portal = portal
        self._client = client

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

    def __init__(self, portal: Portal, client: AsyncPools) -> None:
        self._portal = portal
        self._client = client

    list = blocking(AsyncPools.list)
    set = blocking(AsyncPools.set)


class SyncCosts:
    """Reports what the fleet costs."""

    def __init__(self, portal: Portal, client: AsyncCosts) -> None:
        self._portal = portal
        self._client = client

    report = blocking(AsyncCosts.report)
    simulate = blocking(AsyncCosts.simulate)
    budgets = blocking(AsyncCosts.budgets)
    set_budget = blocking(AsyncCosts.set_budget)
    remove_budget = blocking(AsyncCosts.remove_budget)


class SyncQuotas:
    """Reads and sets the quotas of tenants."""

    def __init__(self, portal: Portal, client: AsyncQuotas) -> None:
        self._portal = portal
        self._client = client

    capacity = blocking(AsyncQuotas.capacity)
    list = blocking(AsyncQuotas.list)
    set = blocking(AsyncQuotas.set)


class Sandkeeper:
    """A keeper's API for programs without an event loop. Close it, or use it as a context manager.

    Threads may share it.
    """

    def __init__(
        self, url: str | None = None, key: str | None = None, *, retry: RetryPolicy | None = None
    ) -> None:
        self._bridge(Portal(), AsyncSandkeeper(url, key, retry=retry))

    def _bridge(self, portal: Portal, client: AsyncSandkeeper) -> None:
        self._portal = portal
        self._client = client
        self.sessions = SyncSessions(portal, client.sessions)
        self.jobs = SyncJobs(portal, client.jobs)
        self.pools = SyncPools(portal, client.pools)
        self.costs = SyncCosts(portal, client.costs)
        self.quotas = SyncQuotas(portal, client.quotas)

    @classmethod
    @contextmanager
    def embedded(
        cls, *, engine: bool | RunningEngine | None = None, **settings: object
    ) -> Iterator[Self]:
        """Run a keeper in a thread of this process while the context is open."""
        with ExitStack() as stack:
            portal = Portal()
            stack.callback(portal.close)
            opening = AsyncSandkeeper.embedded(engine=engine, **settings)
            keeper = cls.__new__(cls)
            keeper._bridge(portal, stack.enter_context(portal.enter(opening)))
            yield keeper

    def project(self, address: str) -> Project:
        """Return a project's sandbox. Sends no request."""
        return Project(self._portal, self._client.project(address))

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
        """Lease the conversation's sandbox as an object of the E2B SDK, running and healthy.

        It has the class of `e2b_code_interpreter`, or of `e2b_desktop` for a desktop, if that is
        installed; `sandbox_class` chooses another.
        """
        return _lease(sandbox_class, self.sessions.hold(user_id, task_id, **options))

    list = streaming(AsyncSandkeeper.list)
    events = streaming(AsyncSandkeeper.events)
    summary = blocking(AsyncSandkeeper.summary)
    health = blocking(AsyncSandkeeper.health)
    readiness = blocking(AsyncSandkeeper.readiness)
    me = blocking(AsyncSandkeeper.me)
    issue_client_token = blocking(AsyncSandkeeper.issue_client_token)
    revoke_client_token = blocking(AsyncSandkeeper.revoke_client_token)

    def close(self) -> None:
        """Close the connections and the thread. Sandboxes are not affected."""
        with contextlib.suppress(RuntimeError):  # Closed before.
            self._portal.call(self._client.close())
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
        yield build_sdk_sandbox(
            sandbox_class or get_sandbox_class(acquired.kind), acquired.connection
        )


def get_sandbox_metrics(url: str | None = None, key: str | None = None) -> dict[str, Any]:
    """Return the number of sessions as a dict: `execution`, `desktop` and `totals`."""
    with Sandkeeper(url, key) as keeper:
        return keeper.sessions.metrics().model_dump()

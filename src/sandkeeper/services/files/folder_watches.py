"""Watch the work folders of running sandboxes, to capture changes that no act announced.

A watch is one open stream from the sandbox's own agent. It costs no request while nothing changes,
it ends with its connection, so that a crash leaves nothing inside, and it neither wakes nor
prolongs a sandbox. The first change ends it: a capture is due then, which opens the next watch
before it reads the folder, so a program that writes a million files costs one message.

A watch is only a hint. Where none can be opened (a folder with too many folders in it, an old
agent) or one breaks unnoticed, captures follow by their intervals, which are shorter where it is
known that there is none; `explain` says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog
from e2b import AsyncWatchHandle, FilesystemEvent

from sandkeeper.domain.files.ignore_rules import IgnoreRules
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.texts.presentation import format_duration
from sandkeeper.services.deps import Deps
from sandkeeper.services.files.capture import find_root

log = structlog.get_logger(__name__)

WATCHES_MAX: Final = 1000
"""Watches of one replica, each an open connection. A sandbox beyond it is captured by interval."""

OPEN_S: Final = 10.0
"""How long a sandbox may take to begin a watch. Longer delays the capture of one that hangs."""

CLOSE_S: Final = 2.0
"""How long the end of the process waits for the streams to end."""

RENEW_S: Final = 240.0
"""After this time a capture replaces the watch: a connection may break without a sign."""

UNWATCHED_S: Final = 60.0
"""The longest interval between two captures without a watch. Longer loses more at a sudden end;
shorter walks large folders all the time."""

REFUSED_S: Final = 300.0
"""How long not to try again where a watch was refused: the attempt walks the whole folder."""

IGNORED_MAX: Final = 1000
"""Changes of ignored files that one watch listens to. A package manager writes many more: the watch
ends then as if a file had changed, instead of keeping the keeper busy."""


@dataclass(slots=True, eq=False)
class FolderWatch:
    """One watch of one run of an instance; without a handle it was refused, or is being opened."""

    run: tuple[str, datetime | None]
    until: float
    handle: AsyncWatchHandle | None = None
    refusal: str = ""
    ignored: int = 0


class FolderWatches:
    """The watches of this replica: one for each running sandbox whose files are kept."""

    def __init__(self, deps: Deps) -> None:
        self._providers = deps.providers
        self._folder = deps.settings.files_folder
        self._checkpoint_s = deps.settings.files_checkpoint_s
        self._open = deps.metrics.folder_watches
        self._watches: dict[str, FolderWatch] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._on_change: Callable[[str], None] = lambda _sandbox_id: None
        self._on_break: Callable[[str], None] = lambda _sandbox_id: None
        self._rules = IgnoreRules()

    def listen(self, *, on_change: Callable[[str], None], on_break: Callable[[str], None]) -> None:
        """Call `on_change` after a change, and `on_break` when a watch ended by itself."""
        self._on_change, self._on_break = on_change, on_break

    async def ensure(self, sandbox: Sandbox) -> None:
        """Watch a running sandbox from now on; return without a watch where that cannot be."""
        if sandbox.instance_id is None:
            return
        run = (sandbox.instance_id, sandbox.run.run_started_at)
        held = self._watches.get(sandbox.id)
        if held is not None and held.run == run and time.monotonic() < held.until:
            return
        self.end(sandbox.id)
        if len(self._watches) >= WATCHES_MAX:
            return
        watch = self._watches[sandbox.id] = FolderWatch(run, time.monotonic() + REFUSED_S)
        try:
            handle = await self._begin(sandbox, watch)
        except Exception as error:  # noqa: BLE001  Whatever it was, the intervals remain.
            translated = self._providers.get(sandbox).translate(error, instance_id=run[0])
            log.info("folder_not_watched", sandbox_id=sandbox.id, error=str(translated))
            watch.refusal = str(translated)
            return
        if self._watches.get(sandbox.id) is not watch:
            self._stop(handle)
            return
        watch.handle = handle
        watch.until = time.monotonic() + RENEW_S
        self._count()

    def find_longest_s(self, sandbox_id: str) -> float:
        """Return the longest time between two captures: shorter where a watch was refused."""
        watch = self._watches.get(sandbox_id)
        is_refused = watch is not None and watch.refusal
        return min(self._checkpoint_s, UNWATCHED_S) if is_refused else self._checkpoint_s

    def explain(self, sandbox_id: str) -> str | None:
        """Return why a running sandbox is not watched, and what follows; None if it is."""
        watch = self._watches.get(sandbox_id)
        reason = watch.refusal if watch is not None else ""
        if watch is None and len(self._watches) >= WATCHES_MAX:
            reason = f"this process watches {WATCHES_MAX} others"
        if not reason:
            return None
        return (
            f"not watched for changes ({reason.rstrip('.')}); they are saved after each activity, "
            f"and otherwise about every {format_duration(self.find_longest_s(sandbox_id))}"
        )

    def end(self, sandbox_id: str) -> None:
        """Stop watching a sandbox; one that is not watched is left as it is."""
        watch = self._watches.pop(sandbox_id, None)
        if watch is not None and watch.handle is not None:
            self._stop(watch.handle)
        self._count()

    async def close(self) -> None:
        """Stop every watch; a connection that hangs is left to the end of the process."""
        for sandbox_id in list(self._watches):
            self.end(sandbox_id)
        if self._ending:
            await asyncio.wait(self._ending, timeout=CLOSE_S)

    async def _begin(self, sandbox: Sandbox, watch: FolderWatch) -> AsyncWatchHandle:
        provider = self._providers.get(sandbox)
        native = await provider.open_sdk_sandbox(watch.run[0])
        began = time.monotonic()
        try:
            return await native.files.watch_dir(
                find_root(sandbox, self._folder),
                on_event=lambda event: self._hear(sandbox.id, watch, event),
                on_exit=lambda _error: self._notice_end(sandbox.id, watch),
                request_timeout=OPEN_S,
                timeout=0,
                recursive=True,
            )
        finally:
            provider.record_sdk_call("watch", time.monotonic() - began)

    def _hear(self, sandbox_id: str, watch: FolderWatch, event: FilesystemEvent) -> None:
        if self._watches.get(sandbox_id) is not watch:
            return
        if self._rules.ignores_deeply(event.name):
            watch.ignored += 1
            if watch.ignored < IGNORED_MAX:
                return
        self.end(sandbox_id)
        self._on_change(sandbox_id)

    def _notice_end(self, sandbox_id: str, watch: FolderWatch) -> None:
        """Forget a watch that its sandbox ended; one that we ended is forgotten already."""
        if self._watches.get(sandbox_id) is watch:
            del self._watches[sandbox_id]
            self._count()
            self._on_break(sandbox_id)

    def _stop(self, handle: AsyncWatchHandle) -> None:
        """End a stream in a task of its own: it may be the stream itself that asks for it."""
        task: asyncio.Task[None] = asyncio.create_task(
            handle.stop()  # type: ignore[no-untyped-call]  # The SDK does not say what it returns.
        )
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _count(self) -> None:
        self._open.set(sum(watch.handle is not None for watch in self._watches.values()))

"""The sandboxes of one engine in memory, and what is being done to each of them right now.

The database holds the same records; transitions exist only here and end with the engine.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from sandkeeper.engine.errors import ResourceNotFoundError
from sandkeeper.engine.runtime.contract import Usage
from sandkeeper.engine.sandboxes.model import to_running_sandbox
from sandkeeper.engine.sandboxes.records import EngineState, SandboxRecord
from sandkeeper.engine.sandboxes.routing import RunningSandbox

EVICTION_POLL_S = 1.0  # How long a jump of the machine's clock can go unnoticed.
_METRICS_KEPT = 720  # An hour of samples; more would cost memory for every idle sandbox.


class UsageSamples:
    """The last samples of what a sandbox used. An idle one, the same again and again, costs little.

    Of an hour's samples, 2000 sandboxes would otherwise hold half a gigabyte.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Usage]] = deque(maxlen=_METRICS_KEPT)

    def add(self, at: float, usage: Usage) -> None:
        last = self.last
        self._samples.append((at, last[1] if last and last[1] == usage else usage))

    @property
    def last(self) -> tuple[float, Usage] | None:
        return self._samples[-1] if self._samples else None

    def list(self) -> list[tuple[float, Usage]]:
        return list(self._samples)


class Transition(StrEnum):
    """A change in progress. At most one per sandbox, held together with its lock."""

    STARTING = "starting"
    RESUMING = "resuming"
    UPDATING = "updating"
    SNAPSHOTTING = "snapshotting"
    PAUSING = "pausing"
    KILLING = "killing"


_HIDDEN = frozenset({Transition.STARTING, Transition.KILLING})
_NO_TRAFFIC = _HIDDEN | {Transition.PAUSING}


@dataclass(slots=True)
class SandboxEntry:
    """A sandbox in memory: its record, its lock, and the transition in progress."""

    record: SandboxRecord
    transition: Transition | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    metrics: UsageSamples = field(default_factory=UsageSamples)
    revivals: list[float] = field(default_factory=list)
    hibernated: str = ""
    """The run, by its execution id, after which the memory was moved to swap."""

    @property
    def is_hidden(self) -> bool:
        """Return whether it is being created or killed; API callers do not see it then."""
        return self.transition in _HIDDEN

    @property
    def is_running(self) -> bool:
        """Return whether it runs and is visible; a pause may be in progress."""
        return self.record.state == EngineState.RUNNING and not self.is_hidden

    @property
    def takes_traffic(self) -> bool:
        """Return whether it runs and nothing in progress would stop it."""
        return self.record.state == EngineState.RUNNING and self.transition not in _NO_TRAFFIC


class SandboxRegistry:
    """The entries by sandbox id, shared by lifecycle, operations and request tracking."""

    def __init__(self) -> None:
        self._entries: dict[str, SandboxEntry] = {}
        self._by_token: dict[bytes, str] = {}
        self.changed = asyncio.Event()
        """Set when a run may end before the eviction loop looks again; that loop waits for it."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, sandbox_id: str) -> bool:
        return sandbox_id in self._entries

    def add(self, record: SandboxRecord, transition: Transition | None = None) -> SandboxEntry:
        """Add a sandbox and return its entry."""
        entry = self._entries[record.id] = SandboxEntry(record, transition)
        if record.token:
            self._by_token[_digest(record.token.encode())] = record.id
        return entry

    def remove(self, sandbox_id: str) -> None:
        """Remove a sandbox; no-op if it is not there."""
        entry = self._entries.pop(sandbox_id, None)
        if entry is not None:
            self._by_token.pop(_digest(entry.record.token.encode()), None)

    def find_by_token(self, token: bytes) -> str | None:
        """Return the id of the sandbox that has this access token."""
        return self._by_token.get(_digest(token))

    def note_end(self, end_at: float) -> None:
        """Wake the eviction loop if a run ends before it looks at every sandbox again anyway."""
        if end_at <= time.time() + EVICTION_POLL_S:
            self.changed.set()

    def list_entries(self) -> list[tuple[str, SandboxEntry]]:
        """Return every id with its entry, hidden ones included, as a copy."""
        return list(self._entries.items())

    def find_entry(self, sandbox_id: str) -> SandboxEntry | None:
        """Return the entry, hidden or not."""
        return self._entries.get(sandbox_id)

    def get_visible(self, sandbox_id: str) -> SandboxEntry:
        """Return the entry; ResourceNotFoundError if there is none or it is hidden."""
        entry = self._entries.get(sandbox_id)
        if entry is None or entry.is_hidden:
            raise ResourceNotFoundError.of_sandbox(sandbox_id)
        return entry

    def find(self, sandbox_id: str) -> RunningSandbox | None:
        """Return the sandbox if it runs now. Never resumes it."""
        entry = self._entries.get(sandbox_id)
        if entry is None or not entry.is_running:
            return None
        return to_running_sandbox(entry.record)

    def running(self) -> list[RunningSandbox]:
        """Return every running sandbox."""
        return [to_running_sandbox(one.record) for one in self._entries.values() if one.is_running]


def _digest(token: bytes) -> bytes:
    """Return what a token is found by: the time of a look-up tells nothing about the token."""
    return hashlib.sha256(token).digest()

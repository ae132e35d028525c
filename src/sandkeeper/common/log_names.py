"""Who each sandbox and each session is for, so that every log line about one can say it.

The store notes every record that it reads or writes. A line that names a sandbox, an instance or a
session gets the owner and the session's key from here, whichever part of the keeper writes it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import MutableMapping
from typing import Any, Final, TypeVar

# Names kept of each kind, about 20 MB in all. Beyond it those noted first are forgotten, and their
# lines name only the sandbox.
NAMES_MAX: Final = 50_000

Name = TypeVar("Name")


class LogNames:
    """The names of what this process knows."""

    def __init__(self, names_max: int = NAMES_MAX) -> None:
        self._names_max = names_max
        self._owners: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._sandboxes: OrderedDict[str, str] = OrderedDict()
        self._keys: OrderedDict[str, str] = OrderedDict()

    def note_sandbox(
        self, sandbox_id: str, *, kind: str, owner_id: str, instance_id: str | None
    ) -> None:
        """Remember whose sandbox this is, and which instance it has."""
        self._note(self._owners, sandbox_id, (kind, owner_id))
        if instance_id is not None:
            self._note(self._sandboxes, instance_id, sandbox_id)

    def note_session(self, session_id: str, *, key: str) -> None:
        """Remember the key of a session."""
        self._note(self._keys, session_id, key)

    def add(self, line: MutableMapping[str, Any]) -> None:
        """Add what is known of the sandbox or the session that a line names."""
        sandbox_id = line.get("sandbox_id") or self._sandboxes.get(str(line.get("instance_id")))
        owner = self._owners.get(str(sandbox_id))
        if owner is not None:
            line.setdefault("sandbox_id", sandbox_id)
            line.setdefault(*owner)
        key = self._keys.get(str(line.get("session_id") or line.get("session")))
        if key is not None:
            line.setdefault("session_key", key)

    def _note(self, names: OrderedDict[str, Name], key: str, name: Name) -> None:
        names[key] = name
        if len(names) > self._names_max:
            names.popitem(last=False)


LOG_NAMES: Final = LogNames()
"""The names of this process."""

"""What this replica knows of the others: who is alive, and which of our rounds each has seen.

Replicas send each other notices (NOTIFY on PostgreSQL; none on SQLite). A notice names its sender
and the sender's round. One that `asks` is answered: the next notice of each replica that had a
round since says up to which round of the asker it has seen everything.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

# A replica that sent nothing for this long is not waited for. Higher delays callers after a crash;
# lower forgets a replica that is only slow.
ALIVE_S: Final = 6.0


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice on the wire."""

    sender: str
    round: int
    asks: bool = False
    seen: Mapping[str, int] = field(default_factory=dict)

    def render(self) -> str:
        return orjson.dumps(
            {"from": self.sender, "round": self.round, "asks": self.asks, "seen": dict(self.seen)}
        ).decode()

    @classmethod
    def parse(cls, payload: str) -> Notice | None:
        """Return the notice; None for one of another version of this program."""
        try:
            data = orjson.loads(payload)
            return cls(str(data["from"]), int(data["round"]), bool(data["asks"]), data["seen"])
        except (ValueError, KeyError, TypeError):
            return None


class Peers:
    """The other replicas, as far as their notices tell."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._heard_at: dict[str, float] = {}
        self._unanswered: dict[str, int] = {}
        self._seen_by: dict[str, int] = {}

    def receive(self, payload: str) -> bool:
        """Record a notice; return True when it is another replica's."""
        notice = Notice.parse(payload)
        if notice is None:
            return True
        if notice.sender == self.name:
            return False
        self._heard_at[notice.sender] = time.monotonic()
        if notice.asks:
            self._unanswered[notice.sender] = notice.round
        mine = notice.seen.get(self.name)
        if mine is not None:
            self._seen_by[notice.sender] = max(mine, self._seen_by.get(notice.sender, 0))
        return True

    def pop_unanswered(self) -> dict[str, int]:
        """Return the rounds of others that the round beginning now will have seen."""
        taken, self._unanswered = self._unanswered, {}
        return taken

    def list_behind(self, round_number: int) -> list[str]:
        """Return the replicas that are alive and have not said that they saw our round."""
        now = time.monotonic()
        for name in [one for one, at in self._heard_at.items() if now - at > ALIVE_S]:
            del self._heard_at[name]
            self._seen_by.pop(name, None)
        return [name for name in self._heard_at if self._seen_by.get(name, 0) < round_number]

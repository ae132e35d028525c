"""A lease: somebody works with a sandbox, and while they say so it is not idle."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Lease:
    """Holds until `until` and no longer, so that a dead holder's ends by itself."""

    id: str
    sandbox_id: str
    holder: str
    taken_at: datetime
    until: datetime
    session_id: str | None = None

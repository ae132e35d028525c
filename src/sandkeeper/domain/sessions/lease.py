"""A lease: its holder works with a sandbox, so the sandbox is not idle while the lease lasts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that ends at `until` unless renewed, so that a dead holder's lease ends by itself."""

    id: str
    sandbox_id: str
    holder: str
    taken_at: datetime
    until: datetime
    session_id: str | None = None

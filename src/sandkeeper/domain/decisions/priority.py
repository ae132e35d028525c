"""How urgent a request is when not all sandboxes can run at once, and what happens to it then."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from sandkeeper.domain.owner import OwnerKind


class Overflow(StrEnum):
    """What happens to a request when no slot is free."""

    EVICT = "evict"
    """Make room by pausing what is needed least, and wait for it."""
    WAIT = "wait"
    """Wait in line."""
    REJECT = "reject"
    """Refuse at once."""


class Priority(StrEnum):
    """Who waits for a slot, the most urgent first."""

    PERSON = "person"
    SESSION = "session"
    JOB = "job"
    POOL = "pool"
    WARM_UP = "warm_up"


PRIORITY_OF_OWNER: Final = {
    OwnerKind.PROJECT: Priority.PERSON,
    OwnerKind.SESSION: Priority.SESSION,
    OwnerKind.JOB: Priority.JOB,
    OwnerKind.POOL: Priority.POOL,
}
"""The priority of a request that names none."""

NEVER_WAITS: Final = frozenset({Priority.POOL, Priority.WARM_UP})
"""What no caller waits for yet: it is left out if no slot is free, unless the request says else."""

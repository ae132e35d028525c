"""What one run does and what goes wrong in it: all of it follows from the seed alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from faultlab.clocks import MACHINE_OFFSETS_S, PROVIDER_OFFSETS_S

OWNERS: Final = 4
REPLICAS_MAX: Final = 3
WRONG_FROM_START: Final = 0.25


class Kind(StrEnum):
    """One kind of fault."""

    # In the way from keeper to provider, for a while.
    LOST_REPLIES = "lost replies"
    DELAYS = "delays"
    RATE_LIMIT = "rate limit"
    SERVER_ERRORS = "server errors"
    WRONG_404 = "wrong 404"
    GARBAGE = "garbage"
    HALF_BODIES = "half bodies"
    HUNG = "hung"
    DOWN = "down"
    # To a process.
    KILL_REPLICA = "kill replica"
    FREEZE_REPLICA = "freeze replica"
    KILL_ENGINE = "kill engine"
    FREEZE_ENGINE = "freeze engine"
    KILL_DATABASE = "kill database"
    FREEZE_DATABASE = "freeze database"
    # To its surroundings.
    FULL_DISK = "full disk"
    RESTORE_BACKUP = "restore backup"
    # To a clock: it jumps, and later jumps back.
    REPLICA_CLOCK = "replica clock"
    PROVIDER_CLOCK = "provider clock"
    DATABASE_CLOCK = "database clock"
    # To the webhooks.
    WEBHOOKS_LOST = "webhooks lost"
    WEBHOOKS_DOUBLED = "webhooks doubled"
    WEBHOOKS_DELAYED = "webhooks delayed"
    WEBHOOKS_REORDERED = "webhooks reordered"
    CONTRADICTION = "contradiction"
    # To an instance, behind the keeper's back.
    INSTANCE_KILLED = "instance killed"


PROXY_KINDS: Final = frozenset(
    {
        Kind.LOST_REPLIES,
        Kind.DELAYS,
        Kind.RATE_LIMIT,
        Kind.SERVER_ERRORS,
        Kind.WRONG_404,
        Kind.GARBAGE,
        Kind.HALF_BODIES,
        Kind.HUNG,
        Kind.DOWN,
    }
)
WEBHOOK_KINDS: Final = frozenset(
    {
        Kind.WEBHOOKS_LOST,
        Kind.WEBHOOKS_DOUBLED,
        Kind.WEBHOOKS_DELAYED,
        Kind.WEBHOOKS_REORDERED,
    }
)
CLOCK_KINDS: Final = (Kind.REPLICA_CLOCK, Kind.PROVIDER_CLOCK)
OWN_DRAW: Final = frozenset({*CLOCK_KINDS, Kind.DATABASE_CLOCK})
"""What is drawn apart from the others."""
RARE: Final = (Kind.RESTORE_BACKUP, Kind.FULL_DISK, Kind.KILL_DATABASE, Kind.FREEZE_DATABASE)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault from `at_s` on. `number` chooses its victim, `value` is what its kind makes of it."""

    at_s: float
    kind: Kind
    lasts_s: float
    number: int
    value: int

    def __str__(self) -> str:
        return f"{self.kind.value} {self.number} for {self.lasts_s:.1f} s (value {self.value})"


class Verb(StrEnum):
    """What a user does."""

    CREATE = "create"
    EDIT = "edit"
    CAPTURE = "capture"
    WAKE = "wake"
    PAUSE = "pause"
    KILL = "kill"
    LEASE = "lease"
    TOUCH = "touch"
    VERIFY = "verify"


WEIGHTS: Final = {
    Verb.CREATE: 2,
    Verb.EDIT: 6,
    Verb.CAPTURE: 3,
    Verb.WAKE: 4,
    Verb.PAUSE: 2,
    Verb.KILL: 1,
    Verb.LEASE: 3,
    Verb.TOUCH: 2,
    Verb.VERIFY: 1,
}


@dataclass(frozen=True, slots=True)
class Act:
    """What a user does at `at_s`, at the replica of this number."""

    at_s: float
    owner: str
    verb: Verb
    replica: int
    content: int

    def __str__(self) -> str:
        return f"{self.verb.value} {self.owner} at replica {self.replica}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The faults and the acts of one run, each in the order of time."""

    seed: int
    seconds: float
    faults: Sequence[Fault]
    acts: Sequence[Act]
    replicas_ahead_s: Sequence[int]
    """How far the clock of each replica's machine is ahead from the start."""
    provider_ahead_s: int


def make_schedule(seed: int, seconds: float) -> Schedule:
    """Return the schedule of a seed. A longer run begins as a shorter one of the same seed."""
    clocks = random.Random(f"clocks {seed}")
    return Schedule(
        seed,
        seconds,
        tuple(
            sorted(
                [
                    *_draw_faults(random.Random(f"faults {seed}"), seconds),
                    *_draw_jumps(random.Random(f"jumps {seed}"), seconds, CLOCK_KINDS, 9.0),
                    *_draw_jumps(
                        random.Random(f"database {seed}"), seconds, (Kind.DATABASE_CLOCK,), 30.0
                    ),
                ],
                key=lambda fault: fault.at_s,
            )
        ),
        tuple(_draw_acts(random.Random(f"acts {seed}"), seconds)),
        tuple(_draw_ahead(clocks, MACHINE_OFFSETS_S) for _ in range(REPLICAS_MAX)),
        _draw_ahead(clocks, PROVIDER_OFFSETS_S),
    )


def _draw_ahead(drawn: random.Random, offsets_s: Sequence[int]) -> int:
    """Return how far a clock is ahead from the start: most are right."""
    return drawn.choice(offsets_s) if drawn.random() < WRONG_FROM_START else 0


def _draw_faults(drawn: random.Random, seconds: float) -> list[Fault]:
    faults = []
    at_s = 0.0
    common = [kind for kind in Kind if kind not in RARE and kind not in OWN_DRAW]
    while True:
        at_s += drawn.uniform(0.4, 3.0)
        kind = drawn.choice(RARE) if drawn.random() < 0.12 else drawn.choice(common)
        fault = Fault(
            at_s, kind, drawn.uniform(0.3, 4.0), drawn.randrange(12), drawn.randrange(1000)
        )
        if at_s >= seconds:
            return faults
        faults.append(fault)


def _draw_jumps(
    drawn: random.Random, seconds: float, kinds: Sequence[Kind], apart_s: float
) -> list[Fault]:
    """Return the jumps of clocks, which last longer than other faults."""
    jumps: list[Fault] = []
    at_s = 0.0
    while True:
        at_s += drawn.uniform(2.0, apart_s)
        kind = drawn.choice(kinds)
        jump = Fault(
            at_s, kind, drawn.uniform(2.0, 12.0), drawn.randrange(12), drawn.randrange(1000)
        )
        if at_s >= seconds:
            return jumps
        jumps.append(jump)


def _draw_acts(drawn: random.Random, seconds: float) -> list[Act]:
    acts: list[Act] = []
    verbs, weights = list(WEIGHTS), list(WEIGHTS.values())
    at_s = 0.0
    while True:
        at_s += drawn.uniform(0.05, 0.5)
        owner = f"p{drawn.randrange(OWNERS)}"
        verb = drawn.choices(verbs, weights)[0]
        act = Act(at_s, owner, verb, drawn.randrange(12), drawn.randrange(10**9))
        if at_s >= seconds:
            return acts
        acts.append(act)

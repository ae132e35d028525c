"""Learn how long a sandbox may be idle from its own gaps, and measure what the pauses were worth.

A *gap* is the time from the last act to the intent that ended it: how long the sandbox had been
idle when its user came back. If a policy allows it, the idle timeout follows from the last gaps,
within the policy's bounds. Gaps below ``GAP_MIN_S`` are one stretch of work and are not stored.
Gaps above the upper bound are stored and show that the user had left: no allowed timeout waits for
them.

A pause was *too early* when the sandbox was woken within ``EARLY_S``. Its cost is the *idle tail*:
the time that the sandbox ran between the last act and the pause.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sandkeeper.domain.sandbox import Sandbox

GAP_MIN_S: Final = 5
"""The shortest gap that is stored. Shorter gaps are typing, not thinking; with them, the last gaps
would span half a minute.
"""

GAPS_MAX: Final = 64
"""How many gaps to learn from. Higher forgets an old habit late; lower follows every exception."""

GAPS_TEXT_MAX: Final = 320
"""Characters that are stored: the last gaps in seconds, newest first, each followed by a comma."""

GAPS_NEEDED: Final = 8
"""With fewer gaps, the policy's own timeout applies."""

SHARE: Final = 0.95
"""The share of the gaps during which a sandbox should stay awake."""

MARGIN: Final = 1.25
"""The margin above the learned gaps. A sandbox that ends when idle never sees a gap longer than its
timeout, so without a margin its timeout could only shrink.
"""

EARLY_S: Final = 60.0
"""A user who wakes a sandbox sooner than this after its pause had not left."""


@dataclass(frozen=True, slots=True)
class IdleTimeout:
    """The idle timeout in force, and its origin in one sentence."""

    seconds: float | None
    why: str


@dataclass(frozen=True, slots=True)
class UsageHistory:
    """The gaps of one user and the time of their last activity: where the next sandbox starts."""

    key: str
    gaps: str
    last_active_at: datetime


def add_gap(gaps: str, gap_s: float) -> str:
    """Return the stored gaps with one more; the store does the same in one statement."""
    return gaps if gap_s < GAP_MIN_S else f"{int(gap_s)},{gaps}"[:GAPS_TEXT_MAX]


def read_gaps(gaps: str) -> tuple[int, ...]:
    """Return the stored gaps in seconds, newest first. The last may be cut off: it has no comma."""
    return tuple(int(gap) for gap in gaps.split(",")[:-1][:GAPS_MAX])


def compute_idle_timeout_s(sandbox: Sandbox) -> float | None:
    """Return the idle timeout in force: the policy's own, or the learned one."""
    policy = sandbox.policy
    if policy.idle_timeout_s is None or not policy.is_adaptive:
        return policy.idle_timeout_s
    return _learn(sandbox)[0]


def explain_idle_timeout(sandbox: Sandbox) -> IdleTimeout:
    """Return the idle timeout in force and, for people, where it comes from."""
    policy = sandbox.policy
    fixed_s = policy.idle_timeout_s
    if fixed_s is None:
        return IdleTimeout(None, "never: its policy sets no idle timeout")
    if not policy.is_adaptive:
        return IdleTimeout(fixed_s, f"{format_duration(fixed_s)}, fixed by its policy")
    learned_s, within, known = _learn(sandbox)
    longest = format_duration(policy.idle_max_s or fixed_s)
    if known < GAPS_NEEDED:
        needed = f"{known} of the {GAPS_NEEDED} gaps that learning needs are known"
        return IdleTimeout(learned_s, f"{format_duration(learned_s)} by its policy: {needed}")
    said = f"learned {format_duration(learned_s)}: "
    if not within:
        return IdleTimeout(learned_s, said + f"each of the last {known} gaps was over {longest}")
    share = 100 * sum(gap <= learned_s for gap in within) // len(within)
    count = f"{share} % of the {len(within)} gaps"
    absent = f", {known - len(within)} were over {longest}" if known > len(within) else ""
    return IdleTimeout(learned_s, f"{said}{count} were shorter{absent}")


def is_too_early(paused_at: datetime | None, woken_at: datetime) -> bool:
    """Return True if an idle sandbox was wanted again at once; None if no idle one was paused."""
    return paused_at is not None and (woken_at - paused_at).total_seconds() < EARLY_S


def _learn(sandbox: Sandbox) -> tuple[float, tuple[int, ...], int]:
    """Return the timeout, the gaps an allowed timeout can wait for, and the count of all gaps."""
    policy = sandbox.policy
    shortest_s = policy.idle_min_s or 0.0
    longest_s = policy.idle_max_s or math.inf
    gaps = read_gaps(sandbox.activity.gaps)
    within = tuple(sorted(gap for gap in gaps if gap <= longest_s))
    wanted_s: float = shortest_s
    if len(gaps) < GAPS_NEEDED:
        wanted_s = policy.idle_timeout_s or 0.0
    elif within:
        wanted_s = math.ceil(within[math.ceil(SHARE * len(within)) - 1] * MARGIN)
    return min(max(wanted_s, shortest_s), longest_s), within, len(gaps)


def format_duration(span_s: float) -> str:
    """Format a duration compactly: ``4 min 10 s``, ``1 h``, ``45 s``."""
    seconds = round(span_s)
    if span_s < 1:
        return f"{span_s:g} s"
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    parts = ((hours, "h"), (minutes, "min"), (seconds, "s"))
    return " ".join(f"{count} {unit}" for count, unit in parts if count)

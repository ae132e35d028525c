"""The rule of `domain.decisions.adaptive_timeout.add_gap` as one SQL expression."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Text, case, cast, func, literal, type_coerce

from sandkeeper.domain.decisions.adaptive_timeout import GAP_MIN_S, GAPS_TEXT_MAX
from sandkeeper.store.tables.sandboxes import SANDBOXES

_S = SANDBOXES.c


def build_gaps(now_ms: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the gaps of a row with the one that an act at `now_ms` ends."""
    gap_s = (now_ms - type_coerce(_S.last_active_at, BigInteger)) // literal(1000, BigInteger)
    added = func.substr(cast(gap_s, Text) + "," + _S.gaps, 1, GAPS_TEXT_MAX)
    return case((gap_s >= GAP_MIN_S, added), else_=_S.gaps)

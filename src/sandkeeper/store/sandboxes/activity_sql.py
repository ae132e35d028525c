"""The statement that writes activity: constant text with one JSON value, whatever the batch size.

It runs each second with up to a thousand sandboxes. Binding them one by one would make the driver
compile a new statement each time, on the event loop, while status reads wait.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import orjson
from sqlalchemy import BigInteger, TextClause, literal_column, text

from sandkeeper.domain.activity import ActivityClass, Touch
from sandkeeper.store.sandboxes.gaps_sql import build_gaps
from sandkeeper.store.types import to_epoch_ms

_COLUMNS: Final = {
    "id": "text",
    "active_at": "bigint",
    "active_class": "text",
    "active_source": "text",
    "passive_at": "bigint",
    "passive_source": "text",
    "passive_count": "bigint",
}

_ACTIVE: Final = (
    "given.active_at IS NOT NULL AND"
    " (sandboxes.last_active_at IS NULL OR sandboxes.last_active_at < given.active_at)"
)
_PASSIVE: Final = (
    "given.passive_at IS NOT NULL AND"
    " (sandboxes.passive_at IS NULL OR sandboxes.passive_at < given.passive_at)"
)
_MOVES: Final = (
    ("last_active_at", "active_at", _ACTIVE),
    ("last_active_class", "active_class", _ACTIVE),
    ("last_active_source", "active_source", _ACTIVE),
    ("passive_at", "passive_at", _PASSIVE),
    ("passive_source", "passive_source", _PASSIVE),
)


@functools.cache
def render_activity_update(*, is_sqlite: bool) -> TextClause:
    """Return one UPDATE that only moves columns forward and returns the ids it found."""
    if is_sqlite:
        parts = (f"json_extract(value, '$.{name}') AS {name}" for name in _COLUMNS)
        given = f"(SELECT {', '.join(parts)} FROM json_each(:given)) AS given"  # noqa: S608  # Our own names.
    else:
        parts = (f"{name} {kind}" for name, kind in _COLUMNS.items())
        given = f"json_to_recordset(CAST(:given AS json)) AS given({', '.join(parts)})"
    moves = [
        f"{column} = CASE WHEN {newer} THEN given.{new} ELSE sandboxes.{column} END"
        for column, new, newer in _MOVES
    ]
    gaps = _render_gaps()
    intent = f"given.active_class = '{ActivityClass.INTENT.value}'"
    moves.append(f"gaps = CASE WHEN {intent} THEN {gaps} ELSE sandboxes.gaps END")
    moves.append("passive_count = sandboxes.passive_count + given.passive_count")
    return text(
        f"UPDATE sandboxes SET {', '.join(moves)} FROM {given}"  # noqa: S608  # Our own names.
        " WHERE sandboxes.id = given.id RETURNING sandboxes.id"
    )


def _render_gaps() -> str:
    """Return the gap rule as text; both databases understand the default dialect here."""
    expression = build_gaps(literal_column("given.active_at", BigInteger))
    return str(expression.compile(compile_kwargs={"literal_binds": True}))


def render_activity_rows(touches: Sequence[Touch]) -> str:
    """Return the batch as JSON."""
    return orjson.dumps([_row(touch) for touch in touches]).decode()


def _row(touch: Touch) -> dict[str, Any]:
    active, passive = touch.active, touch.passive
    return {
        "id": touch.sandbox_id,
        "active_at": to_epoch_ms(active.at) if active else None,
        "active_class": active.kind.value if active else None,
        "active_source": active.source if active else None,
        "passive_at": to_epoch_ms(passive.at) if passive else None,
        "passive_source": passive.source if passive else None,
        "passive_count": passive.count if passive else 0,
    }

"""Instants in the database are whole milliseconds since 1970, on both databases alike."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import BigInteger
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def to_epoch_ms(at: datetime) -> int:
    """Whole milliseconds since 1970; a naive datetime is a mistake of the caller."""
    if at.tzinfo is None:
        raise ValueError("A naive datetime has no place in the store.")
    return (at - _EPOCH) // _MS


class UtcMillis(TypeDecorator[datetime]):
    """An aware UTC datetime, kept as an integer: SQLite would give a naive one back."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:  # noqa: ARG002  # SQLAlchemy's signature.
        """Cuts to the millisecond."""
        return None if value is None else to_epoch_ms(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002  # SQLAlchemy's signature.
        """Gives aware UTC back."""
        return None if value is None else _EPOCH + value * _MS

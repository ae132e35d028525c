"""Instants in the database are whole milliseconds since 1970, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import BigInteger
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def to_epoch_ms(at: datetime) -> int:
    """Return whole milliseconds since 1970; a naive datetime is an error of the caller."""
    if at.tzinfo is None:
        raise ValueError("A naive datetime has no place in the store.")
    return (at - _EPOCH) // _MS


class UtcMillis(TypeDecorator[datetime]):
    """An aware UTC datetime, stored as an integer: SQLite would return a naive one."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:  # noqa: ARG002  # SQLAlchemy's signature.
        """Truncate to the millisecond."""
        return None if value is None else to_epoch_ms(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002  # SQLAlchemy's signature.
        """Return aware UTC."""
        return None if value is None else _EPOCH + value * _MS

"""Errors of the database as our own: it is away, stands still, or its disk is full."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import asyncpg  # type: ignore[import-untyped]  # It ships no types.
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from sandkeeper.domain.errors import StoreUnavailableError

DISK_FULL: Final = "The disk of the database is full."
STALLED: Final = "The database is stalled: it does not answer in time."

_LOST: Final = (
    OperationalError,
    InterfaceError,
    PoolTimeoutError,
    sqlite3.OperationalError,
    asyncpg.InterfaceError,
    # The server has ended the connection, and the driver has not read all of that yet.
    asyncpg.InternalClientError,
    OSError,
)
READ_ONLY: Final = "25006"
"""PostgreSQL's code for a write on a standby: the primary is another server now."""
_UNAVAILABLE: Final = (READ_ONLY, "08", "53", "57", "58", "40", "25P", "55P03")
"""PostgreSQL's codes, by their beginning: no connection, no resources, an operator or a limit ended
it, the system failed, another transaction won, it was idle for too long, a row is locked, the
server is a standby now.
"""


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turn a lost database or transaction into StoreUnavailableError; pass constraint errors on."""
    try:
        yield
    except IntegrityError:
        raise
    except (*_LOST, DBAPIError, asyncpg.PostgresError) as error:
        if not _is_unavailable(error):
            raise
        raise StoreUnavailableError(_explain(error), detail=type(error).__name__) from error


def _is_unavailable(error: BaseException) -> bool:
    if isinstance(error, _LOST):
        return True
    is_lost = isinstance(error, DBAPIError) and error.connection_invalidated
    return is_lost or _find_code(error).startswith(_UNAVAILABLE)


def _explain(error: BaseException) -> str | None:
    """Return the message; None for the one that the error has by default."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    if _find_code(error) == "53100" or "disk is full" in str(cause):
        return DISK_FULL
    if isinstance(cause, TimeoutError | PoolTimeoutError) or _find_code(error) in _LIMITS:
        return STALLED
    return None


_LIMITS: Final = ("57014", "55P03", "25P03")


def _find_code(error: BaseException) -> str:
    """Return PostgreSQL's code of the error, or nothing."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return str(getattr(cause, "sqlstate", None) or "")

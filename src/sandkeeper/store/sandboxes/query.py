"""The query for a list of sandboxes, and its pages.

Paging is by key and not by offset: a page stays correct while rows change, and the last page costs
as much as the first.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import orjson
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    and_,
    case,
    false,
    literal,
    or_,
    select,
    tuple_,
    type_coerce,
)

from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.store.sandboxes.conditions import is_due
from sandkeeper.store.tables.sandboxes import SANDBOX_CHANGES, SANDBOXES

LIMIT_MAX: Final = 1000
KEY: Final = "sort_key_"


class Sort(StrEnum):
    """The sort orders of a list."""

    CREATED = "created"
    UPDATED = "updated"
    ACTIVE = "active"
    STATE = "state"
    OWNER = "owner"
    CHECK = "check"


_T = SANDBOXES.c
_CHANGES = SANDBOX_CHANGES.c


@dataclass(frozen=True, slots=True)
class Order:
    """The columns that a list is sorted by; together they name one row.

    Instants are compared as their stored numbers. If the first one can miss, rows without it come
    last, in the order of the others.
    """

    columns: tuple[ColumnElement[Any], ...]
    can_miss: bool = False

    def accepts(self, key: object) -> bool:
        """Return whether these can be values of the columns."""
        if not isinstance(key, list) or len(key) != len(self.columns):
            return False
        if self.can_miss and key[0] is None:
            return isinstance(key[1], str)
        kinds = (int if isinstance(one.type, BigInteger) else str for one in self.columns)
        return all(isinstance(value, kind) for value, kind in zip(key, kinds, strict=True))


_CREATED_AT: Final = type_coerce(_T.created_at, BigInteger)
_ACTIVE_AT: Final = type_coerce(_CHANGES.last_active_at, BigInteger)
_ORDERS: Final[dict[Sort, Order]] = {
    Sort.CREATED: Order((_CREATED_AT, _T.id)),
    Sort.UPDATED: Order((type_coerce(_T.updated_at, BigInteger), _T.id)),
    Sort.ACTIVE: Order((_ACTIVE_AT, _CHANGES.sandbox_id), can_miss=True),
    Sort.CHECK: Order((type_coerce(_T.next_check_at, BigInteger), _T.id), can_miss=True),
    Sort.OWNER: Order((_T.owner_kind, _T.owner_id)),
    Sort.STATE: Order((_T.state, _CREATED_AT, _T.id)),
}


Place = tuple[str, str | None]
"""A provider and a region, as a record names them."""


def shown_state(silent: Sequence[Place]) -> ColumnElement[Any]:
    """Return the state as it is shown: `find_shown_state` of the domain as an expression."""
    if not silent:
        return _T.state
    return case((is_lost(silent), State.UNKNOWN.value), else_=_T.state)


def is_lost(silent: Sequence[Place]) -> ColumnElement[bool]:
    """Match what ran where the provider does not answer."""
    places = [and_(_T.provider == name, _T.region == region) for name, region in silent]
    return and_(_T.state == State.RUNNING.value, or_(false(), *places))


@dataclass(frozen=True, slots=True)
class SandboxQuery:
    """Filters, joined by "and"; an empty one filters nothing.

    ``search`` finds any part of an id, an instance's or owner's id, the metadata, or a tenant other
    than the default one; one or two characters find only beginnings of these.
    """

    states: tuple[State, ...] = ()
    owner_kind: OwnerKind | None = None
    owner_id: str | None = None
    provider: str | None = None
    region: str | None = None
    tenant: str | None = None
    search: str | None = None
    silent: tuple[Place, ...] = ()
    """Where providers do not answer: what ran there is found as UNKNOWN."""
    due_at: datetime | None = None
    """Only what was due by then and is not worked on."""
    sort: Sort = Sort.CREATED
    descending: bool = True
    limit: int = 100

    @property
    def has_many_states(self) -> bool:
        """Return True if no index has both the states and the order of this query."""
        is_indexed = self.sort is Sort.CREATED and len(self.states) == 1
        return bool(self.states) and not is_indexed and not self.silent


@dataclass(frozen=True, slots=True)
class Page:
    """Some sandboxes, and the cursor of the next page if there is one."""

    items: list[Sandbox] = field(default_factory=list)
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class ListedRow:
    """A row of a list: whose it is, and what tells whether a copy of it in memory is current.

    Only activity and confirmations are written without a new version; both leave a time.
    """

    id: str
    owner: Owner
    version: int
    last_active_at: datetime | None
    last_verified_at: datetime | None
    observed_at: datetime | None


LISTED: Final = tuple(
    _T[name]
    for name in (
        "id",
        "owner_kind",
        "owner_id",
        "version",
        "last_active_at",
        "last_verified_at",
        "observed_at",
    )
)


@dataclass(frozen=True, slots=True)
class RowPage:
    """Some rows of a list, and the cursor of the next page if there is one."""

    rows: list[ListedRow]
    next_cursor: str | None


def render_selects(
    query: SandboxQuery,
    cursor: str | None,
    *,
    found: Sequence[ColumnElement[bool]] = (),
    columns: Sequence[ColumnElement[Any]] = tuple(_T),
) -> list[Select[Any]]:
    """Return the statements whose rows, one after the other, are the rest of a list.

    The second one, if any, is for rows without a value to sort by. `found` are further conditions.
    The columns from `KEY` on are the key for a cursor.
    """
    order = _ORDERS[query.sort]
    key = order.columns
    if query.sort is Sort.STATE:
        key = (shown_state(query.silent), *key[1:])
    labels = (one.label(f"{KEY}{number}") for number, one in enumerate(key))
    statement = select(*columns, *labels).where(*_filters(query), *found)
    if query.sort is Sort.ACTIVE:
        statement = statement.join(SANDBOX_CHANGES, _CHANGES.sandbox_id == _T.id)
    last = None if cursor is None else parse_cursor(cursor, query.sort)
    missing = _sorted(statement.where(key[0].is_(None)), key[1:], query)
    if last is not None and last[0] is None:
        return [missing.where(_beyond(key[1:], last[1:], query))]
    if order.can_miss:
        statement = statement.where(key[0].is_not(None))
    if last is not None:
        statement = statement.where(_beyond(key, last, query))
    return [_sorted(statement, key, query), *([missing] if order.can_miss else ())]


def _sorted(
    statement: Select[Any], key: Sequence[ColumnElement[Any]], query: SandboxQuery
) -> Select[Any]:
    return statement.order_by(*(one.desc() if query.descending else one.asc() for one in key))


def _beyond(
    key: Sequence[ColumnElement[Any]], last: Sequence[Any], query: SandboxQuery
) -> ColumnElement[bool]:
    """Match what comes after the last row: one comparison of both columns, which an index finds."""
    values = tuple_(*(literal(value, one.type) for one, value in zip(key, last, strict=True)))
    return tuple_(*key) < values if query.descending else tuple_(*key) > values


def page_limit(query: SandboxQuery) -> int:
    """Return the page's size, bounded at LIMIT_MAX."""
    return max(1, min(query.limit, LIMIT_MAX))


def render_cursor(row: Mapping[Any, Any]) -> str:
    """Return an opaque text that names the last row of a page."""
    key = [value for name, value in row.items() if name.startswith(KEY)]
    return base64.urlsafe_b64encode(orjson.dumps(key)).decode().rstrip("=")


def parse_cursor(cursor: str, sort: Sort) -> list[Any]:
    """Parse a cursor, and refuse one that we did not write."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        key = orjson.loads(base64.urlsafe_b64decode(padded))
    except (ValueError, TypeError, binascii.Error) as error:
        raise InvalidRequestError("The cursor is not one of ours.", cursor=cursor[:40]) from error
    if not _ORDERS[sort].accepts(key):
        raise InvalidRequestError("The cursor belongs to another order.", cursor=cursor[:40])
    values: list[Any] = key
    return values


def _filters(query: SandboxQuery) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if query.states and not query.has_many_states:
        shown = shown_state(query.silent)
        found.append(shown.in_([state.value for state in query.states]))
    exact = {
        _T.owner_kind: query.owner_kind.value if query.owner_kind else None,
        _T.owner_id: query.owner_id,
        _T.provider: query.provider,
        _T.region: query.region,
        _T.tenant: query.tenant,
    }
    if query.due_at is not None:
        found.append(is_due(query.due_at))
    found += [column == value for column, value in exact.items() if value is not None]
    return found

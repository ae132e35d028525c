"""The query for a list of sandboxes, and its pages.

Paging is by key and not by offset: a page stays correct while rows change, and the last page costs
as much as the first.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import orjson
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    String,
    and_,
    case,
    cast,
    false,
    func,
    or_,
    select,
    type_coerce,
)
from sqlalchemy.dialects import postgresql

from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.store.tables.sandboxes import SANDBOXES

LIMIT_MAX: Final = 1000


class Sort(StrEnum):
    """The sort orders of a list."""

    CREATED = "created"
    UPDATED = "updated"
    ACTIVE = "active"
    STATE = "state"
    OWNER = "owner"
    CHECK = "check"


_T = SANDBOXES.c
_SORT_KEYS: Final[dict[Sort, ColumnElement[Any]]] = {
    Sort.CREATED: type_coerce(_T.created_at, BigInteger),
    Sort.UPDATED: type_coerce(_T.updated_at, BigInteger),
    Sort.ACTIVE: func.coalesce(type_coerce(_T.last_active_at, BigInteger), 0),
    Sort.CHECK: func.coalesce(type_coerce(_T.next_check_at, BigInteger), 0),
    Sort.OWNER: _T.owner_id,
}
"""Instants are compared as their stored numbers; a missing one sorts as the oldest."""


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

    ``search`` finds the beginning of an id or of an instance id, and any part of the owner's id or
    of the metadata.
    """

    states: tuple[State, ...] = ()
    owner_kind: OwnerKind | None = None
    owner_id: str | None = None
    provider: str | None = None
    region: str | None = None
    search: str | None = None
    silent: tuple[Place, ...] = ()
    """Where providers do not answer: what ran there is found as UNKNOWN."""
    sort: Sort = Sort.CREATED
    descending: bool = True
    limit: int = 100


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


def render_select(
    query: SandboxQuery,
    cursor: str | None,
    *,
    is_sqlite: bool,
    columns: Sequence[ColumnElement[Any]] = tuple(_T),
) -> Select[Any]:
    """Return the statement of one page; it selects one extra row to detect another page."""
    key = shown_state(query.silent) if query.sort is Sort.STATE else _SORT_KEYS[query.sort]
    statement = select(*columns, key.label("sort_key")).where(*_filters(query, is_sqlite))
    if cursor is not None:
        value, last_id = parse_cursor(cursor, query.sort)
        after = key < value if query.descending else key > value
        beyond = _T.id < last_id if query.descending else _T.id > last_id
        statement = statement.where(or_(after, and_(key == value, beyond)))
    order = (key.desc(), _T.id.desc()) if query.descending else (key.asc(), _T.id.asc())
    return statement.order_by(*order).limit(page_limit(query) + 1)


def page_limit(query: SandboxQuery) -> int:
    """Return the page's size, bounded at LIMIT_MAX."""
    return max(1, min(query.limit, LIMIT_MAX))


def render_cursor(value: int | str, last_id: str) -> str:
    """Return an opaque text that names the last row of a page."""
    return base64.urlsafe_b64encode(orjson.dumps([value, last_id])).decode().rstrip("=")


def parse_cursor(cursor: str, sort: Sort) -> tuple[int | str, str]:
    """Parse a cursor, and refuse one that we did not write."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        value, last_id = orjson.loads(base64.urlsafe_b64decode(padded))
    except (ValueError, TypeError, binascii.Error) as error:
        raise InvalidRequestError("The cursor is not one of ours.", cursor=cursor[:40]) from error
    kind = str if sort in (Sort.STATE, Sort.OWNER) else int
    if not isinstance(value, kind) or not isinstance(last_id, str):
        raise InvalidRequestError("The cursor belongs to another order.", cursor=cursor[:40])
    return value, last_id


def _filters(query: SandboxQuery, is_sqlite: bool) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if query.states:
        shown = shown_state(query.silent)
        found.append(shown.in_([state.value for state in query.states]))
    exact = {
        _T.owner_kind: query.owner_kind.value if query.owner_kind else None,
        _T.owner_id: query.owner_id,
        _T.provider: query.provider,
        _T.region: query.region,
    }
    found += [column == value for column, value in exact.items() if value is not None]
    if query.search:
        found.append(
            or_(
                _T.id.startswith(query.search, autoescape=True),
                _T.instance_id.startswith(query.search, autoescape=True),
                _T.owner_id.contains(query.search, autoescape=True),
                _metadata(is_sqlite).contains(query.search, autoescape=True),
            )
        )
    return found


def _metadata(is_sqlite: bool) -> ColumnElement[str]:
    """Return the metadata as text; the rest of a launch is not searched."""
    if is_sqlite:
        return func.json_extract(_T.launch, "$.metadata", type_=String)
    metadata: ColumnElement[str] = cast(_T.launch, postgresql.JSON)["metadata"].astext
    return metadata

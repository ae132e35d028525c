"""Conditions on rows of sandboxes that several statements share."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, and_, or_

from sandkeeper.store.tables.sandboxes import SANDBOXES

_T = SANDBOXES.c


def is_unclaimed(now: datetime) -> ColumnElement[bool]:
    """Match rows that nothing works on."""
    return or_(_T.claim_until.is_(None), _T.claim_until <= now)


def is_due(now: datetime) -> ColumnElement[bool]:
    """Match rows to check now, with ``IS NOT NULL`` so that planners use the partial index."""
    return and_(_T.next_check_at.is_not(None), _T.next_check_at <= now, is_unclaimed(now))

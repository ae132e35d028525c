"""The keeper: status, webhooks, the sweep and live streams, on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import status, streams, sweep, webhooks
from bench.databases import postgres, sqlite

if TYPE_CHECKING:
    from bench.report import Report

MEASURES = (status, webhooks, sweep, streams)


def run(report: Report) -> None:
    with sqlite() as embedded, postgres() as shared:
        for database in (embedded, shared):
            if database is not None:
                for measure in MEASURES:
                    measure.run(report, database)

"""Measure the keeper's status, lists, webhooks, sweep and live streams, on both databases."""

from __future__ import annotations

from bench import lists, status, streams, sweep, webhooks
from bench.databases import postgres, sqlite
from bench.report import Report

MEASURES = {
    "status": status,
    "lists": lists,
    "webhooks": webhooks,
    "sweep": sweep,
    "streams": streams,
}


def run(report: Report, *, only: str = "") -> None:
    """Run every measurement on both databases, or only the named one."""
    chosen = [MEASURES[only]] if only else list(MEASURES.values())
    with sqlite() as embedded, postgres() as shared:
        for database in (embedded, shared):
            if database is not None:
                for measure in chosen:
                    measure.run(report, database)

"""The background task that compares the provider's sandboxes with ours."""

from __future__ import annotations

from collections import Counter

from sandkeeper.background.scheduler import TaskOutcome
from sandkeeper.services.observe.reconciliation import Reconciliation


class ReconcileTask:
    """One pass over every region."""

    name = "reconcile"

    def __init__(self, reconciliation: Reconciliation) -> None:
        self._reconciliation = reconciliation

    async def run(self) -> TaskOutcome:
        counts: Counter[str] = Counter()
        for report in await self._reconciliation.run():
            counts.update(report.counts)
        return TaskOutcome(dict(counts))

"""Remember what a provider lacks, so that no feature of it is tried in vain.

`sandkeeper doctor --provider` finds it out and stores it; every replica reads it again every few
seconds. What was never checked counts as offered.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from sandkeeper.providers.base import Provider
from sandkeeper.providers.conformance import FeatureFinding
from sandkeeper.providers.features import ProviderFeature
from sandkeeper.services.deps import Deps
from sandkeeper.store import Store

PREFIX: Final = "provider.features."


class ProviderFeatures:
    """What is known to be missing at each provider, as this replica knows it."""

    def __init__(self, deps: Deps) -> None:
        self._store = deps.store
        self._missing: dict[str, frozenset[str]] = {}

    def lacks(self, provider: Provider, feature: ProviderFeature) -> bool:
        return feature.value in self._missing.get(_name(provider), ())

    async def refresh(self) -> None:
        """Read what the last checks found."""
        facts = await self._store.key_values.list(PREFIX)
        self._missing = {name: frozenset(fact["missing"]) for name, fact in facts.items()}


async def remember_findings(
    store: Store, provider: Provider, findings: Iterable[FeatureFinding], *, now: datetime
) -> None:
    """Store what is missing, in place of what an earlier check found.

    What could not be tried is not called missing.
    """
    missing = [one.feature.value for one in findings if one.is_supported is False]
    fact = {"missing": missing, "checkedAt": now.isoformat()}
    await store.key_values.put(_name(provider), fact, now=now)


def _name(provider: Provider) -> str:
    return f"{PREFIX}{provider.name}.{provider.region}"

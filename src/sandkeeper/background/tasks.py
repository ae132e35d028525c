"""The small tasks of a replica that need no file of their own: what it must hear and measure."""

from __future__ import annotations

from collections.abc import Callable

from sandkeeper.background.scheduler import TaskOutcome
from sandkeeper.services.access.tokens import Tokens
from sandkeeper.services.monitoring.feature_flags import FeatureFlags
from sandkeeper.services.monitoring.metrics_history import MetricsHistory


class RefreshSwitches:
    """Learns which parts another replica or an operator has switched."""

    name = "switches"

    def __init__(self, switches: FeatureFlags) -> None:
        self._switches = switches

    async def run(self) -> TaskOutcome:
        await self._switches.refresh()
        return TaskOutcome(detail={name: int(on) for name, on in self._switches.all().items()})


class RefreshTokens:
    """Learns which logins and tokens another replica has revoked, and ends what they hold open."""

    name = "tokens"

    def __init__(self, tokens: Tokens, end_streams: Callable[[], None]) -> None:
        self._tokens = tokens
        self._end_streams = end_streams

    async def run(self) -> TaskOutcome:
        revoked = await self._tokens.refresh()
        self._end_streams()
        return TaskOutcome(detail={"revoked": revoked})


class SampleTrends:
    """Measures the fleet for gauges and charts."""

    name = "trends"

    def __init__(self, trends: MetricsHistory) -> None:
        self._trends = trends

    async def run(self) -> TaskOutcome:
        await self._trends.sample()
        return TaskOutcome()

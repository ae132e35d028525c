"""Feature flags: turn off each part of the keeper alone, while it runs, on every replica.

A setting is the initial value of each flag; a value set at run time is a shared fact and wins. Each
replica reads the facts every few seconds, so a change soon applies everywhere.
"""

from __future__ import annotations

from enum import StrEnum

import structlog

from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.services.deps import Deps

log = structlog.get_logger(__name__)

PREFIX = "switch."


class FeatureFlag(StrEnum):
    """The parts that can be turned off alone."""

    ENFORCER = "enforcer"
    """Put idle sandboxes to sleep."""
    RECONCILER = "reconciler"
    """Compare records with the provider's list."""
    CATCH_UP = "catch_up"
    """Read the provider's events in addition to the webhooks."""
    WEBHOOKS = "webhooks"
    """Accept webhook deliveries."""
    SSE = "sse"
    """Serve live streams."""
    LEGACY_VERIFY = "legacy_verify"
    """Verify at the provider before a status read."""

    @classmethod
    def parse(cls, name: str) -> FeatureFlag:
        try:
            return cls(name)
        except ValueError as error:
            known = ", ".join(switch.value for switch in cls)
            raise InvalidRequestError(
                f"There is no switch {name!r}; there are: {known}."
            ) from error


class FeatureFlags:
    """The values of the flags, as this replica knows them."""

    def __init__(self, deps: Deps) -> None:
        self._store = deps.store
        self._clock = deps.clock
        self._defaults = {flag: bool(getattr(deps.settings, flag.value)) for flag in FeatureFlag}
        self._set: dict[FeatureFlag, bool] = {}

    def is_on(self, switch: FeatureFlag) -> bool:
        return self._set.get(switch, self._defaults[switch])

    def all(self) -> dict[str, bool]:
        """Return the values by name."""
        return {switch.value: self.is_on(switch) for switch in FeatureFlag}

    async def turn(self, name: str, *, on: bool, actor: str) -> None:
        """Set a flag, for all replicas and across restarts."""
        switch = FeatureFlag.parse(name)
        await self._store.key_values.put(PREFIX + switch.value, on, now=self._clock())
        self._set[switch] = on
        log.warning("switch_turned", switch=switch.value, on=on, actor=actor)

    async def reset(self, name: str, *, actor: str) -> None:
        """Reset a flag to its setting."""
        switch = FeatureFlag.parse(name)
        await self._store.key_values.remove(PREFIX + switch.value)
        self._set.pop(switch, None)
        log.warning("switch_reset", switch=switch.value, actor=actor)

    async def refresh(self) -> None:
        """Read what other replicas have set."""
        facts = await self._store.key_values.list(PREFIX)
        self._set = {
            switch: bool(facts[PREFIX + switch.value])
            for switch in FeatureFlag
            if PREFIX + switch.value in facts
        }

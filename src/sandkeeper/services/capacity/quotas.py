"""Quotas: what a tenant may have, checked before a creation and before a start.

A tenant without a quota costs nothing: the quotas are in memory, and what is used is read only
where there is one. Each replica reads them every ten seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from sandkeeper.domain.clock import to_ms
from sandkeeper.domain.decisions.quotas import (
    EVERY_TENANT,
    ON_START,
    QUOTA_NAMES,
    QuotaLimits,
    QuotaUsage,
    check_quota,
    list_warnings,
)
from sandkeeper.domain.tenant import parse_tenant
from sandkeeper.services.deps import Deps

log = structlog.get_logger(__name__)

_ON_CREATION: Final = tuple(name for name in QUOTA_NAMES if name not in ON_START)


@dataclass(frozen=True, slots=True)
class QuotaStatus:
    """A tenant's limits, and what it uses; None for those of every tenant."""

    tenant: str
    limits: QuotaLimits
    usage: QuotaUsage | None


class Quotas:
    """Check and change the quotas of tenants."""

    def __init__(self, deps: Deps) -> None:
        self._store = deps.store.quotas
        self._clock = deps.clock
        self._known: Mapping[str, QuotaLimits] = {}

    async def refresh(self) -> None:
        """Read the quotas that any replica set."""
        self._known = await self._store.list()

    def find(self, tenant: str) -> QuotaLimits | None:
        """Return the tenant's own quota, or that of every tenant."""
        return self._known.get(tenant) or self._known.get(EVERY_TENANT)

    def list_running(self) -> Mapping[str, int | None]:
        """Return how many may run at a time, by tenant."""
        return {tenant: limits.running for tenant, limits in self._known.items()}

    async def check_start(self, tenant: str) -> None:
        """Raise QuotaExceededError if the tenant may start nothing now."""
        limits = self.find(tenant)
        if limits is not None and any(getattr(limits, name) is not None for name in ON_START):
            now = self._clock()
            usage = await self._store.read_usage(tenant, now=now)
            check_quota(tenant, limits, usage, names=ON_START, now=now)

    async def count_creation(self, tenant: str) -> None:
        """Count a creation. Raise QuotaExceededError if the tenant may create nothing now."""
        limits = self.find(tenant)
        if limits is None:
            return
        now = self._clock()

        def check(usage: QuotaUsage) -> None:
            check_quota(tenant, limits, usage, names=_ON_CREATION, now=now)

        await self._store.count_creation(tenant, check, now=now)

    async def list_warnings(self, tenant: str) -> list[str]:
        """Return what the tenant has nearly used up."""
        limits = self.find(tenant)
        if limits is None:
            return []
        warnings = list_warnings(limits, await self._store.read_usage(tenant, now=self._clock()))
        if warnings:
            log.warning("quota_nearly_used_up", tenant=tenant, quotas=warnings)
        return warnings

    async def list(self) -> list[QuotaStatus]:
        """Return every quota and its use."""
        await self.refresh()
        return [await self._describe(tenant, limits) for tenant, limits in self._known.items()]

    async def set(self, tenant: str, limits: QuotaLimits) -> QuotaStatus:
        """Set a tenant's quota, or that of every tenant; without any limit it has none."""
        if tenant != EVERY_TENANT:
            parse_tenant(tenant)
        await self._store.put(tenant, limits, now=to_ms(self._clock()))
        await self.refresh()
        return await self._describe(tenant, limits)

    async def _describe(self, tenant: str, limits: QuotaLimits) -> QuotaStatus:
        if tenant == EVERY_TENANT:
            return QuotaStatus(tenant, limits, None)
        usage = await self._store.read_usage(tenant, now=self._clock())
        return QuotaStatus(tenant, limits, usage)

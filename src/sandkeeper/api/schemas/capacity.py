"""Capacity and quotas on the wire."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from sandkeeper.api.schemas.base import ApiModel, RequestModel

Limit = Annotated[int, Field(ge=0, le=2**53 - 1)]


class PlaceOut(ApiModel):
    """What runs in a region, and how much may. `unrecorded` runs there and is in no record."""

    provider: str
    region: str
    limit: int | None
    learned_limit: int | None
    taken: int
    unrecorded: int
    waiting: int
    templates: dict[str, int]
    template_limits: dict[str, int]


class CapacityOut(ApiModel):
    items: list[PlaceOut]


class QuotaRequest(RequestModel):
    """What a tenant may have; what is not given is not limited. `*` is each one without its own."""

    tenant: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    running: Limit | None = None
    kept: Limit | None = None
    creations_hour: Limit | None = None
    creations_day: Limit | None = None
    running_hours_month: Limit | None = None
    kept_bytes: Limit | None = None


class QuotaPartOut(ApiModel):
    """One limit, and how much of it is used; null for the quota of every tenant."""

    limit: int | None
    used: float | None


class QuotaOut(ApiModel):
    """A tenant's quota and its use. Hours, days and months are those of UTC."""

    tenant: str
    running: QuotaPartOut
    kept: QuotaPartOut
    creations_hour: QuotaPartOut
    creations_day: QuotaPartOut
    running_hours_month: QuotaPartOut
    kept_bytes: QuotaPartOut


class QuotaList(ApiModel):
    items: list[QuotaOut]

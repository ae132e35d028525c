"""The policy of a sandbox for which none was chosen."""

from __future__ import annotations

from sandkeeper.domain.policy import Policy
from sandkeeper.settings import Settings


def make_default_policy(settings: Settings) -> Policy:
    """Return the policy that the settings give."""
    is_fixed = settings.idle == "fixed"
    return Policy(
        idle_timeout_s=settings.idle_timeout_s,
        lifetime_s=settings.lifecycle_timeout_s,
        newborn_grace_s=settings.newborn_grace_s,
        woken_grace_s=settings.woken_grace_s,
        warm_grace_s=settings.warm_grace_s,
        work_max_s=settings.work_max_s,
        idle_min_s=None if is_fixed else settings.idle_timeout_min_s,
        idle_max_s=None if is_fixed else settings.idle_timeout_max_s,
    )

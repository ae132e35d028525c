"""What happens to an idle sandbox where the provider cannot pause: it ends, with its files saved.

Only where `sandkeeper doctor --provider` has found that this provider cannot pause: one refused
pause alone, such as a wrong answer of a proxy, ends nothing.
"""

from __future__ import annotations

from sandkeeper.domain.decisions.idle import Kill, Pause
from sandkeeper.domain.errors import ProviderUnsupportedError
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.providers.features import ProviderFeature
from sandkeeper.services.deps import Deps
from sandkeeper.services.files.capture import KEPT_KINDS, FileCapture
from sandkeeper.services.lifecycle.claims import Claims
from sandkeeper.services.lifecycle.lifecycle import Lifecycle
from sandkeeper.services.monitoring.provider_features import ProviderFeatures


class EndInstead:
    """End a sandbox that the provider refused to pause."""

    def __init__(
        self,
        deps: Deps,
        claims: Claims,
        lifecycle: Lifecycle,
        files: FileCapture,
        features: ProviderFeatures,
    ) -> None:
        self._keeps_files = deps.settings.keep_files
        self._providers = deps.providers
        self._claims = claims
        self._lifecycle = lifecycle
        self._files = files
        self._features = features

    async def end(
        self, held: Sandbox, decision: Pause, refusal: ProviderUnsupportedError
    ) -> Sandbox | None:
        """Save the files and end it; return None if activity arrived. Raise if it must run on."""
        provider = self._providers.get(held)
        if not (
            self._features.lacks(provider, ProviderFeature.PAUSE)
            and self._keeps_files
            and held.owner.kind in KEPT_KINDS
        ):
            raise refusal
        fresh = await self._claims.renew(held)
        async with self._claims.keep_alive(fresh):
            # Unlike before a pause, a capture that fails keeps the sandbox running.
            await self._files.capture(fresh, reason="before it ends")
        reason = f"{decision.reason}; ended and not paused: this provider cannot pause"
        kill = Kill(due_at=decision.due_at, state=State.TERMINATED, reason=reason)
        return await self._lifecycle.kill_due(await self._claims.renew(fresh), kill)

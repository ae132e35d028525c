"""Build credits. They belong to the host application; Sandkeeper only asks it to charge one.

Each request carries a key, and the same rebuild always sends the same key. The host application
must charge a key once, however often it is sent. Then a credit is charged exactly once, even if the
answer was lost or Sandkeeper died in between.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx

from sandkeeper.domain.errors import CreditRefusedError, CreditUnavailableError
from sandkeeper.settings import Settings

TIMEOUT_S = 15.0
RETRIABLE = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True)
class Charge:
    """One credit to charge for one rebuild; `key` is the same in every request for it."""

    key: str
    job_id: str
    actor: str
    credits: int = 1


CreditHook = Callable[[Charge], Awaitable[None]]
"""Return when the credit is charged; raise CreditRefusedError if none is granted."""


async def charge_nothing(_charge: Charge) -> None:
    """Charge nothing, for an installation that counts no credits."""


class HttpCredits:
    """A hook that sends a `POST` with the charge as JSON and its key as `Idempotency-Key`."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def __call__(self, charge: Charge) -> None:
        """Send one request; without a clear answer, it may be sent again with the same key."""
        body = {
            "jobId": charge.job_id,
            "rebuildId": charge.key,
            "credits": charge.credits,
            "actor": charge.actor,
        }
        headers = {**self._headers, "Idempotency-Key": charge.key}
        try:
            async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
                answer = await client.post(self._url, json=body, headers=headers)
        except httpx.HTTPError as error:
            raise CreditUnavailableError(detail=str(error) or type(error).__name__) from error
        if answer.is_success:
            return
        if answer.is_client_error and answer.status_code not in RETRIABLE:
            raise CreditRefusedError(status=answer.status_code)
        raise CreditUnavailableError(status=answer.status_code)


def make_credit_hook(settings: Settings) -> CreditHook:
    """Return the hook that the settings name; without one, nothing is charged."""
    if not settings.credit_url:
        return charge_nothing
    token = settings.credit_token
    return HttpCredits(settings.credit_url, token=token.get_secret_value() if token else None)

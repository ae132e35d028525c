"""The idle sweep as an Inngest function.

It is an optional extra (`sandkeeper[inngest]`). Inngest calls `/api/inngest` and signs its calls
with its own key (`INNGEST_SIGNING_KEY`), which its library checks. The function runs the same sweep
as the background task; both may run at the same time, because each sandbox is claimed by one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from fastapi import FastAPI

from sandkeeper.background.scheduler import TaskRun
from sandkeeper.domain.errors import InvalidSettingsError

if TYPE_CHECKING:
    import inngest

FUNCTION = "sandbox-idle-enforcer"
CRON = "*/2 * * * *"


def offer_enforcer(api: FastAPI, sweep: Callable[[], Awaitable[TaskRun]]) -> None:
    """Add Inngest's route with the sweep function to the API."""
    try:
        import inngest  # noqa: PLC0415  The package is optional.
        from inngest.fast_api import serve  # noqa: PLC0415
    except ModuleNotFoundError:
        raise InvalidSettingsError(
            "The setting `inngest` needs the package of the same name: install sandkeeper[inngest]."
        ) from None

    client = inngest.Inngest(app_id="sandkeeper")

    @client.create_function(
        fn_id=FUNCTION, trigger=inngest.TriggerCron(cron=CRON), retries=0, name=FUNCTION
    )
    async def enforce(_context: inngest.Context) -> dict[str, object]:
        """Run one sweep, without retries: the next scheduled run is the retry."""
        run = await sweep()
        if run.error is not None:
            raise inngest.NonRetriableError(run.error)
        return {"durationS": run.duration_s, **run.detail}

    serve(api, client, [enforce])

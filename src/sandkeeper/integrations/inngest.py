"""The idle enforcer as an Inngest function, for those who run their schedules there.

It is an optional extra (`sandkeeper[inngest]`). Inngest calls `/api/inngest` and signs its calls
with its own key (`INNGEST_SIGNING_KEY`), which its library checks. The function runs the very sweep
that runs here by itself; both may run at once, because each sandbox is claimed by one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import inngest
from fastapi import FastAPI

from sandkeeper.background.scheduler import TaskRun
from sandkeeper.domain.errors import InvalidSettingsError

FUNCTION = "sandbox-idle-enforcer"
CRON = "*/2 * * * *"


def offer_enforcer(api: FastAPI, sweep: Callable[[], Awaitable[TaskRun]]) -> None:
    """Add Inngest's route to the API, with the one function."""
    try:
        import inngest  # noqa: PLC0415  The package is optional.
        from inngest.fast_api import serve  # noqa: PLC0415
    except ModuleNotFoundError:
        raise InvalidSettingsError(
            "The setting inngest needs the package of the same name: install sandkeeper[inngest]."
        ) from None

    client = inngest.Inngest(app_id="sandkeeper")

    @client.create_function(
        fn_id=FUNCTION, trigger=inngest.TriggerCron(cron=CRON), retries=0, name=FUNCTION
    )
    async def enforce(_context: inngest.Context) -> dict[str, object]:
        """One sweep. It does not retry: the next two minutes are the retry."""
        run = await sweep()
        if run.error is not None:
            raise inngest.NonRetriableError(run.error)
        return {"durationS": run.duration_s, **run.detail}

    serve(api, client, [enforce])

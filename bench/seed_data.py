"""Write records of many sandboxes directly into a database, and build events about them."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import orjson
from sqlalchemy import text

from bench.load import render_request
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.policy import Policy
from sandkeeper.domain.sandbox import CurrentRun, Sandbox, Sightings
from sandkeeper.domain.states import State
from sandkeeper.providers.e2b.signature import sign
from sandkeeper.services.observe.webhook_registration import PATH, SECRET
from sandkeeper.store import Store, open_store
from sandkeeper.store.tables.sandboxes import FACTS, SANDBOXES

WEBHOOK_SECRET = "secret-of-the-bench"
# Nothing becomes idle or ends while something else is measured.
FOR_EVER = Policy(idle_timeout_s=None, lifetime_s=None)


def project(number: int) -> str:
    return f"project-{number}"


def instance(number: int) -> str:
    return f"instance-{number}"


def make_record(*, policy: Policy = FOR_EVER, provider: str = "e2b") -> Sandbox:
    """Return a running sandbox, created two hours ago and just confirmed; number 0 of a fleet."""
    now = datetime.now(UTC)
    born = now - timedelta(hours=2)
    return Sandbox(
        id="sandbox-0",
        owner=Owner.project(project(0)),
        provider=provider,
        created_at=born,
        updated_at=born,
        state_since=born,
        state=State.RUNNING,
        policy=policy,
        instance_id=instance(0),
        run=CurrentRun(run_started_at=born, ready=True),
        sightings=Sightings(observed_at=born, last_verified_at=now),
    )


async def fill(
    store: Store,
    record: Sandbox,
    *,
    count: int,
    first: int = 0,
    columns: Mapping[str, str] | None = None,
) -> None:
    """Add `count` records like this one, numbered from `first`; copy them inside the database.

    `columns` are expressions, in which `n` is a copy's number, for what differs between them.
    """
    kept = record.evolve(
        id=f"sandbox-{first}",
        owner=Owner.project(project(first)),
        instance_id=instance(first),
    )
    await store.sandboxes.insert(kept)
    changed = {
        "id": "'sandbox-' || n",
        "owner_id": "'project-' || n",
        "instance_id": "'instance-' || n",
        **(columns or {}),
    }
    names = [column.name for column in SANDBOXES.c]
    copied = ", ".join(changed.get(name, name) for name in names)
    async with store.database.writing() as connection:
        await connection.execute(
            text(
                f"INSERT INTO sandboxes ({', '.join(names)}) "
                "WITH RECURSIVE numbers(n) AS (SELECT CAST(:first AS INTEGER) UNION ALL "
                "SELECT n + 1 FROM numbers WHERE n + 1 < :beyond) "
                f"SELECT {copied} FROM sandboxes, numbers WHERE id = :like"
            ),
            {"first": first + 1, "beyond": first + count, "like": kept.id},
        )
        # Planners have no statistics of rows from the same minute; in production they do.
        await connection.execute(text("ANALYZE"))


async def put_plain_secret(store: Store) -> None:
    """Set the webhooks' secret as an older version did; the keeper encrypts it when it starts."""
    row = {"name": SECRET, "value": json.dumps(WEBHOOK_SECRET), "updated_at": datetime.now(UTC)}
    async with store.database.writing() as connection:
        await connection.execute(FACTS.insert(), row)


def prepare(database: str, *, count: int, record: Sandbox | None = None) -> None:
    """Fill an empty database for a keeper not yet started, and set the webhooks' secret."""

    async def work() -> None:
        async with open_store(database) as store:
            await put_plain_secret(store)
            await fill(store, record or make_record(), count=count)

    asyncio.run(work())


def render_webhook(number: int, kind: str) -> str:
    """Return a signed delivery that reports that sandbox `number` was just paused or resumed."""
    body = orjson.dumps(
        {
            "version": "v2",
            "id": str(uuid.uuid4()),
            "type": f"sandbox.lifecycle.{kind}",
            "timestamp": datetime.now(UTC).isoformat(),
            "sandbox_id": instance(number),
            "sandbox_execution_id": str(uuid.uuid4()),
            "event_data": {},
        }
    )
    headers = [
        f"e2b-signature: {sign(WEBHOOK_SECRET, body)}",
        f"e2b-delivery-id: {uuid.uuid4()}",
    ]
    return render_request("POST", PATH, body=body, headers=headers)

"""Status, list, row and stream say the same on every replica, however it was written."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sandkeeper.api.app import create_asgi_app
from sandkeeper.api.deps import ApiContext, make_context
from sandkeeper.api.status.serializers import dumps, render_status
from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.domain.observe.observation import Observation, ObservedStatus, Source
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import ClaimKind, Sandbox
from sandkeeper.services.monitoring.provider_health import FAILURES_MAX
from sandkeeper.testing.providers import DownProvider, SimulatedProvider
from support.eventually import eventually
from support.sweep_replica import Replica

MakeOn = Callable[..., Awaitable[Replica]]
KEY = "truth-key"
# A round is at most half a second after the last; this machine may be busy.
ROUND_S = 5.0


class Shown:
    """One replica as its users see it: over HTTP, and by a stream that is always open."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.context: ApiContext = make_context(replica)
        transport = httpx.ASGITransport(create_asgi_app(self.context))
        self.http = httpx.AsyncClient(
            transport=transport,
            base_url="http://keeper",
            headers={"Authorization": f"Bearer {KEY}"},
        )
        self.streamed: dict[str, dict[str, Any]] = {}

    async def follow(self, project: str) -> asyncio.Task[None]:
        """Keep the newest status that a stream of this project sends."""
        opened = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Any) -> None:
            for block in message.get("body", b"").decode().split("\n\n"):
                if "event: status" in block:
                    self.streamed[project] = orjson.loads(block.split("data: ", 1)[1])
                    opened.set()

        entry = await self.context.statuses.get(Owner.project(project))
        assert entry is not None
        first = entry.sandbox
        serving = self.context.hub.serve(
            receive,
            send,
            topics=[project],
            opening=lambda: self.context.broadcaster.initial_sandbox_events(first, after=None),
        )
        task = asyncio.create_task(serving)
        await opened.wait()
        return task

    async def status(self, project: str) -> dict[str, Any]:
        return (await self.http.get(f"/api/sandboxes/{project}/status")).raise_for_status().json()

    async def listed(self, project: str, state: str = "", *, fields: str = "all") -> dict[str, Any]:
        """Return the project's entry in the list of all, or of all that are in this state."""
        query = {"owner": project, "state": state, "fields": fields}
        answer = await self.http.get("/api/sandboxes", params=query)
        return next(iter(answer.raise_for_status().json()["items"]), {})

    async def explained(self, project: str) -> str:
        answer = await self.http.get(f"/api/sandboxes/{project}/explain")
        return answer.raise_for_status().json()["status"]

    async def row(self, project: str) -> dict[str, Any]:
        found = await self.replica.store.sandboxes.get_by_owner(Owner.project(project))
        words, now = self.context.presentation, self.replica.clock()
        return orjson.loads(dumps(render_status(found, words=words, now=now)))


@asynccontextmanager
async def showing(keeping_on: MakeOn, url: str) -> AsyncIterator[tuple[Shown, Shown]]:
    provider = DownProvider(SimulatedProvider(), "list_instances")
    provider.is_down = False
    options = {"settings": {"operator_key": KEY}}
    one, two = [
        Shown(await keeping_on(url, provider, replica=name, **options)) for name in ("one", "two")
    ]
    async with one.replica.feed, two.replica.feed:
        yield one, two
        for shown in (one, two):
            shown.context.hub.close()
            await shown.http.aclose()


async def resumed_event(replica: Replica, sandbox: Sandbox) -> None:
    """A newer `resumed` of the provider: a new version without an event of ours."""
    seen = Observation(
        instance_id=sandbox.instance_id or "",
        seen=ObservedStatus.RUNNING,
        at=replica.clock(),
        source=Source.WEBHOOK,
        received_at=replica.clock(),
    )
    await replica.observations.record(seen)


async def claimed(replica: Replica, sandbox: Sandbox) -> None:
    async with replica.claims.hold(sandbox.id, ClaimKind.EXTEND):
        pass


async def confirmed(replica: Replica, sandbox: Sandbox) -> None:
    await replica.store.sandboxes.confirm([sandbox.id], at=replica.clock())


async def active(replica: Replica, sandbox: Sandbox) -> None:
    replica.activities.record(sandbox.id, kind=ActivityClass.INTENT, source="test")
    await replica.activities.flush()


async def looked_at(replica: Replica, sandbox: Sandbox) -> None:
    replica.activities.record(sandbox.id, kind=ActivityClass.PASSIVE, source="test")
    await replica.activities.flush()


async def leased(replica: Replica, sandbox: Sandbox) -> None:
    taken = await replica.leases.acquire(sandbox, holder="test")
    if taken is not None:
        await replica.leases.release(taken[0].id)


async def paused(replica: Replica, sandbox: Sandbox) -> None:
    await replica.lifecycle.pause(sandbox.id, actor="test")


async def woken(replica: Replica, sandbox: Sandbox) -> None:
    wake = await replica.wakes.start(sandbox.id, actor="test")
    await replica.wakes.wait(wake, within_s=5)


async def verified(replica: Replica, sandbox: Sandbox) -> None:
    await replica.verification.verify(sandbox.id)


async def reconciled(replica: Replica, _sandbox: Sandbox) -> None:
    await replica.reconciliation.run()


async def silenced(replica: Replica, sandbox: Sandbox) -> None:
    """The provider does not answer two questions."""
    del sandbox
    get_provider(replica).is_down = True
    for _ in range(FAILURES_MAX):
        await replica.provider_health.check()


async def answered(replica: Replica, sandbox: Sandbox) -> None:
    del sandbox
    get_provider(replica).is_down = False
    await replica.provider_health.check()


def get_provider(replica: Replica) -> DownProvider:
    provider = next(iter(replica.deps.providers))
    assert isinstance(provider, DownProvider)
    return provider


async def extended(replica: Replica, sandbox: Sandbox) -> None:
    await replica.lifecycle.extend(sandbox.id, by_s=4000, actor="test")


WRITERS = [
    resumed_event,
    claimed,
    confirmed,
    active,
    looked_at,
    leased,
    paused,
    woken,
    verified,
    reconciled,
    extended,
    silenced,
    answered,
]


async def find_differences(replicas: tuple[Shown, Shown], name: str) -> set[str]:
    """Return the fields in which status, list, row and stream differ on any replica."""
    for shown in replicas:
        # The background does it at the same intervals as the feed's rounds.
        await shown.replica.provider_health.refresh()
    row = await replicas[0].row(name)
    found: set[str] = set()
    for shown in replicas:
        for other in (
            await shown.status(name),
            await shown.listed(name, row["status"]),
            shown.streamed[name],
        ):
            found.update(key for key in row if row[key] != other.get(key))
    return found


async def check_list_is_status(shown: Shown, name: str) -> None:
    """Check at once, before any round: a list and the status after it never disagree."""
    before = await shown.listed(name)
    status = await shown.status(name)
    after = await shown.listed(name)
    # A round may fall between two of the three, not between each.
    assert status in (before, after)
    compact = await shown.listed(name, fields="compact")
    assert compact.items() <= after.items() or compact.items() <= (await shown.status(name)).items()


async def test_status_list_row_and_stream_agree_after_random_writers(
    keeping_on: MakeOn, database_url: str
) -> None:
    async with showing(keeping_on, database_url) as replicas:
        names: list[str] = []
        loop = asyncio.get_running_loop()

        async def check(steps: list[tuple[int, Any]]) -> None:
            name = f"p{len(names)}"
            names.append(name)
            get_provider(replicas[0].replica).is_down = False
            await replicas[0].replica.provider_health.check()
            sandbox = await replicas[0].replica.create(name)
            streams = [await shown.follow(name) for shown in replicas]
            for writer, write in steps:
                with contextlib.suppress(SandkeeperError):  # A pause of a sleeping one, and such.
                    await write(replicas[writer].replica, sandbox)
                for shown in replicas:
                    await check_list_is_status(shown, name)

            differences: set[str] = set()

            async def agree() -> bool:
                differences.clear()
                differences.update(await find_differences(replicas, name))
                return not differences

            try:
                await eventually(agree, within_s=ROUND_S)
            except AssertionError:
                pytest.fail(f"after {[write.__name__ for _, write in steps]}: {differences}")
            states = {await shown.explained(name) for shown in replicas}
            assert states == {(await replicas[0].row(name))["status"]}
            for stream in streams:
                stream.cancel()

        @settings(
            max_examples=8,
            deadline=None,
            database=None,
            phases=[Phase.generate],  # Each example waits for a round: shrinking takes too long.
            suppress_health_check=list(HealthCheck),
        )
        @given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from(WRITERS)), max_size=6))
        def drive(steps: list[tuple[int, Any]]) -> None:
            asyncio.run_coroutine_threadsafe(check(steps), loop).result(60)

        await asyncio.to_thread(drive)


@pytest.mark.parametrize("verb", ["pause", "extend", "kill"])
async def test_after_a_verb_has_answered_every_replica_shows_it(
    keeping_on: MakeOn, postgres_database: str, verb: str
) -> None:
    async with showing(keeping_on, postgres_database) as (one, two):
        await one.replica.create("shop")
        await two.status("shop")
        # They know each other once each has heard a notice.
        await eventually(lambda: one.replica.feed._peers._heard_at)
        for shown, other in ((one, two), (two, one)) if verb == "extend" else ((one, two),):
            url = f"/api/sandboxes/shop/{verb}" if verb != "kill" else "/api/sandboxes/shop"
            method = "DELETE" if verb == "kill" else "POST"
            body = {"byMs": 4_000_000 if shown is one else 5_000_000} if verb == "extend" else None
            answer = (await shown.http.request(method, url, json=body)).raise_for_status().json()
            status = await other.status("shop")
            keys = ("status", "expiresAt", "label", "reason")
            assert {key: status[key] for key in keys} == {key: answer[key] for key in keys}
            assert status["version"] >= answer["version"]


async def test_a_replica_that_does_not_answer_delays_a_verb_only_a_moment(
    keeping_on: MakeOn, postgres_database: str
) -> None:
    async with showing(keeping_on, postgres_database) as (one, two):
        await eventually(lambda: one.replica.feed._peers._heard_at)
        for task in two.replica.feed._tasks:
            task.cancel()
        assert not await one.replica.feed.wait_until_shown(within_s=0.1)


async def test_activity_on_one_replica_shows_on_another_within_two_seconds(
    keeping_on: MakeOn, database_url: str
) -> None:
    async with showing(keeping_on, database_url) as (one, two):
        await one.replica.create("shop")
        before = await two.status("shop")
        await one.http.post("/api/sandboxes/shop/activity", json={"kind": "intent"})
        await one.replica.activities.flush()

        async def is_shown() -> bool:
            return (await two.status("shop"))["lastActiveAt"] > before["lastActiveAt"]

        # The flush, due each second, was made at once.
        await eventually(is_shown, within_s=2)


async def test_silence_that_one_replica_records_shows_on_the_other_and_in_the_numbers(
    keeping_on: MakeOn, database_url: str
) -> None:
    async with showing(keeping_on, database_url) as (one, two):
        sandbox = await one.replica.create("shop")
        asleep = await one.replica.create("asleep")
        await one.replica.lifecycle.pause(asleep.id, actor="test")
        await two.status("shop")
        stream = await two.follow("shop")
        seen = []
        for write in (silenced, answered):
            await write(one.replica, sandbox)
            await two.replica.provider_health.refresh()
            summary = (await two.http.get("/api/fleet/summary")).raise_for_status().json()
            seen.append(
                (
                    (await two.status("shop"))["status"],
                    (await two.status("asleep"))["status"],
                    two.streamed["shop"]["status"],
                    (await two.listed("shop", "UNKNOWN")).get("status"),
                    {state: count for state, count in summary["states"].items() if count},
                )
            )
        stream.cancel()
        assert seen == [
            ("UNKNOWN", "PAUSED", "UNKNOWN", "UNKNOWN", {"UNKNOWN": 1, "PAUSED": 1}),
            ("RUNNING", "PAUSED", "RUNNING", None, {"RUNNING": 1, "PAUSED": 1}),
        ]
        row = await one.replica.store.sandboxes.get(sandbox.id)
        assert (row.state.value, row.generation) == ("RUNNING", 1)

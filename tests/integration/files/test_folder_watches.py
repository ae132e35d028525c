"""Changes that no act announces are captured soon, and a watch costs and disturbs little."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from sandkeeper.background.checkpoint import DueCaptures
from sandkeeper.background.continuous_capture import ContinuousCapture
from sandkeeper.domain.events import CaptureFailed
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.providers.base import InstanceState
from sandkeeper.services.activity.buffer import ActivityBuffer
from sandkeeper.services.files import folder_watches
from sandkeeper.services.files.folder_watches import FolderWatches
from sandkeeper.services.monitoring.explanation import Explanations
from sandkeeper.services.monitoring.provider_health import ProviderHealth
from support.eventually import eventually
from support.file_fixtures import HOME, Filing, now


class Heard:
    """Counts what a watch reports."""

    def __init__(self, watches: FolderWatches) -> None:
        self.changes: Counter[str] = Counter()
        self.breaks: Counter[str] = Counter()
        watches.listen(on_change=self._change, on_break=self._break)

    def _change(self, sandbox_id: str) -> None:
        self.changes[sandbox_id] += 1

    def _break(self, sandbox_id: str) -> None:
        self.breaks[sandbox_id] += 1


@pytest.fixture
async def watches(filing: Filing) -> AsyncIterator[FolderWatches]:
    made = FolderWatches(filing.deps)
    yield made
    await made.close()


def count_open(filing: Filing) -> float:
    return filing.deps.metrics.folder_watches._value.get()


async def begin_run(filing: Filing, sandbox: Sandbox) -> Sandbox:
    """The sandbox as a resume records it."""
    record = await filing.store.sandboxes.get(sandbox.id)
    started_at = now() + timedelta(seconds=1)
    run = replace(record.run, run_started_at=started_at)
    return await filing.store.sandboxes.save(
        record.evolve(run=run), expect_version=record.version, now=now()
    )


async def test_the_first_change_ends_the_watch_and_says_so_once(
    filing: Filing, watches: FolderWatches
) -> None:
    sandbox, native = await filing.boot()
    heard = Heard(watches)
    await native.commands.run(f"mkdir -p {HOME}/src/deep {HOME}/node_modules/x")
    await watches.ensure(sandbox)
    assert count_open(filing) == 1
    await native.commands.run(f"touch {HOME}/node_modules/x/y && chmod 600 {HOME}/node_modules/x/y")
    await native.files.write(f"{HOME}/src/deep/a.txt", "mine")
    await eventually(lambda: heard.changes[sandbox.id] == 1)
    await native.commands.run(f"for n in 1 2 3; do echo $n > {HOME}/src/$n; done")
    assert (heard.changes[sandbox.id], heard.breaks[sandbox.id]) == (1, 0)
    assert count_open(filing) == 0


async def test_many_changes_of_ignored_files_end_the_watch_too(
    filing: Filing, watches: FolderWatches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_watches, "IGNORED_MAX", 20)
    sandbox, native = await filing.boot()
    heard = Heard(watches)
    await native.commands.run(f"mkdir -p {HOME}/node_modules")
    await watches.ensure(sandbox)
    await native.commands.run(f"for n in $(seq 30); do touch {HOME}/node_modules/$n; done")
    await eventually(lambda: heard.changes[sandbox.id] == 1)


async def test_a_watch_ends_with_a_pause_wakes_nothing_and_is_opened_again_in_the_next_run(
    filing: Filing, watches: FolderWatches
) -> None:
    sandbox, native = await filing.boot()
    heard = Heard(watches)
    assert sandbox.instance_id is not None
    await watches.ensure(sandbox)
    await filing.provider.pause(sandbox.instance_id)
    await eventually(lambda: heard.breaks[sandbox.id] == 1, within_s=20)
    assert (await filing.provider.get(sandbox.instance_id)).state is InstanceState.PAUSED
    assert count_open(filing) == 0

    await filing.provider.connect(sandbox.instance_id, timeout_s=600)
    woken = await begin_run(filing, sandbox)
    await watches.ensure(woken)
    await native.files.write(f"{HOME}/b.txt", "after the pause")
    await eventually(lambda: heard.changes[sandbox.id] == 1)


async def test_a_watch_of_an_earlier_run_is_replaced(
    filing: Filing, watches: FolderWatches
) -> None:
    sandbox, native = await filing.boot()
    heard = Heard(watches)
    await watches.ensure(sandbox)
    await watches.ensure(await begin_run(filing, sandbox))
    assert count_open(filing) == 1
    await native.files.write(f"{HOME}/a.txt", "1")
    await eventually(lambda: heard.changes[sandbox.id] == 1)


async def test_where_no_watch_can_be_opened_the_capture_goes_on(
    filing: Filing, watches: FolderWatches
) -> None:
    sandbox, native = await filing.boot()
    await native.commands.run(f"rmdir {HOME}")
    captures = DueCaptures(filing.deps, filing.files, watches)
    assert await captures.capture(sandbox.id, fresh_s=8) == "unchanged", "there is no such folder"
    assert count_open(filing) == 0


async def test_a_folder_with_too_many_folders_is_captured_by_the_minute_and_explained(
    filing: Filing, watches: FolderWatches
) -> None:
    sandbox, native = await filing.boot()
    await native.commands.run(
        f"cd {HOME} && mkdir node_modules && cd node_modules && seq 4100 | xargs mkdir"
    )
    settings = filing.deps.settings.model_copy(
        update={"capture_min_interval_s": 0.1, "files_checkpoint_s": 3600}
    )
    deps = replace(filing.deps, settings=settings)
    refused = FolderWatches(deps)
    activities = ActivityBuffer(sandboxes=filing.store.sandboxes, clock=filing.deps.clock)
    explanations = Explanations(deps, activities, ProviderHealth(deps), refused.explain)
    capturing = ContinuousCapture(deps, DueCaptures(deps, filing.files, refused), refused)
    assert (await explanations.explain(sandbox.id)).files is None
    capturing.follow(sandbox.id)

    async def is_rare() -> bool:
        return ((await capturing.run()).again_in_s or 0) > 15

    await eventually(is_rare, within_s=90)
    assert refused.find_longest_s(sandbox.id) == 60
    assert (await capturing.run()).again_in_s <= 60
    told = (await explanations.explain(sandbox.id)).files
    assert told is not None
    assert "4096 folders" in told
    assert "about every 1 minute" in told
    capturing.follow(sandbox.id)
    assert (await capturing.run()).again_in_s <= 1, "an act is captured soon all the same"
    await capturing.stop()


async def test_an_edit_after_a_quiet_time_is_captured_without_any_act(
    filing: Filing, watches: FolderWatches
) -> None:
    sandbox, native = await filing.boot()
    settings = filing.deps.settings.model_copy(
        update={"capture_min_interval_s": 0.5, "files_checkpoint_s": 3600}
    )
    deps = replace(filing.deps, settings=settings)
    capturing = ContinuousCapture(deps, DueCaptures(deps, filing.files, watches), watches)
    capturing.follow(sandbox.id)

    async def is_quiet() -> bool:
        return ((await capturing.run()).again_in_s or 0) > 10

    await eventually(is_quiet, within_s=60)
    await native.files.write(f"{HOME}/late.txt", "no act told of it")

    async def is_saved() -> bool:
        await capturing.run()
        kept = (await filing.versions.open(sandbox.owner)).manifest
        return "late.txt" in kept.entries

    await eventually(is_saved, within_s=20)
    await capturing.stop()
    assert count_open(filing) == 0


async def test_a_capture_that_fails_is_explained_until_one_succeeds(
    filing: Filing, watches: FolderWatches
) -> None:
    sandbox, native = await filing.boot()
    captures = DueCaptures(filing.deps, filing.files, watches)
    activities = ActivityBuffer(sandboxes=filing.store.sandboxes, clock=filing.deps.clock)
    health = ProviderHealth(filing.deps)
    explanations = Explanations(filing.deps, activities, health, watches.explain)
    broken = "printf '#!/bin/sh\\nexit 5\\n' > /usr/bin/python3 && chmod 755 /usr/bin/python3"
    away = "mv /usr/bin/python3 /usr/bin/python3-away"
    await native.commands.run(f"{away} && {broken}", user="root")
    for _ in range(3):
        assert await captures.capture(sandbox.id, fresh_s=0) == "failed"
    events = await filing.store.events.of(sandbox.id)
    assert [one.type for one in events].count(CaptureFailed.type) == 1
    told = await explanations.explain(sandbox.id)
    assert told.last_failure is not None
    assert told.last_failure.startswith("Its files could not be captured: ")

    await native.commands.run("mv /usr/bin/python3-away /usr/bin/python3", user="root")
    await native.files.write(f"{HOME}/a.txt", "1")
    assert await captures.capture(sandbox.id, fresh_s=0) == "captured"
    assert (await explanations.explain(sandbox.id)).last_failure is None


async def test_an_instance_that_does_not_run_any_more_is_no_failure(
    filing: Filing, watches: FolderWatches
) -> None:
    sandbox, native = await filing.boot()
    captures = DueCaptures(filing.deps, filing.files, watches)
    await native.kill()
    assert await captures.capture(sandbox.id, fresh_s=8) == "skipped"
    assert (await filing.store.sandboxes.get(sandbox.id)).state is State.RUNNING

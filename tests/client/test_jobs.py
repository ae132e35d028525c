"""Jobs and pools by the clients, against a whole keeper and real sandboxes."""

from __future__ import annotations

import io
import secrets
import sys
import tarfile
from pathlib import Path

import e2b
import e2b_code_interpreter
import pytest

from sandkeeper.client import AsyncSandkeeper, Sandkeeper
from sandkeeper.domain.errors import (
    InvalidRequestError,
    JobNotFoundError,
    JobNotReadyError,
    QuotaExceededError,
    SandkeeperError,
)
from sandkeeper.hosting.local_engine import RunningEngine
from support.engine_process import Engine
from support.eventually import eventually_sync

SERVES = "python3 -m http.server 8000"


def test_a_job_is_built_sleeps_comes_back_and_is_rebuilt(keeper: Sandkeeper) -> None:
    job_id = f"build-ü-{secrets.token_hex(4)}"
    jobs = keeper.jobs
    with pytest.raises(JobNotFoundError):
        jobs.show(job_id)

    made = jobs.create(job_id, port=8000, start_command=SERVES, stage_label="Generating")
    assert (made.job_id, made.status, made.stage_label) == (job_id, "building", "Generating")
    assert jobs.create(job_id).created_at == made.created_at, "the second finds the first one's"
    with pytest.raises(JobNotReadyError):
        jobs.resume(job_id)
    inside = keeper.project(f"job:{job_id}")
    inside.files.write("index.html", "<h1>built</h1>")
    assert jobs.change(job_id, stage_label="Packing").stage_label == "Packing"

    ready = jobs.mark_ready(job_id, build_version="v1")
    assert (ready.status, ready.build_version, ready.sandbox_paused) == ("ready", "v1", True)
    assert jobs.snapshot(job_id).paused
    resumed = jobs.resume(job_id)
    assert resumed.preview_url is not None
    assert resumed.preview_url.startswith("http")
    assert job_id in [job.job_id for job in jobs.list()]

    question = jobs.ask_rebuild(job_id)
    assert question.message == "This will use 1 build credit. Continue?"
    assert question.confirmation is not None
    with pytest.raises(InvalidRequestError):
        jobs.rebuild(job_id, confirmation="")
    with pytest.raises(SandkeeperError) as wrong:
        jobs.rebuild(job_id, confirmation="rb-0.0.forged")
    assert wrong.value.fields["status"] in (400, 409, 422)
    for _ in range(2):  # A confirmation stands for one rebuild, however often it is sent.
        rebuilt = jobs.rebuild(job_id, confirmation=question.confirmation)
        assert rebuilt.rebuild_status == "done"
    assert rebuilt.job is not None
    assert rebuilt.job.sandbox_id != ready.sandbox_id
    with inside.lease() as sandbox:
        assert "built" in sandbox.commands.run("cat $(find /home -name index.html)").stdout
    inside.kill()


async def test_jobs_and_pools_with_an_event_loop(engine: Engine, tmp_path: Path) -> None:
    running = RunningEngine(engine.url, engine.key)
    async with AsyncSandkeeper.embedded(engine=running, data=tmp_path) as keeper:
        made = await keeper.jobs.create(port=None, idle_timeout_s=60)
        assert made.job_id
        failed = await keeper.jobs.change(made.job_id, error_message="no such module")
        assert (failed.status, failed.error_message) == ("failed", "no such module")
        assert [job.status async for job in keeper.jobs.list()] == ["failed"]
        with pytest.raises(InvalidRequestError):
            await keeper.jobs.show("a/b")
        assert await keeper.pools.list() == []
        pool = await keeper.pools.set("base", 0)
        assert (pool.target, pool.stopped) == (0, False)
        with pytest.raises(InvalidRequestError):
            await keeper.pools.set("base", -1)
        await keeper.project(f"job:{made.job_id}").kill()


def test_a_pool_is_set_filled_and_emptied(keeper: Sandkeeper) -> None:
    assert keeper.pools.set("base", 1).target == 1

    def ready() -> int:
        return next(pool.ready for pool in keeper.pools.list() if pool.template == "base")

    eventually_sync(lambda: ready() == 1, within_s=60)
    keeper.pools.set("base", 0)
    eventually_sync(lambda: ready() == 0, within_s=60)


def test_a_quota_is_set_kept_to_and_removed(keeper: Sandkeeper) -> None:
    tenant = f"tenant-{secrets.token_hex(4)}"
    quota = keeper.quotas.set(tenant, kept=0)
    assert (quota.kept.limit, quota.kept.used, quota.running.limit) == (0, 0, None)
    with pytest.raises(QuotaExceededError, match="0 of 0 sandboxes kept"):
        keeper.project(f"full-{secrets.token_hex(4)}").create(tenant=tenant)
    with pytest.raises(InvalidRequestError):
        keeper.quotas.set(tenant, kept=-1)
    with pytest.raises(InvalidRequestError):
        keeper.quotas.set("no such name", kept=1)
    assert tenant in {quota.tenant for quota in keeper.quotas.list()}
    keeper.quotas.set(tenant)
    assert tenant not in {quota.tenant for quota in keeper.quotas.list()}
    assert {place.region for place in keeper.quotas.capacity()} == {"local"}


def test_an_archive_is_kept_and_replaces_what_was_there(keeper: Sandkeeper) -> None:
    project = keeper.project(f"archive-{secrets.token_hex(4)}")
    project.create()
    project.files.write("old.txt", "old")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo("src/new.txt")
        entry.size = 3
        archive.addfile(entry, io.BytesIO(b"new"))

    edit = project.files.write_archive(packed.getvalue(), replace=True)
    assert edit.changed >= 2, "a capture in between adds what the base put into the folder"

    assert [file.path for file in project.files.list()] == ["src/new.txt"]
    assert project.files.read("src/new.txt") == b"new"
    project.kill()


def test_a_lease_runs_code_where_the_sdk_for_that_is_installed(
    keeper: Sandkeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = f"user-{secrets.token_hex(4)}"
    with keeper.lease(user, "code") as sandbox:
        assert isinstance(sandbox, e2b_code_interpreter.Sandbox)
        sandbox.run_code("kept = 40")
    with keeper.lease(user, "code") as sandbox:
        assert sandbox.run_code("kept + 2").text == "42", "the next lease finds the variables"
    monkeypatch.setitem(sys.modules, "e2b_code_interpreter", None)
    with keeper.lease(user, "code") as plain:
        assert type(plain) is e2b.Sandbox
        assert plain.commands.run("echo plain").stdout == "plain\n"
    for session in keeper.sessions.list(user_id=user):
        keeper.sessions.close(session.id)


async def test_a_lease_runs_code_with_an_event_loop(engine: Engine, tmp_path: Path) -> None:
    running = RunningEngine(engine.url, engine.key)
    async with AsyncSandkeeper.embedded(engine=running, data=tmp_path) as keeper:
        async with keeper.lease("ada", "code") as sandbox:
            assert isinstance(sandbox, e2b_code_interpreter.AsyncSandbox)
            assert (await sandbox.run_code("6 * 7")).text == "42"
        async for session in keeper.sessions.list():
            await keeper.sessions.close(session.id)

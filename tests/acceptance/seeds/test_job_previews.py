"""Snippets of the plan for job previews: snapshot, resume, the error's form and the words."""

from __future__ import annotations

import asyncio
import logging
import sys
from types import ModuleType
from typing import Any

import httpx
import pytest
from e2b import AsyncSandbox

from support.databases import on_both_databases
from support.eventually import eventually_sync
from support.keeper_process import Keeper

pytestmark = on_both_databases

WORDS = {
    "paused_title": "Your preview is sleeping.",
    "resume": "Resume preview",
    "resuming": "Resuming preview...",
    "failed_title": "Resume failed",
    "rebuild": "Rebuild",
    "confirm_rebuild": "This will use 1 build credit. Continue?",
}


STATUS = """
    job_id: str
    status: str
    stage_label: str
    preview_url: str | None = None
    build_version: str | None = None
    error_message: str | None = None
    debug_id: str | None = None
    sandbox_expires_at: str | None = None
    sandbox_paused: bool = False  # NEW
"""

BETA_PAUSE = """
class E2BSandboxRuntime(GivenRuntime):
    async def beta_pause(self) -> bool:
        if not self._sandbox:
            return False
        try:
            await self._sandbox.beta_pause()
            return True
        except Exception as e:
            logger.warning("beta_pause() failed (Hobby tier or other): %s", e)
            return False
"""

RESUME_SERVICE = """
import asyncio
import logging
from e2b.exceptions import NotFoundException
from app.sandbox.e2b_runtime import E2BSandboxRuntime
from app.core.exceptions import SandboxError

logger = logging.getLogger(__name__)

RESUME_TIMEOUT_SECONDS = 3600


async def resume_sandbox(
    sandbox_id: str,
    workspace_path: str,
) -> str:
    last_exc = None
    for attempt in range(2):
        try:
            runtime = E2BSandboxRuntime()
            await runtime.connect(sandbox_id)
            await runtime.set_timeout(RESUME_TIMEOUT_SECONDS)  # belt-and-suspenders

            # Kill lingering processes before restarting dev server
            if runtime._sandbox:
                try:
                    processes = await runtime._sandbox.commands.list()
                    for proc in processes:
                        await runtime._sandbox.commands.kill(proc.pid)
                except Exception:
                    pass

            preview_url = await runtime.start_dev_server(workspace_path=workspace_path)
            return preview_url

        except NotFoundException as exc:
            last_exc = exc
            if attempt == 0:
                await asyncio.sleep(5)
        except Exception as exc:
            last_exc = exc
            if attempt == 0:
                await asyncio.sleep(5)

    # Classify for user-facing error
    if isinstance(last_exc, NotFoundException) or (
        last_exc and "not found" in str(last_exc).lower()
    ):
        raise SandboxError("sandbox_expired: Sandbox has expired. Files are no longer available.")
    raise SandboxError("sandbox_unreachable: Sandbox could not be resumed. It may be corrupted.")
"""


def make_ready(api: httpx.Client, job: str) -> None:
    made = api.post("/api/generation", json={"job_id": job, "port": None})
    assert made.status_code == 201, made.text
    path = f"/api/sandboxes/job:{job}/status"
    assert eventually_sync(lambda: api.get(path).json()["status"] == "RUNNING")
    assert api.post(f"/api/generation/{job}/ready", json={}).is_success


@pytest.fixture
def host_application(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The modules that the document's code imports, over the local engine."""
    options = keeper.sdk_options()

    class GivenRuntime:
        _sandbox: AsyncSandbox | None = None

        async def connect(self, sandbox_id: str) -> None:
            self._sandbox = await AsyncSandbox.connect(sandbox_id, timeout=3600, **options)

        async def set_timeout(self, seconds: int) -> None:
            assert self._sandbox is not None
            await self._sandbox.set_timeout(seconds)

        async def start_dev_server(self, workspace_path: str) -> str:
            assert self._sandbox is not None
            await self._sandbox.commands.run(
                "python3 -m http.server 3000", background=True, cwd=workspace_path
            )
            return f"https://{self._sandbox.get_host(3000)}"

    names: dict[str, Any] = {"GivenRuntime": GivenRuntime, "logger": logging.getLogger("host")}
    exec(BETA_PAUSE, names)
    runtime, errors = ModuleType("app.sandbox.e2b_runtime"), ModuleType("app.core.exceptions")
    vars(runtime)["E2BSandboxRuntime"] = names["E2BSandboxRuntime"]
    vars(errors)["SandboxError"] = type("SandboxError", (Exception,), {})
    folders = [ModuleType(name) for name in ("app", "app.sandbox", "app.core")]
    for module in (*folders, runtime, errors):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(RESUME_SERVICE, names)
    return names


def test_the_documents_own_pause_and_resume_run_as_they_stand(
    keeper: Keeper, host_application: dict[str, Any]
) -> None:
    async def pause_and_resume() -> None:
        sandbox = await AsyncSandbox.create("base", timeout=300, **keeper.sdk_options())
        await sandbox.files.write("/home/user/project/index.html", "kept")
        runtime = host_application["E2BSandboxRuntime"]()
        assert await runtime.beta_pause() is False
        await runtime.connect(sandbox.sandbox_id)
        assert await runtime.beta_pause() is True
        assert await runtime.beta_pause() is True, "a second pause is no error"
        resume = host_application["resume_sandbox"]
        url = await resume(sandbox.sandbox_id, "/home/user/project")
        assert url.startswith("https://3000-")
        assert await sandbox.files.read("/home/user/project/index.html") == "kept"
        left = (await sandbox.get_info()).end_at - (await sandbox.get_info()).started_at
        assert left.total_seconds() > 3000
        await sandbox.kill()
        host_application["asyncio"] = _Hurried()
        with pytest.raises(Exception, match="sandbox_expired: "):
            await resume(sandbox.sandbox_id, "/home/user/project")

    asyncio.run(pause_and_resume())


class _Hurried:
    """The document's five seconds between two attempts, without the wait."""

    async def sleep(self, seconds: float) -> None:
        assert seconds == 5


@pytest.mark.parametrize("prefix", ["generation", "jobs"])
def test_the_status_has_every_field_of_the_plan(
    api: httpx.Client, project: str, prefix: str
) -> None:
    make_ready(api, project)
    wanted = {line.split(":")[0].strip() for line in STATUS.strip().splitlines()}
    status = api.get(f"/api/{prefix}/{project}/status").json()
    assert wanted <= set(status)
    assert api.post(f"/api/{prefix}/{project}/snapshot").status_code == 200
    card = next(one for one in api.get("/api/dashboard").json()["jobs"] if one["job_id"] == project)
    assert (card["status"], card["sandbox_paused"]) == ("ready", True)


def test_only_a_ready_job_of_ours_has_a_snapshot_and_a_resume(
    api: httpx.Client, project: str
) -> None:
    made = api.post("/api/generation", json={"job_id": project, "port": None})
    assert made.status_code == 201
    assert api.post(f"/api/generation/{project}/snapshot").status_code == 422
    for verb in ("snapshot", "resume"):
        assert api.post(f"/api/generation/no-such-job/{verb}").status_code == 404


def test_the_words(api: httpx.Client) -> None:
    told = api.get("/api/presentation").json()["job"]
    assert {name: told[name] for name in WORDS} == WORDS


def test_a_snapshot_is_idempotent_and_a_resume_gives_the_address(
    api: httpx.Client, project: str
) -> None:
    make_ready(api, project)
    for _ in range(2):
        snapshot = api.post(f"/api/generation/{project}/snapshot")
        assert snapshot.status_code == 200
        assert snapshot.json()["job_id"] == project
        assert snapshot.json()["paused"] is True
    status = api.get(f"/api/generation/{project}/status").json()
    assert (status["status"], status["sandbox_paused"]) == ("ready", True)
    resumed = api.post(f"/api/generation/{project}/resume")
    assert resumed.status_code == 200, resumed.text
    assert set(resumed.json()) == {"preview_url", "sandbox_id"}
    assert api.get(f"/api/generation/{project}/status").json()["sandbox_paused"] is False


def test_a_resume_that_failed_says_why_where_the_plan_reads_it(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    make_ready(api, project)
    assert api.post(f"/api/generation/{project}/snapshot").json()["paused"] is True
    sandbox = api.get(f"/api/sandboxes/job:{project}/status").json()
    with keeper.engine_client() as engine:
        assert engine.delete(f"/sandboxes/{sandbox['instanceId']}").status_code == 204
    failed = api.post(f"/api/generation/{project}/resume")
    assert failed.status_code == 503, failed.text
    assert failed.json()["detail"]["error_type"] == "sandbox_expired"
    assert failed.json()["detail"]["message"]

    def both_say_the_same() -> bool:
        """Whether they do, which the arrival of the kill's event may change between the two."""
        said = api.post(f"/api/generation/{project}/resume").json()["detail"]["message"]
        done = keeper.run("resume", project, check=False)
        assert done.returncode != 0
        return said in done.stderr

    assert eventually_sync(both_say_the_same)

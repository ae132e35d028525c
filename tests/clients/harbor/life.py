"""A benchmark's environment: a Dockerfile is built, a task is uploaded, run and fetched."""

import asyncio
import logging
import tempfile
from pathlib import Path

import e2b
from harbor.environments.e2b import E2BEnvironment
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths

DOCKERFILE = """\
FROM e2bdev/base
WORKDIR /app
COPY task.txt /app/task.txt
RUN echo built > /app/built.txt
"""


async def live(folder: Path) -> None:
    (folder / "environment").mkdir()
    (folder / "environment" / "Dockerfile").write_text(DOCKERFILE)
    (folder / "environment" / "task.txt").write_text("the task")
    trial = TrialPaths(folder / "trial")
    trial.mkdir()
    environment = E2BEnvironment(
        environment_dir=folder / "environment",
        environment_name="a-task",
        session_id="trial-1",
        trial_paths=trial,
        task_env_config=EnvironmentConfig(),
        logger=logging.getLogger("harbor"),
    )
    E2BEnvironment.preflight()
    await environment.start(force_build=False)
    name = environment._sandbox.sandbox_id
    print("create")

    ran = await environment.exec("cat task.txt built.txt; exit 3")
    assert (ran.stdout, ran.return_code) == ("the taskbuilt\n", 3), ran
    print("run")

    (folder / "tests" / "deep").mkdir(parents=True)
    (folder / "tests" / "deep" / "test.sh").write_text("echo passed")
    await environment.ensure_dirs(["/logs/verifier"])
    await environment.upload_dir(folder / "tests", "/tests")
    ran = await environment.exec("bash /tests/deep/test.sh > /logs/verifier/out")
    assert ran.return_code == 0, ran
    await environment.download_dir("/logs", folder / "logs")
    assert (folder / "logs" / "verifier" / "out").read_text() == "passed\n"
    assert await environment.is_dir("/tests/deep")
    print("files")

    await environment._sandbox.pause()
    environment._sandbox = await e2b.AsyncSandbox.connect(name)
    assert (await environment.exec("cat /app/task.txt")).stdout == "the task"
    print("pause")

    await environment.stop(delete=True)
    assert not await e2b.AsyncSandbox.kill(name)
    print("kill")


with tempfile.TemporaryDirectory() as made:
    asyncio.run(live(Path(made)))

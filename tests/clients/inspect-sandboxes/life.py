"""An evaluation's sandbox: from a Dockerfile, with standard input, files and typed errors."""

import asyncio
import tempfile
from pathlib import Path

import e2b
from inspect_sandboxes.e2b._e2b import E2BSandboxEnvironment

DOCKERFILE = """\
FROM e2bdev/base
RUN echo built > /built.txt
"""


async def live(dockerfile: str) -> None:
    await E2BSandboxEnvironment.task_init("task", dockerfile)
    environments = await E2BSandboxEnvironment.sample_init("task", dockerfile, {})
    (environment,) = environments.values()
    name = environment.sandbox.sandbox_id
    print("create")

    ran = await environment.exec(["cat", "/built.txt", "-"], input="typed")
    assert (ran.stdout, ran.success) == ("built\ntyped", True), ran
    look = ["sh", "-c", "echo $A; id -un; pwd; exit 3"]
    ran = await environment.exec(look, env={"A": "1"}, cwd="/tmp")
    assert (ran.stdout, ran.returncode) == ("1\nroot\n/tmp\n", 3), ran
    try:
        await environment.exec(["sleep", "60"], timeout=1, timeout_retry=False)
    except TimeoutError:
        print("run")

    await environment.write_file("/deep/in/note.txt", "kept")
    assert await environment.read_file("/deep/in/note.txt") == "kept"
    await environment.write_file("/blob", b"\xff\x00")
    assert await environment.read_file("/blob", text=False) == b"\xff\x00"
    for path, error in (("/none", FileNotFoundError), ("/deep", IsADirectoryError)):
        try:
            await environment.read_file(path)
        except error:
            continue
        raise AssertionError(f"{path} was read")
    print("files")

    await environment.sandbox.pause()
    environment.sandbox = await e2b.AsyncSandbox.connect(name)
    assert await environment.read_file("/deep/in/note.txt") == "kept"
    print("pause")

    await E2BSandboxEnvironment.sample_cleanup("task", dockerfile, environments, interrupted=False)
    await E2BSandboxEnvironment.task_cleanup("task", dockerfile, cleanup=True)
    assert not await e2b.AsyncSandbox.kill(name)
    print("kill")


with tempfile.TemporaryDirectory() as made:
    Path(made, "Dockerfile").write_text(DOCKERFILE)
    asyncio.run(live(str(Path(made, "Dockerfile"))))

"""What every backend promises, on every provider."""

from __future__ import annotations

import asyncio
import secrets
import shlex
from collections.abc import Callable
from pathlib import Path

import e2b
import pytest

from sandkeeper.domain.errors import (
    InstanceGoneError,
    InvalidRequestError,
    ProviderRefusedError,
    SandkeeperError,
)
from sandkeeper.integrations.backend import (
    AgentSetupFailedError,
    Backend,
    BackendConfig,
    BackendNotReadyError,
    CloneFailedError,
    CommandFailedError,
    CommandTimedOutError,
    NoSuchFileError,
    OutputTooLongError,
    Repository,
    connect_backend,
    create_backend,
)
from sandkeeper.integrations.backend.factory import BackendKind
from support.eventually import eventually

SERVER = Path(__file__).with_name("git_server.py")
MAKE_REPOSITORY = """
set -e
mkdir -p /tmp/served/app && cd /tmp/served/app
git init -q -b main . && git config user.email a@example.org && git config user.name A
echo one > README && git add . && git commit -q -m one
git checkout -q -b feature && echo two > FEATURE && git add . && git commit -q -m two
git checkout -q main && git update-server-info
"""


async def test_a_command_gives_its_output_and_a_failing_one_an_error_with_all_of_it(
    kind: BackendKind, make_config: Callable[..., BackendConfig]
) -> None:
    config = make_config(env={"COLOUR": "blue"}, metadata={"made-by": "a test"}, output_max=100_000)
    async with create_backend(kind, config) as backend:
        said = await backend.exec("echo $COLOUR $SHAPE; pwd; echo low >&2", env={"SHAPE": "round"})
        assert said.stdout == "blue round\n/home/user/project\n"
        assert said.stderr == "low\n"

        with pytest.raises(CommandFailedError) as failed:
            await backend.exec("echo some; echo more >&2; exit 7")
        error = failed.value
        assert (error.exit_code, error.stdout, error.stderr) == (7, "some\n", "more\n")
        for part in ("7", "some", "more"):
            assert part in str(error)
        assert (await backend.exec("exit 3", check=False)).exit_code == 3

        with pytest.raises(CommandTimedOutError) as late:
            await backend.exec("echo begun; exec sleep 61", timeout_s=1)
        assert late.value.stdout == "begun\n"
        with pytest.raises(OutputTooLongError) as long:
            await backend.exec("exec yes")
        assert len(long.value.stdout) == 100_000
        await eventually(lambda: _count(backend, "sleep 61|^yes"), within_s=20)

        with pytest.raises(InvalidRequestError):
            await backend.exec(" ")


async def _count(backend: Backend, pattern: str) -> bool:
    """True when no such command is left."""
    found = await backend.exec(f"ps -eo args | grep -E {shlex.quote(pattern)} | grep -v grep || :")
    return not found.stdout


async def test_files_are_written_read_and_listed_from_the_work_folder(
    kind: BackendKind, make_config: Callable[..., BackendConfig]
) -> None:
    content = secrets.token_bytes(70_000)
    async with create_backend(kind, make_config()) as backend:
        await backend.write_file("deep/er/data.bin", content)
        await backend.write_file("/tmp/ünïcode name.txt", "grüße")
        assert await backend.read_file("/home/user/project/deep/er/data.bin") == content
        assert (await backend.read_file("/tmp/ünïcode name.txt")).decode() == "grüße"

        await backend.write_file("a.txt", "a")
        listed = {one.name: one for one in await backend.list_files()}
        assert list(listed) == ["a.txt", "deep"]
        assert (listed["deep"].is_dir, listed["a.txt"].is_dir) == (True, False)
        assert listed["a.txt"].size == 1
        assert listed["a.txt"].path == "/home/user/project/a.txt"

        with pytest.raises(NoSuchFileError):
            await backend.read_file("nothing")
        with pytest.raises(NoSuchFileError):
            await backend.list_files("nowhere")


async def test_teardown_may_be_repeated_and_finds_the_sandbox_gone(
    kind: BackendKind, make_config: Callable[..., BackendConfig]
) -> None:
    backend = create_backend(kind, make_config())
    await backend.teardown()
    with pytest.raises(BackendNotReadyError):
        await backend.exec("true")
    await backend.setup()
    await backend.setup()
    sandbox_id = backend.sandbox_id
    assert sandbox_id
    await backend.native.kill()
    with pytest.raises(SandkeeperError):
        await backend.exec("true")
    await backend.teardown()
    await backend.teardown()
    with pytest.raises(InstanceGoneError):
        await connect_backend(sandbox_id, kind, make_config())


async def test_a_sandbox_is_taken_up_again_by_its_id_also_when_it_sleeps(
    kind: BackendKind, make_config: Callable[..., BackendConfig]
) -> None:
    first = create_backend(kind, make_config(agent_script="echo prepared >> prepared"))
    await first.setup()
    sandbox_id = first.sandbox_id
    assert sandbox_id
    try:
        await first.write_file("kept", "here")
        await first.set_timeout(200)
        await first.pause()
        second = await connect_backend(sandbox_id, kind, make_config())
        assert await second.read_file("kept") == b"here"
        await second.close()
        third = await connect_backend(
            sandbox_id, kind, make_config(agent_script="echo again >> prepared")
        )
        await third.setup()
        assert await third.read_file("prepared") == b"prepared\n", "set up once and not twice"
    finally:
        await (await connect_backend(sandbox_id, kind, make_config())).teardown()


async def test_a_set_up_that_fails_leaves_no_sandbox(
    kind: BackendKind, make_config: Callable[..., BackendConfig]
) -> None:
    mark = secrets.token_hex(8)
    script = "echo working; echo 'no such tool' >&2; exit 5"
    backend = create_backend(kind, make_config(agent_script=script, metadata={"mark": mark}))
    with pytest.raises(AgentSetupFailedError) as failed:
        await backend.setup()
    assert (failed.value.exit_code, failed.value.stderr) == (5, "no such tool\n")
    assert backend.sandbox_id is None

    with pytest.raises(CloneFailedError):
        await create_backend(
            kind,
            make_config(metadata={"mark": mark}, repository=Repository("/tmp/no-such-repository")),
        ).setup()
    with pytest.raises(ProviderRefusedError):
        await create_backend(kind, make_config(template=f"no-such-{mark}")).setup()

    hanging = create_backend(kind, make_config(agent_script="sleep 60", metadata={"mark": mark}))
    setting_up = asyncio.create_task(hanging.setup())
    await eventually(lambda: hanging.sandbox_id is not None, within_s=60)
    setting_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await setting_up

    async with create_backend(kind, make_config()) as other:
        options = await other._get_options()  # type: ignore[attr-defined]
        pages = e2b.AsyncSandbox.list(query=e2b.SandboxQuery(metadata={"mark": mark}), **options)
        assert await pages.next_items() == []


async def test_a_private_repository_is_cloned_and_its_token_stays_nowhere(
    kind: BackendKind, make_config: Callable[..., BackendConfig]
) -> None:
    """The server is inside the sandbox, so that the test needs no network."""
    token = f"ghp_{secrets.token_hex(12)}"
    url = "http://127.0.0.1:8377/app/.git"
    async with create_backend(kind, make_config(workdir="/home/user")) as host:
        assert host.sandbox_id
        await host.exec(MAKE_REPOSITORY)
        await host.write_file("/tmp/git_server.py", SERVER.read_text())
        await host.native.commands.run(
            f"python3 /tmp/git_server.py /tmp/served 8377 {token} /tmp/report", background=True
        )
        await eventually(lambda: _answers(host), within_s=60)
        await host.exec("rm -f /tmp/.sandkeeper-setup")

        async def clone(repository: Repository, into: str) -> Backend:
            config = make_config(workdir=f"/home/user/{into}", repository=repository)
            backend = await connect_backend(host.sandbox_id or "", kind, config)
            try:
                await backend.setup()
            finally:
                await backend.close()
            await host.exec("rm -f /tmp/.sandkeeper-setup")
            return backend

        with pytest.raises(CloneFailedError) as refused:
            await clone(Repository(url), "refused")
        assert refused.value.exit_code == 128

        repository = Repository(url, branch="feature", token=token)
        assert token not in repr(make_config(repository=repository))
        await clone(repository, "by-token")
        await clone(Repository(url.replace("//", f"//x-access-token:{token}@")), "by-url")
        with pytest.raises(CloneFailedError) as wrong:
            await clone(Repository(url, token=f"{token}x"), "wrong")
        assert token not in str(wrong.value)

        assert (await host.exec("git -C by-token branch --show-current")).stdout == "feature\n"
        assert await host.read_file("by-token/FEATURE") == b"two\n"
        assert await host.read_file("by-url/README") == b"one\n"
        left = await host.exec(
            f"cat /tmp/report; grep -rl {token} by-token by-url .gitconfig .git-credentials "
            "2>/dev/null; git -C by-token config --list --show-origin | grep -i credential",
            check=False,
        )
        assert left.stdout == ""


async def _answers(host: Backend) -> bool:
    said = await host.exec(
        "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8377/ || :", check=False
    )
    return said.stdout == "401"


@pytest.mark.parametrize(
    "repository",
    [
        Repository("--upload-pack=touch /tmp/owned"),
        Repository("https://example.org/a.git", branch="-x"),
        Repository("https://example.org/a.git\nmore"),
        Repository("git@example.org:a.git", token="t"),
    ],
)
def test_what_git_would_misunderstand_is_refused(repository: Repository) -> None:
    from sandkeeper.integrations.backend.cloning import plan_clone

    with pytest.raises(InvalidRequestError):
        plan_clone(repository, "/home/user/project")


def test_an_unknown_kind_is_told_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequestError, match="use one of: e2b, local"):
        create_backend("docker")  # type: ignore[arg-type]


async def test_an_engine_is_started_when_none_runs_and_shared_and_ends_with_its_last_user(
    tmp_path: Path,
) -> None:
    config = BackendConfig(data=tmp_path / "engine")
    first, second = create_backend("local", config), create_backend("local", config)
    await first.setup()
    await second.setup()
    url = (tmp_path / "engine" / "engine.url").read_text().strip()
    sandbox_id = first.sandbox_id
    assert sandbox_id
    await first.write_file("kept", "over the engine's end")
    await first.close()
    assert (await second.exec("echo still")).stdout == "still\n"
    await second.teardown()
    again = await connect_backend(sandbox_id, "local", config)
    try:
        assert (tmp_path / "engine" / "engine.url").read_text().strip() != url
        assert await again.read_file("kept") == b"over the engine's end"
    finally:
        await again.teardown()

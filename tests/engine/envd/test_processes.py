"""Processes, through the official SDK and, where it hides the wire, through the wire itself."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2b import (
    AsyncSandbox,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    SandboxException,
    TimeoutException,
)

from sandkeeper.engine.sandboxes.routing import RunningSandbox
from support.eventually import eventually
from support.runtime_server import RuntimeServer, open_runtime_server

pytestmark = pytest.mark.asyncio(loop_scope="module")


def envelope(message: dict[str, Any]) -> bytes:
    data = json.dumps(message).encode()
    return b"\0" + len(data).to_bytes(4, "big") + data


async def events(response: httpx.Response) -> AsyncIterator[tuple[int, dict[str, Any]]]:
    """Return each message of a Connect stream, with its flags."""
    held = b""
    async for data in response.aiter_bytes():
        held += data
        while len(held) >= 5 and len(held) >= 5 + int.from_bytes(held[1:5], "big"):
            end = 5 + int.from_bytes(held[1:5], "big")
            yield held[0], json.loads(held[5:end])
            held = held[end:]


def stream(
    runtime_server: RuntimeServer,
    running: RunningSandbox,
    method: str,
    message: dict[str, Any],
    **more: str,
) -> Any:
    return httpx.AsyncClient(timeout=60).stream(
        "POST",
        f"{runtime_server.url}/process.Process/{method}",
        content=envelope(message),
        headers={
            **runtime_server.headers(running),
            "Content-Type": "application/connect+json",
            "Connect-Protocol-Version": "1",
            **more,
        },
    )


def find_running(runtime_server: RuntimeServer, sandbox: AsyncSandbox) -> RunningSandbox:
    return runtime_server.sandboxes.present[sandbox.sandbox_id]


async def test_a_command_gives_its_output_and_its_environment(sandbox: AsyncSandbox) -> None:
    done = await sandbox.commands.run(
        "echo $COLOUR $MINE $USER $HOME $E2B_SANDBOX; pwd; echo no >&2", envs={"MINE": "blue"}
    )

    assert done.stdout == "green blue user /home/user true\n/home/user\n"
    assert done.stderr == "no\n"


async def test_bytes_that_are_no_text_become_replacement_marks(sandbox: AsyncSandbox) -> None:
    done = await sandbox.commands.run(r"printf 'a\xffb'")

    assert done.stdout == "a�b"


async def test_a_failing_command_tells_its_exit_code(sandbox: AsyncSandbox) -> None:
    with pytest.raises(CommandExitException) as failed:
        await sandbox.commands.run("echo oh; exit 7")

    assert failed.value.exit_code == 7
    assert failed.value.stdout == "oh\n"
    assert failed.value.error == "exit status 7"


async def test_root_is_served_on_request_and_strangers_are_not(sandbox: AsyncSandbox) -> None:
    assert (await sandbox.commands.run("id -un; pwd", user="root")).stdout == "root\n/root\n"
    with pytest.raises(Exception, match="invalid username: 'eve'"):
        await sandbox.commands.run("id", user="eve")


async def test_the_folder_to_run_in_is_checked(sandbox: AsyncSandbox) -> None:
    await sandbox.files.make_dir("work/here")
    assert (await sandbox.commands.run("pwd", cwd="work/here")).stdout == "/home/user/work/here\n"
    with pytest.raises(InvalidArgumentException, match="cwd '/not/there' does not exist"):
        await sandbox.commands.run("pwd", cwd="/not/there")
    with pytest.raises(InvalidArgumentException, match="null byte"):
        await sandbox.commands.run("echo a\0b")
    for name in ("A\0B", "A=B", ""):
        with pytest.raises(InvalidArgumentException):
            await sandbox.commands.run("true", envs={name: "x"})


async def test_a_process_is_listed_found_again_and_killed(sandbox: AsyncSandbox) -> None:
    handle = await sandbox.commands.run("echo up; exec sleep 1000", background=True, timeout=0)
    listed = await sandbox.commands.list()
    assert [(it.pid, it.cmd, it.args[-1]) for it in listed] == [
        (handle.pid, "/bin/bash", "echo up; exec sleep 1000")
    ]

    again = await sandbox.commands.connect(handle.pid)
    assert await sandbox.commands.kill(handle.pid)

    with pytest.raises(CommandExitException) as ended:
        await again.wait()
    assert ended.value.exit_code == -1
    assert ended.value.error == "signal: killed"
    assert not await sandbox.commands.kill(handle.pid)
    assert await sandbox.commands.list() == []
    with pytest.raises(NotFoundException):
        await sandbox.commands.connect(999_999)


async def test_input_reaches_a_process_and_can_be_ended(sandbox: AsyncSandbox) -> None:
    handle = await sandbox.commands.run("cat; echo over", background=True, stdin=True)
    await sandbox.commands.send_stdin(handle.pid, "one\n")
    large = "x" * 300_000
    await sandbox.commands.send_stdin(handle.pid, large + "\n")
    await sandbox.commands.close_stdin(handle.pid)

    assert (await handle.wait()).stdout == f"one\n{large}\nover\n"


async def test_a_process_without_input_refuses_it(sandbox: AsyncSandbox) -> None:
    handle = await sandbox.commands.run("cat; exec sleep 1000", background=True, stdin=False)
    with pytest.raises(SandboxException, match="stdin not enabled or closed"):
        await sandbox.commands.send_stdin(handle.pid, "one\n")
    await handle.kill()


async def test_the_time_limit_ends_the_process(sandbox: AsyncSandbox) -> None:
    with pytest.raises(TimeoutException):
        await sandbox.commands.run("exec sleep 1000", timeout=1)

    async def is_gone() -> bool:
        return await sandbox.commands.list() == []

    await eventually(is_gone)


async def test_a_client_that_leaves_does_not_end_the_process(sandbox: AsyncSandbox) -> None:
    handle = await sandbox.commands.run(
        "sleep 1; echo late > late; exec sleep 1000", background=True, timeout=0
    )
    await handle.disconnect()

    async def is_written() -> bool:
        return await sandbox.files.exists("late")

    await eventually(is_written)
    assert [it.pid for it in await sandbox.commands.list()] == [handle.pid]


async def test_a_terminal_has_a_size_that_can_change(sandbox: AsyncSandbox) -> None:
    seen: list[bytes] = []
    terminal = await sandbox.pty.create(
        size=_size(31, 7), on_data=lambda data: seen.append(bytes(data)), timeout=0
    )
    await sandbox.pty.send_stdin(terminal.pid, b"stty size\n")
    await eventually(lambda: b"7 31" in b"".join(seen))
    await sandbox.pty.resize(terminal.pid, _size(100, 40))
    await sandbox.pty.send_stdin(terminal.pid, b"stty size; exit 3\n")

    with pytest.raises(CommandExitException) as ended:
        await terminal.wait()
    assert ended.value.exit_code == 3
    assert b"40 100" in b"".join(seen)


def _size(columns: int, rows: int) -> Any:
    from e2b import PtySize

    return PtySize(rows=rows, cols=columns)


async def test_a_silent_process_is_kept_alive_and_one_just_ended_still_answers(
    runtime_server: RuntimeServer, sandbox: AsyncSandbox
) -> None:
    running = find_running(runtime_server, sandbox)
    request = {"process": {"cmd": "/bin/sh", "args": ["-c", "sleep 3; exit 5"]}, "tag": "quiet"}
    seen = []
    async with stream(
        runtime_server, running, "Start", request, **{"Keepalive-Ping-Interval": "1"}
    ) as answer:
        seen = [message async for _, message in events(answer)]
    kinds = [next(iter(message["event"])) for message in seen if "event" in message]
    assert kinds[0] == "start"
    assert "keepalive" in kinds
    assert kinds[-1] == "end"

    async with stream(runtime_server, running, "Connect", {"process": {"tag": "quiet"}}) as answer:
        again = [message async for _, message in events(answer)]
    assert again[0] == seen[0]
    assert again[1]["event"]["end"] == {
        "exitCode": 5,
        "exited": True,
        "status": "exit status 5",
        "error": "exit status 5",
    }
    assert again[2] == {}


async def test_input_can_be_streamed(runtime_server: RuntimeServer, sandbox: AsyncSandbox) -> None:
    running = find_running(runtime_server, sandbox)
    handle = await sandbox.commands.run("head -c 6", background=True, stdin=True)
    pieces = [
        envelope({"start": {"process": {"pid": handle.pid}}}),
        envelope({"keepalive": {}}),
        *(
            envelope({"data": {"input": {"stdin": base64.b64encode(it).decode()}}})
            for it in (b"abc", b"def")
        ),
    ]

    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(
            f"{runtime_server.url}/process.Process/StreamInput",
            content=body(),
            headers={**runtime_server.headers(running), "Content-Type": "application/connect+json"},
        )
    assert answer.content.endswith(b"{}")
    assert b"error" not in answer.content
    assert (await handle.wait()).stdout == "abcdef"


async def test_a_reader_that_stops_reading_holds_up_no_other(
    runtime_server: RuntimeServer, sandbox: AsyncSandbox
) -> None:
    running = find_running(runtime_server, sandbox)
    command = "read go; head -c 24000000 /dev/zero | tr '\\0' x; echo; echo end"
    handle = await sandbox.commands.run(command, background=True, stdin=True, timeout=0)
    async with stream(
        runtime_server, running, "Connect", {"process": {"pid": handle.pid}}
    ) as stuck:
        # This reader takes the first message and nothing more.
        assert (await anext(events(stuck)))[1]["event"]["start"]["pid"] == handle.pid
        await sandbox.commands.send_stdin(handle.pid, "\n")
        done = await asyncio.wait_for(handle.wait(), 120)
    assert len(done.stdout) == 24_000_005
    assert done.stdout.endswith("\nend\n")


async def test_a_sandbox_killed_in_the_middle_drops_its_streams(
    runtime_server: RuntimeServer,
) -> None:
    running = await runtime_server.add()
    sandbox = runtime_server.sdk(running)
    handle = await sandbox.commands.run("echo up; exec sleep 1000", background=True, timeout=0)
    async with stream(
        runtime_server, running, "Connect", {"process": {"pid": handle.pid}}
    ) as answer:
        seen = events(answer)
        await anext(seen)
        await runtime_server.end(running)
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(seen)
    with pytest.raises(TimeoutException, match=r"killed|not found|end of life"):
        await handle.wait()
    assert not await sandbox.is_running()


async def test_malformed_calls_are_the_callers_error(
    runtime_server: RuntimeServer, sandbox: AsyncSandbox
) -> None:
    headers = runtime_server.headers(find_running(runtime_server, sandbox)) | {
        "Content-Type": "application/json"
    }
    async with httpx.AsyncClient(
        base_url=runtime_server.url, headers=headers, timeout=60
    ) as client:
        for body in (b"{", b"[]", b'{"process":7}', b"\xff", b""):
            answer = await client.post("/process.Process/SendSignal", content=body)
            assert answer.status_code == 400
            assert answer.json()["code"] == "invalid_argument"
        huge = await client.post("/process.Process/List", content=b" " * 10_000_000)
        assert (huge.status_code, huge.json()["code"]) == (429, "resource_exhausted")
        assert (await client.post("/process.Process/Nothing", content=b"{}")).status_code == 404
        missing = await client.post(
            "/process.Process/SendSignal",
            json={"process": {"pid": 99999}, "signal": "SIGNAL_SIGKILL"},
        )
        assert missing.status_code == 404
        assert missing.json() == {
            "code": "not_found",
            "message": "process with pid 99999 not found",
        }
    assert (await sandbox.commands.run("echo fine")).stdout == "fine\n"


async def test_a_new_engine_takes_running_processes_back(tmp_path: Path) -> None:
    async with open_runtime_server(tmp_path / "data") as first:
        running = await first.add()
        sandbox = first.sdk(running)
        handle = await sandbox.commands.run(
            "while read line; do echo got $line; done", background=True, stdin=True, timeout=0
        )
        limited = await sandbox.commands.run("exec sleep 1000", background=True, timeout=4)
        await handle.disconnect()
        await limited.disconnect()
        await first.reopen()

        sandbox = first.sdk(running)
        assert handle.pid in {it.pid for it in await sandbox.commands.list()}
        seen: list[str] = []
        again = await sandbox.commands.connect(handle.pid, on_stdout=seen.append)
        await sandbox.commands.send_stdin(handle.pid, "more\n")
        await eventually(lambda: "".join(seen) == "got more\n")
        await sandbox.commands.close_stdin(handle.pid)
        assert (await again.wait()).exit_code == 0

        async def is_over() -> bool:
            return await sandbox.commands.list() == []

        await eventually(is_over)

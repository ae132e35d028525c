"""Walks through every call of the official Python SDK against one engine; run as a program.

`walk.py sync` or `walk.py async`, with E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY set and the SDK
version under test first on the path. One script serves both flavours and all versions: `now` waits
where the flavour hands back something to wait for. Prints one line per step that held.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import sys
import time
import urllib.error
import urllib.request
from importlib.metadata import version

import e2b

SDK = tuple(int(part) for part in version("e2b").split(".")[:2])
SYNC = sys.argv[1] == "sync"
Sandbox = e2b.Sandbox if SYNC else e2b.AsyncSandbox
Template = e2b.Template if SYNC else e2b.AsyncTemplate


async def now(value):
    return await value if inspect.isawaitable(value) else value


async def refused(call, *args, **kwargs):
    """The error that a call ends in."""
    try:
        await now(call(*args, **kwargs))
    except Exception as error:  # noqa: BLE001 the caller says which one it must be
        return error
    return None


async def listed(**query):
    pages, found = Sandbox.list(**query), []
    while pages.has_next:
        found += await now(pages.next_items())
    return found


async def the_control_plane(box):
    info = await now(box.get_info())
    assert info.sandbox_id == box.sandbox_id
    assert info.metadata == {"walk": "a b/1"}, info.metadata
    query = e2b.SandboxQuery(metadata={"walk": "a b/1"}, state=[e2b.SandboxState.RUNNING])
    assert box.sandbox_id in [one.sandbox_id for one in await listed(query=query, limit=1)]
    await now(box.set_timeout(900))
    longer = await now(box.get_info())
    assert longer.end_at > info.end_at
    assert await now(box.is_running())
    assert isinstance(await now(box.get_metrics()), list)


async def commands(box):
    out, err = [], []
    result = await now(
        box.commands.run("echo out; echo err >&2", on_stdout=out.append, on_stderr=err.append)
    )
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)
    assert ("".join(out), "".join(err)) == ("out\n", "err\n")
    assert (await now(box.commands.run("pwd; whoami"))).stdout == "/home/user\nuser\n"
    assert (await now(box.commands.run("whoami", user="root"))).stdout == "root\n"
    told = await now(box.commands.run("echo $A$B", envs={"B": "2"}, cwd="/tmp"))
    assert told.stdout == "12\n"
    failed = await refused(box.commands.run, "echo no >&2; exit 3")
    assert isinstance(failed, e2b.CommandExitException)
    assert (failed.exit_code, failed.stderr) == (3, "no\n")


async def background_commands(box):
    handle = await now(box.commands.run("cat; echo end", background=True, stdin=True))
    assert handle.pid in [process.pid for process in await now(box.commands.list())]
    await now(box.commands.send_stdin(handle.pid, "typed\n"))
    if hasattr(box.commands, "close_stdin"):
        await now(box.commands.close_stdin(handle.pid))
        assert (await now(handle.wait())).stdout == "typed\nend\n"
    else:
        assert await now(handle.kill())
    sleeper = await now(box.commands.run("sleep 1000", background=True))
    again = await now(box.commands.connect(sleeper.pid))
    assert again.pid == sleeper.pid
    assert await now(box.commands.kill(sleeper.pid))
    assert isinstance(await refused(sleeper.wait), e2b.CommandExitException)
    assert not await now(box.commands.kill(sleeper.pid))


async def terminals(box):
    heard = bytearray()
    if SYNC:
        terminal = box.pty.create(e2b.PtySize(rows=24, cols=80))
    else:
        terminal = await box.pty.create(e2b.PtySize(rows=24, cols=80), on_data=heard.extend)
    await now(box.pty.resize(terminal.pid, e2b.PtySize(rows=30, cols=100)))
    await now(box.pty.send_stdin(terminal.pid, b"stty size; exit 0\n"))
    if SYNC:
        result = terminal.wait(on_pty=heard.extend)
    else:
        result = await terminal.wait()
    assert result.exit_code == 0
    assert b"30 100" in heard, bytes(heard)


async def files(box):
    await now(box.files.write("dir/ü.txt", "héllo"))
    assert await now(box.files.read("dir/ü.txt")) == "héllo"
    assert bytes(await now(box.files.read("dir/ü.txt", format="bytes"))) == "héllo".encode()
    assert await now(box.files.exists("dir"))
    assert await now(box.files.make_dir("dir/sub"))
    assert not await now(box.files.make_dir("dir/sub"))
    info = await now(box.files.get_info("dir/ü.txt"))
    assert (info.type, info.size, info.owner) == (e2b.FileType.FILE, 6, "user"), info
    names = [entry.name for entry in await now(box.files.list("dir"))]
    assert sorted(names) == ["sub", "ü.txt"], names
    moved = await now(box.files.rename("dir/ü.txt", "dir/sub/moved.txt"))
    assert moved.path == "/home/user/dir/sub/moved.txt"
    await now(box.files.remove("dir"))
    assert not await now(box.files.exists("dir"))
    assert isinstance(await refused(box.files.read, "nowhere"), e2b.NotFoundException)


async def watching(box):
    await now(box.files.make_dir("watched"))
    seen = []
    if SYNC:
        watcher = box.files.watch_dir("watched", recursive=True)
    else:
        watcher = await box.files.watch_dir("watched", on_event=seen.append, recursive=True)
    await now(box.files.write("watched/new.txt", "1"))
    deadline = time.monotonic() + 30
    while "new.txt" not in {event.name for event in seen} and time.monotonic() < deadline:
        if SYNC:
            seen += watcher.get_new_events()
        await asyncio.sleep(0.02)
    assert "new.txt" in {event.name for event in seen}, seen
    await now(watcher.stop())


async def signed_urls(box):
    await now(box.files.write("signed.txt", "by url"))
    url = box.download_url("signed.txt", use_signature_expiration=600)
    with urllib.request.urlopen(url) as answer:
        assert answer.read() == b"by url"


async def sleep_and_wake(box):
    await now(box.files.write("kept.txt", "kept"))
    sleeper = await now(box.commands.run("sleep 1000", background=True))
    await now(box.pause())
    assert not await now(box.is_running())
    paused = await now(Sandbox.get_info(box.sandbox_id))
    assert paused.state == e2b.SandboxState.PAUSED
    back = await now(Sandbox.connect(box.sandbox_id, timeout=600))
    assert back.sandbox_id == box.sandbox_id
    assert await now(back.files.read("kept.txt")) == "kept"
    assert sleeper.pid in [process.pid for process in await now(back.commands.list())]


async def snapshots(box):
    if SDK < (2, 44):
        return
    await now(box.files.write("snapped.txt", "then"))
    snapshot = await now(box.create_snapshot())
    await now(box.files.write("snapped.txt", "later"))
    twin = await now(Sandbox.create(snapshot.snapshot_id, timeout=60))
    assert await now(twin.files.read("snapped.txt")) == "then"
    await now(twin.kill())
    assert await now(Sandbox.delete_snapshot(snapshot.snapshot_id))
    forks = await now(box.fork(count=2, timeout=60))
    assert len(forks) == 2
    for fork in forks:
        assert await now(fork.files.read("snapped.txt")) == "later"
        await now(fork.kill())


async def ports(box):
    await now(box.commands.run("echo served > index.txt"))
    server = await now(box.commands.run("python3 -m http.server 8123", background=True))
    request = urllib.request.Request(
        os.environ["E2B_SANDBOX_URL"] + "/index.txt",
        headers={"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "8123"},
    )
    deadline = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(request) as answer:
                assert answer.read() == b"served\n"
                break
        except urllib.error.HTTPError as error:
            if error.code != 502 or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)
    assert re.fullmatch(rf"8123-{box.sandbox_id}\..+", box.get_host(8123))
    await now(server.kill())


async def templates(_box):
    template = (
        Template()
        .from_template("base")
        .set_envs({"BUILT": "yes"})
        .run_cmd("echo made > /home/user/made.txt")
    )
    name = f"walk-{SDK[0]}-{SDK[1]}-{sys.argv[1]}"
    await now(Template.build(template, alias=name))
    box = await now(Sandbox.create(name, timeout=60))
    assert await now(box.files.read("/home/user/made.txt")) == "made\n"
    assert (await now(box.commands.run("echo $BUILT"))).stdout == "yes\n"
    await now(box.kill())


async def endings(box):
    assert await now(box.kill())
    assert not await now(Sandbox.kill(box.sandbox_id))
    gone = await refused(Sandbox.connect, box.sandbox_id, timeout=60)
    assert isinstance(gone, e2b.NotFoundException)


async def main():
    box = await now(
        Sandbox.create("base", timeout=600, metadata={"walk": "a b/1"}, envs={"A": "1"})
    )
    steps = [
        the_control_plane, commands, background_commands, terminals, files, watching,
        signed_urls, sleep_and_wake, snapshots, ports, templates, endings,
    ]  # fmt: skip
    for step in steps:
        await step(box)
        print("held:", step.__name__, flush=True)


asyncio.run(main())
# The SDK's transport aborts now and then while the interpreter shuts down. All is held by then.
os._exit(0)

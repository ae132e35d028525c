"""Files, through the official SDK and over plain HTTP."""

from __future__ import annotations

import gzip
import io
import os
from typing import Any

import httpx
import pytest
from e2b import AsyncSandbox, FileNotFoundException, FileType, InvalidArgumentException
from e2b.sandbox.signature import get_signature

from support.eventually import eventually
from support.isolation import not_on_gvisor
from support.runtime_server import RuntimeServer

pytestmark = pytest.mark.asyncio(loop_scope="module")


def client_of(runtime_server: RuntimeServer, sandbox: AsyncSandbox) -> httpx.AsyncClient:
    running = runtime_server.sandboxes.present[sandbox.sandbox_id]
    return httpx.AsyncClient(
        base_url=runtime_server.url, headers=runtime_server.headers(running), timeout=60
    )


async def test_what_is_written_is_read_and_belongs_to_the_user(
    runtime_server: RuntimeServer, sandbox: AsyncSandbox
) -> None:
    written = await sandbox.files.write("deep/er/note.txt", "hällo")
    assert written.path == "/home/user/deep/er/note.txt"
    assert await sandbox.files.read("deep/er/note.txt") == "hällo"
    assert (
        await sandbox.files.read("/home/user/deep/er/note.txt", format="bytes") == "hällo".encode()
    )

    seen = await sandbox.commands.run("find deep -printf '%u:%g %m %p\\n'")
    assert seen.stdout.splitlines() == [
        "user:user 755 deep",
        "user:user 755 deep/er",
        "user:user 644 deep/er/note.txt",
    ]
    await sandbox.files.write("/etc/by-root", "x", user="root")
    ids = runtime_server.runtime.ids(sandbox.sandbox_id)
    # Where the engine is an ordinary user, all users of a sandbox are that one.
    owner = "user" if ids["user"] == ids["root"] else "root"
    assert (await sandbox.commands.run("find /etc/by-root -printf '%u\\n'")).stdout == f"{owner}\n"


async def test_many_large_and_streamed_files_go_in_and_out(sandbox: AsyncSandbox) -> None:
    large = os.urandom(5_000_000)
    results = await sandbox.files.write_files(
        [{"path": "one", "data": "1"}, {"path": "sub/two", "data": large}]
    )
    assert [it.path for it in results] == ["/home/user/one", "/home/user/sub/two"]
    assert await sandbox.files.read("sub/two", format="bytes") == large

    await sandbox.files.write("three", io.BytesIO(large), gzip=True)
    assert await sandbox.files.read("three", format="bytes", gzip=True) == large
    pieces = [piece async for piece in await sandbox.files.read("three", format="stream")]
    assert b"".join(pieces) == large
    await sandbox.files.write("three", "")
    assert await sandbox.files.read("three") == ""


async def test_metadata_stays_beside_a_file_until_it_is_written_again(
    sandbox: AsyncSandbox,
) -> None:
    await sandbox.files.write("kept", "x", metadata={"origin": "test"})
    assert (await sandbox.files.get_info("kept")).metadata == {"origin": "test"}
    await sandbox.files.write("kept", "y")
    assert not (await sandbox.files.get_info("kept")).metadata


async def test_folders_are_made_listed_moved_and_removed(sandbox: AsyncSandbox) -> None:
    assert await sandbox.files.make_dir("a/b")
    assert not await sandbox.files.make_dir("a/b")
    await sandbox.files.write("a/b/file", "123")
    await sandbox.commands.run("ln -s b/file a/link && ln -s /nowhere a/broken")

    listed = await sandbox.files.list("a", depth=2)
    assert [(it.path, it.type) for it in listed] == [
        ("/home/user/a/b", FileType.DIR),
        ("/home/user/a/b/file", FileType.FILE),
        ("/home/user/a/link", FileType.SYMLINK),
    ]
    assert listed[2].symlink_target == "/home/user/a/b/file"
    assert (listed[1].size, listed[1].permissions, listed[1].owner) == (3, "-rw-r--r--", "user")
    assert [it.name for it in await sandbox.files.list("a")] == ["b", "link"]

    # /run is another filesystem than /home, so this is a copy and a deletion.
    moved = await sandbox.files.rename("a/b", "new/place")
    assert moved.path == "/home/user/new/place"
    await sandbox.commands.run("mkdir -p /run/there && chmod 777 /run/there", user="root")
    await sandbox.files.rename("new/place", "/run/there/it")
    assert await sandbox.files.read("/run/there/it/file") == "123"
    await sandbox.files.remove("new")
    await sandbox.files.remove("new")
    assert not await sandbox.files.exists("new")
    with pytest.raises(InvalidArgumentException):
        await sandbox.files.list("/etc/passwd")
    with pytest.raises(FileNotFoundException):
        await sandbox.files.get_info("never")
    with pytest.raises(FileNotFoundException):
        await sandbox.files.rename("never", "ever")


async def test_files_of_the_template_can_be_replaced_and_removed(sandbox: AsyncSandbox) -> None:
    await sandbox.files.write("/etc/hostname", "other\n")
    assert (await sandbox.commands.run("cat /etc/hostname")).stdout == "other\n"
    await sandbox.files.remove("/etc/hostname")
    assert not await sandbox.files.exists("/etc/hostname")


async def test_a_part_a_head_and_an_unchanged_file(
    runtime_server: RuntimeServer, sandbox: AsyncSandbox
) -> None:
    await sandbox.files.write("ten", "0123456789")
    async with client_of(runtime_server, sandbox) as client:
        part = await client.get("/files?path=ten", headers={"Range": "bytes=2-4"})
        assert (part.status_code, part.content) == (206, b"234")
        assert part.headers["content-range"] == "bytes 2-4/10"
        tail = await client.get("/files?path=ten", headers={"Range": "bytes=-3"})
        assert tail.content == b"789"
        beyond = await client.get("/files?path=ten", headers={"Range": "bytes=50-"})
        assert beyond.status_code == 416
        head = await client.head("/files?path=ten")
        assert (head.headers["content-length"], head.content) == ("10", b"")
        same = await client.get("/files?path=ten", headers={"If-None-Match": head.headers["etag"]})
        assert same.status_code == 304
        refused = await client.get("/files?path=ten", headers={"Accept-Encoding": "identity;q=0"})
        assert refused.status_code == 406


async def test_files_are_put_together(runtime_server: RuntimeServer, sandbox: AsyncSandbox) -> None:
    await sandbox.files.write("p1", "first ")
    await sandbox.files.write("p2", "second")
    async with client_of(runtime_server, sandbox) as client:
        request = {"source_paths": ["p1", "p2"], "destination": "whole/one"}
        done = await client.post("/files/compose", json=request)
        assert done.json()["path"] == "/home/user/whole/one"
        missing = await client.post("/files/compose", json=request | {"source_paths": ["nope"]})
        assert missing.status_code == 404
        assert (await client.post("/files/compose", content=b"{")).status_code == 400
        assert (await client.post("/files/compose", json={})).status_code == 400
    assert await sandbox.files.read("whole/one") == "first second"


async def test_bad_uploads_are_refused_in_plain_words(
    runtime_server: RuntimeServer, sandbox: AsyncSandbox
) -> None:
    await sandbox.files.make_dir("folder")
    async with client_of(runtime_server, sandbox) as client:

        async def post(query: str, **more: Any) -> tuple[int, str]:
            answer = await client.post(f"/files{query}", **more)
            assert answer.json()["code"] == answer.status_code
            return answer.status_code, answer.json()["message"]

        raw = {"Content-Type": "application/octet-stream"}
        assert await post("?path=folder", content=b"x", headers=raw) == (
            400,
            "path '/home/user/folder' is a directory",
        )
        assert (await post("", content=b"x", headers=raw))[0] == 400
        assert (await post("?path=x", json={}))[0] == 400
        assert (await post("?path=x&username=eve", content=b"x", headers=raw)) == (
            401,
            "invalid username: 'eve'",
        )
        broken = {"Content-Type": "multipart/form-data; boundary=b"}
        assert (await post("?path=x", content=b"--b\r\nnonsense", headers=broken))[0] == 400
        unzipped = raw | {"Content-Encoding": "gzip"}
        assert (await post("?path=x", content=b"no gzip", headers=unzipped))[0] == 400
        short = gzip.compress(b"x" * 1000)[:-9]
        assert (await post("?path=x", content=short, headers=unzipped))[0] == 400
        much = raw | {"X-Metadata-Much": "x" * 5000}
        assert (await post("?path=x", content=b"x", headers=much))[0] == 400
        twice = [("file", ("same", b"1")), ("file", ("same", b"2"))]
        assert (await post("", files=twice))[0] == 400
        missing = await client.get("/files?path=/not/there")
        assert missing.json() == {"code": 404, "message": "path '/not/there' does not exist"}
        folder = await client.get("/files?path=folder")
        assert folder.json() == {"code": 400, "message": "path '/home/user/folder' is a directory"}
        assert (await client.delete("/files?path=folder")).status_code == 405


async def test_no_path_leads_out_of_the_sandbox(
    runtime_server: RuntimeServer, sandbox: AsyncSandbox, tmp_path: Any
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the host's")
    await sandbox.commands.run(
        f"ln -s {secret} link; ln -s /proc/1/root{secret} magic; ln -s / root; "
        f"mkdir -p d; ln -s ../../../../../../../../..{tmp_path} d/up"
    )
    for path in (
        str(secret),
        "link",
        "magic",
        f"root/{secret}",
        "d/up/secret",
        f"../../../../../..{secret}",
        f"/proc/self/root{secret}",
    ):
        with pytest.raises((FileNotFoundException, InvalidArgumentException)):
            await sandbox.files.read(path)
    await sandbox.files.make_dir(str(tmp_path))
    await sandbox.files.write("link", "inside")
    await sandbox.files.remove("d/up")
    await sandbox.files.remove("root")
    assert secret.read_text() == "the host's"
    assert (await sandbox.commands.run(f"cat {secret}")).stdout == "inside"


@not_on_gvisor("a pipe made inside is the sentry's own and not on the disk")
async def test_what_is_no_plain_file_is_neither_read_nor_written(
    runtime_server: RuntimeServer, sandbox: AsyncSandbox
) -> None:
    await sandbox.commands.run("mkfifo pipe")
    raw = {"Content-Type": "application/octet-stream"}
    async with client_of(runtime_server, sandbox) as client:
        for path, status in (
            *(("pipe", 400), ("/dev/null", 400), ("/dev/tty", 400)),
            *(("/proc/uptime", 200), ("/proc/1/environ", 403)),
        ):
            read = await client.get(f"/files?path={path}")
            written = await client.post(f"/files?path={path}", content=b"x", headers=raw)
            assert (read.status_code, written.status_code) == (status, 400), path
        made = await client.post("/files?path=/proc/new", content=b"x", headers=raw)
        assert made.status_code >= 400


async def test_signed_urls_need_no_token_and_name_no_sandbox(
    runtime_server: RuntimeServer, sandbox: AsyncSandbox
) -> None:
    other = await runtime_server.add()
    running = runtime_server.sandboxes.present[sandbox.sandbox_id]
    async with httpx.AsyncClient(base_url=runtime_server.url, timeout=60) as client:
        up = sandbox.upload_url("signed file")
        assert (await client.post(up, files={"file": ("x", b"by url")})).status_code == 200
        assert await sandbox.files.read("signed file") == "by url"
        down = sandbox.download_url("signed file", use_signature_expiration=600)
        assert (await client.get(down)).content == b"by url"

        async def message(url: str, **headers: str) -> str:
            answer = await client.get(url, headers=headers)
            assert answer.status_code == 401
            said: str = answer.json()["message"]
            return said

        assert await message("/files?path=x") == "missing signature query parameter"
        assert await message(down.replace("signed", "other")) == "invalid signature"
        assert await message(up) == "invalid signature"
        signed = get_signature("x", "read", None, running.token, -60)
        late = f"/files?path=x&signature={signed['signature'].replace('+', '%2B')}"
        late += f"&signature_expiration={signed['expiration']}"
        assert await message(late) == "signature is already expired"
        # A token alone decides if there is one.
        named = {"E2b-Sandbox-Id": running.sandbox_id, "X-Access-Token": other.token}
        assert (await message(down, **named)).startswith("unauthorized access")
    await runtime_server.end(other)


async def test_every_route_but_health_asks_for_the_token(
    runtime_server: RuntimeServer, sandbox: AsyncSandbox
) -> None:
    named = {"E2b-Sandbox-Id": sandbox.sandbox_id}
    async with httpx.AsyncClient(base_url=runtime_server.url, timeout=60) as client:
        assert (await client.get("/health", headers=named)).status_code == 204
        for method, path in (
            ("GET", "/metrics"),
            ("GET", "/envs"),
            ("POST", "/files/compose"),
            ("POST", "/process.Process/List"),
            ("POST", "/filesystem.Filesystem/Stat"),
        ):
            for token in ({}, {"X-Access-Token": "wrong"}):
                answer = await client.request(method, path, headers={**named, **token})
                assert answer.status_code == 401
                assert answer.json()["code"] == 401
        gone = await client.get("/health", headers={"E2b-Sandbox-Id": "inever"})
        assert (gone.status_code, gone.json()) == (
            502,
            {"sandboxId": "inever", "message": "The sandbox was not found", "code": 502},
        )
    async with client_of(runtime_server, sandbox) as client:
        assert (await client.get("/envs")).json() == {"COLOUR": "green"}
        metrics = (await client.get("/metrics")).json()
        assert metrics["mem_total"] > 0
        assert set(metrics) == {
            *("ts", "cpu_count", "cpu_used_pct", "mem_total", "mem_used", "mem_cache"),
            *("mem_total_mib", "mem_used_mib", "disk_used", "disk_total"),
        }
        assert (await client.post("/init", json={})).status_code == 404


async def test_a_sleeping_sandbox_wakes_only_for_who_may_enter(
    runtime_server: RuntimeServer, sandbox: AsyncSandbox
) -> None:
    running = runtime_server.sandboxes.present.pop(sandbox.sandbox_id)
    runtime_server.sandboxes.asleep[running.sandbox_id] = running
    async with httpx.AsyncClient(base_url=runtime_server.url, timeout=60) as client:
        named = {"E2b-Sandbox-Id": running.sandbox_id, "X-Access-Token": "wrong"}
        assert (await client.get("/envs", headers=named)).status_code == 401
        assert (await client.get("/health", headers=named)).status_code == 502
        assert running.sandbox_id in runtime_server.sandboxes.asleep
        assert (
            await client.get("/envs", headers=runtime_server.headers(running))
        ).status_code == 200


async def test_a_watcher_tells_what_happened_in_its_folder(sandbox: AsyncSandbox) -> None:
    await sandbox.files.make_dir("watched/below")
    seen: list[tuple[str, str]] = []
    handle = await sandbox.files.watch_dir(
        "watched",
        on_event=lambda event: seen.append((event.type.value, event.name)),
        recursive=True,
        timeout=0,
    )
    await sandbox.files.write("watched/by-api", "x")
    await sandbox.commands.run(
        "cd watched; echo x > below/by-shell; mkdir -p new/er; echo x > new/er/file; "
        "mv by-api moved; chmod 600 moved; rm below/by-shell"
    )
    wanted = {
        *(("create", "by-api"), ("write", "by-api"), ("create", "below/by-shell")),
        *(("create", "new"), ("create", "new/er"), ("create", "new/er/file")),
        *(("rename", "by-api"), ("create", "moved"), ("chmod", "moved")),
        ("remove", "below/by-shell"),
    }
    await eventually(lambda: wanted <= set(seen))
    await handle.stop()
    with pytest.raises(FileNotFoundException):
        await sandbox.files.watch_dir("nowhere", on_event=print)
    with pytest.raises(InvalidArgumentException):
        await sandbox.files.watch_dir("/etc/passwd", on_event=print)


async def test_a_polled_watcher_has_the_event_as_soon_as_the_write_returned(
    runtime_server: RuntimeServer, sandbox: AsyncSandbox
) -> None:
    await sandbox.files.make_dir("polled")
    async with client_of(runtime_server, sandbox) as client:

        async def call(method: str, **fields: Any) -> httpx.Response:
            return await client.post(f"/filesystem.Filesystem/{method}", json=fields)

        made = await call("CreateWatcher", path="polled", includeEntry=True)
        watcher = made.json()["watcherId"]
        await sandbox.files.write("polled/file", "abc")
        told = (await call("GetWatcherEvents", watcherId=watcher)).json()["events"]
        assert (told[0]["type"], told[0]["name"]) == ("EVENT_TYPE_CREATE", "file")
        assert told[0]["entry"]["size"] == "3"
        assert "EVENT_TYPE_WRITE" in [it["type"] for it in told]
        assert (await call("GetWatcherEvents", watcherId=watcher)).json() == {}
        assert (await call("RemoveWatcher", watcherId=watcher)).status_code == 200
        gone = await call("GetWatcherEvents", watcherId=watcher)
        assert (gone.status_code, gone.json()["code"]) == (404, "not_found")
        ids = [(await call("CreateWatcher", path="polled")) for _ in range(65)]
        assert ids[-1].json()["code"] == "resource_exhausted"

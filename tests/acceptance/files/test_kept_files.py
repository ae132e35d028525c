"""Kept files from outside: HTTP and the command line, over a real sandbox."""

from __future__ import annotations

import http.client
import io
import json
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2b import Sandbox

from support.keeper_process import Keeper

HOME = "/home/user/app"


def create(api: httpx.Client, keeper: Keeper, project: str) -> Sandbox:
    """A running sandbox and the official SDK's handle of it."""
    asked = {"workdir": HOME, "policy": {"idleTimeoutMs": 600_000}}
    assert api.put(f"/api/sandboxes/{project}", json=asked).status_code == 201
    status = wait(api, project, "RUNNING")
    return Sandbox.connect(status["instanceId"], timeout=600, **keeper.sdk_options())


def wait(api: httpx.Client, project: str, state: str) -> dict[str, Any]:
    status: dict[str, Any] = {}
    for _ in range(600):
        status = api.get(f"/api/sandboxes/{project}/status").json()
        if status["status"] == state:
            return status
    raise AssertionError(status)


def make_tar(**members: tarfile.TarInfo | bytes) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, value in members.items():
            if isinstance(value, tarfile.TarInfo):
                tar.addfile(value)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(value)
            tar.addfile(info, io.BytesIO(value))
    return raw.getvalue()


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_a_file_written_by_the_api_is_kept_and_inside_at_once(
    api: httpx.Client, keeper: Keeper, project: str
) -> None:
    native = create(api, keeper, project)
    files = f"/api/sandboxes/{project}/files"
    answer = api.put(f"{files}/src/grüße.txt", content="hällo".encode(), params={"mode": "755"})
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"version": 1, "changed": 1, "inside": True, "ignored": []}
    assert native.files.read(f"{HOME}/src/grüße.txt") == "hällo"
    assert native.commands.run(f"stat -c %a {HOME}/src/*").stdout == "755\n"

    # What changes inside is captured, and what the API wrote is not written back over it.
    native.commands.run(f"echo inside > {HOME}/src/grüße.txt; echo new > {HOME}/new; sleep 0.2")
    captured = api.post(f"/api/sandboxes/{project}/capture").json()
    assert (captured["version"], captured["changed"]) == (2, 3)
    got = api.get(f"{files}/src/grüße.txt")
    assert (got.text, got.headers["content-type"]) == ("inside\n", "application/octet-stream")
    assert "attachment" in got.headers["content-disposition"]
    etag = {"If-None-Match": got.headers["etag"]}
    assert api.get(f"{files}/src/grüße.txt", headers=etag).status_code == 304
    assert api.get(f"{files}/src/grüße.txt", params={"version": 1}).text == "hällo"

    listed = api.get(files, params={"limit": 2}).json()
    assert [item["path"] for item in listed["items"]] == ["new", "src"]
    rest = api.get(files, params={"cursor": listed["nextCursor"]}).json()
    assert [item["path"] for item in rest["items"]] == ["src/grüße.txt"]
    assert [one["number"] for one in listed["versions"]] == [2, 1]

    assert api.delete(f"{files}/new").json()["inside"] is True
    assert not native.files.exists(f"{HOME}/new")
    assert api.get(f"{files}/new").status_code == 404


def test_a_pause_captures_first_and_a_change_while_asleep_waits_for_the_wake(
    api: httpx.Client, keeper: Keeper, project: str
) -> None:
    native = create(api, keeper, project)
    native.commands.run(f"mkdir -p {HOME}; cd {HOME}; echo 1 > one; echo 2 > two")
    assert api.post(f"/api/sandboxes/{project}/pause").status_code == 200
    files = f"/api/sandboxes/{project}/files"
    assert api.get(f"{files}/one").text == "1\n"
    assert api.put(f"{files}/one", content=b"changed").json()["inside"] is False
    assert api.delete(f"{files}/two").json()["inside"] is False
    waiting = {item["path"] for item in api.get(files).json()["items"] if item["pending"]}
    assert waiting == {"one"}

    # It was woken from outside: a capture in between does not undo what was changed here.
    native.connect(timeout=600)
    native.commands.run(f"echo 3 > {HOME}/three")
    eventually_running(api, project)
    assert api.post(f"/api/sandboxes/{project}/capture").status_code == 200
    assert api.get(f"{files}/one").text == "changed"
    assert api.get(f"{files}/two").status_code == 404
    assert api.get(f"{files}/three").text == "3\n"


def test_an_end_by_hand_keeps_the_files_first(
    api: httpx.Client, keeper: Keeper, project: str
) -> None:
    native = create(api, keeper, project)
    native.commands.run(f"mkdir -p {HOME}; echo last > {HOME}/words")
    assert api.delete(f"/api/sandboxes/{project}").json()["status"] == "KILLED"
    assert api.get(f"/api/sandboxes/{project}/files/words").text == "last\n"


def eventually_running(api: httpx.Client, project: str) -> None:
    for _ in range(600):
        status = api.post(f"/api/sandboxes/{project}/verify").json()
        if status["status"] == "RUNNING":
            return
    raise AssertionError(status)


def test_an_archive_goes_in_and_comes_out_whole(
    api: httpx.Client, keeper: Keeper, project: str
) -> None:
    """Without a sandbox as well: the files belong to the project."""
    archive = f"/api/sandboxes/{project}/archive"
    large = bytes(range(256)) * 20_000
    sent = make_tar(
        **{
            "a.txt": b"a",
            "empty": b"",
            "sub/large.bin": large,
            "node_modules/x.js": b"no",
            "l": link("l", "sub/large.bin"),
            "h": link("h", "a.txt", tarfile.LNKTYPE),
        }
    )
    edited = api.put(archive, content=sent).json()
    assert (edited["version"], edited["ignored"]) == (1, ["node_modules/x.js"])
    with tarfile.open(fileobj=io.BytesIO(api.get(archive).content)) as tar:
        found = {one.name: one for one in tar.getmembers()}
        assert set(found) == {"a.txt", "empty", "sub/large.bin", "l", "h"}
        assert tar.extractfile("sub/large.bin").read() == large  # type: ignore[union-attr]
        assert tar.extractfile("h").read() == b"a"  # type: ignore[union-attr]
        assert found["l"].linkname == "sub/large.bin"
    replaced = make_tar(only=b"1")
    api.put(archive, content=replaced, params={"replace": "true"})
    listed = api.get(f"/api/sandboxes/{project}/files").json()
    assert [item["path"] for item in listed["items"]] == ["only"]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("%2Fetc%2Fpasswd", 422, "invalid_request"),
        ("a%2F..%2F..%2Fb", 422, "invalid_request"),
        ("a%00b", 400, "malformed_request"),
        ("a%2F%2Fb", 422, "invalid_request"),
        ("x" * 300, 422, "invalid_request"),
        ("folder", 422, "invalid_request"),
        ("folder/file/below", 422, "invalid_request"),
        ("node_modules/x", 422, "invalid_request"),
    ],
)
def test_a_bad_path_is_refused_with_its_reason(
    api: httpx.Client, project: str, path: str, status: int, code: str
) -> None:
    files = f"/api/sandboxes/{project}/files"
    assert api.put(f"{files}/folder/file", content=b"1").status_code == 200
    answer = api.put(f"{files}/{path}", content=b"2")
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert api.get(files).json()["version"] == 1


def test_a_bad_archive_changes_nothing(api: httpx.Client, project: str) -> None:
    archive = f"/api/sandboxes/{project}/archive"
    api.put(archive, content=make_tar(good=b"1"))
    bad = {
        "absolute": make_tar(**{"/etc/x": b"1"}),
        "upwards": make_tar(**{"../x": b"1"}),
        "link out": make_tar(a=link("a", "../../etc/passwd")),
        "absolute link": make_tar(a=link("a", "/etc/passwd")),
        "hard link out": make_tar(a=link("a", "../x", tarfile.LNKTYPE)),
        "device": make_tar(a=link("a", "", tarfile.CHRTYPE)),
        "below a file": make_tar(**{"good/x": b"1"}),
        "cut off": make_tar(a=b"1" * 5000)[:3000],
        "no tar": b"hello" * 1000,
        "a header too long": make_tar()[:0] + _huge_header(),
    }
    for name, body in bad.items():
        answer = api.put(archive, content=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), name
    listed = api.get(f"/api/sandboxes/{project}/files").json()
    assert (listed["version"], [item["path"] for item in listed["items"]]) == (1, ["good"])


def _huge_header() -> bytes:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 2**33 - 512
    return info.tobuf(tarfile.USTAR_FORMAT) + bytes(4096)


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(keeper: Keeper, project: str) -> None:
    connection = http.client.HTTPConnection(keeper.url.removeprefix("http://"), timeout=60)
    with closing(connection):
        connection.putrequest("PUT", f"/api/sandboxes/{project}/files/big")
        connection.putheader("Authorization", f"Bearer {keeper.key}")
        connection.putheader("Content-Length", str(2 * 1024**3))
        connection.endheaders()
        answer = connection.getresponse()
        assert (answer.status, json.load(answer)["code"]) == (413, "payload_too_large")


def test_the_command_line_puts_lists_and_gets(keeper: Keeper, project: str, tmp_path: Path) -> None:
    folder = tmp_path / "site"
    (folder / "css").mkdir(parents=True)
    (folder / "index.html").write_text("<h1>hi</h1>")
    (folder / "css" / "a.css").write_text("a{}")
    keeper.run("files", "put", project, str(folder))
    keeper.run("files", "put", project, str(folder / "index.html"), "copy.html")
    listed = keeper.run("files", "ls", project, "-q").stdout.split()
    assert listed == ["copy.html", "css", "css/a.css", "index.html"]
    got = tmp_path / "got.html"
    keeper.run("files", "get", project, "copy.html", "--to", str(got))
    assert got.read_text() == "<h1>hi</h1>"
    missing = keeper.run("files", "get", project, "nothing", check=False)
    assert (missing.returncode, "not among the kept files" in missing.stderr) == (3, True)


def test_versions_are_listed_compared_and_named(
    api: httpx.Client, keeper: Keeper, project: str
) -> None:
    files = f"/api/sandboxes/{project}/files"
    for text in ("one\n", "two\n"):
        assert api.put(f"{files}/a.txt", content=text).is_success
    keeper.run("checkpoint", project, "before the move", "--version", "1")
    again = api.post(f"/api/sandboxes/{project}/checkpoints", json={"name": "before the move"})
    assert (again.status_code, again.json()["code"]) == (409, "checkpoint_exists")
    page = api.get(f"/api/sandboxes/{project}/versions", params={"limit": 1}).json()
    assert [(one["number"], one["names"]) for one in page["items"]] == [(2, [])]
    rest = api.get(f"/api/sandboxes/{project}/versions", params={"cursor": page["nextCursor"]})
    assert [(one["number"], one["names"]) for one in rest.json()["items"]] == [
        (1, ["before the move"])
    ]

    got = keeper.run("files", "get", project, "a.txt", "-o", "-", "--version", "before the move")
    assert got.stdout == "one\n"
    changed = keeper.run("files", "diff", project, "2", "--against", "before the move")
    assert changed.stdout == "M\ta.txt\t4\n"
    assert keeper.run("files", "diff", project, "2", "a.txt").stdout.splitlines()[-2:] == [
        "-one",
        "+two",
    ]
    unknown = keeper.run("files", "diff", project, "nope", check=False)
    assert (unknown.returncode, "before the move" in unknown.stderr) == (3, True)
    restored = keeper.run("files", "restore", project, "before the move")
    assert restored.stdout == f"{project}\tversion 3\t1 restored, 0 removed\n"
    assert "Undo: sandkeeper files restore" in restored.stderr
    assert api.get(f"{files}/a.txt").text == "one\n"
    keeper.run("checkpoint", project, "before the move", "--delete")
    assert keeper.run("checkpoint", project).stdout == ""
    missing = api.delete(f"/api/sandboxes/{project}/checkpoints/{'%2e%2e/x'}")
    assert missing.status_code == 404
    assert api.get(f"/api/sandboxes/{project}/status").status_code == 404, "no sandbox was made"


def test_a_project_is_forked_from_a_version_into_a_new_one(
    api: httpx.Client, keeper: Keeper, project: str
) -> None:
    native = create(api, keeper, project)
    path = f"/api/sandboxes/{project}"
    assert api.put(f"{path}/files/a.txt", content="one").is_success
    keeper.run("checkpoint", project, "the first")
    native.commands.run(f"echo -n two > {HOME}/a.txt && echo new > {HOME}/b.txt")
    first, second = f"{project}-first", f"{project}-now"
    made = keeper.run("fork", project, first, "--version", "the first")
    assert made.stdout.startswith(f"{first}\tRUNNING\tversion ")
    answer = api.post(f"{path}/fork", json={"project": second})
    assert answer.status_code == 201, answer.text
    for name, content in ((first, "one"), (second, "two")):
        keeper.run("wake", name)  # The files come with the wake that its creation begins.
        status = wait(api, name, "RUNNING")
        inside = Sandbox.connect(status["instanceId"], timeout=600, **keeper.sdk_options())
        assert inside.files.read(f"{HOME}/a.txt") == content
        oldest = api.get(f"/api/sandboxes/{name}/versions").json()["items"][-1]
        assert (oldest["number"], oldest["source"]) == (1, "fork")
    # What happens to one does not concern the other.
    assert api.delete(f"{path}/files/a.txt").is_success
    assert api.get(f"/api/sandboxes/{first}/files/a.txt").text == "one"

    again = api.post(f"{path}/fork", json={"project": first})
    assert (again.status_code, again.json()["code"]) == (409, "sandbox_exists")
    for wrong in ("job:x", "..", "a/b", ""):
        assert api.post(f"{path}/fork", json={"project": wrong}).status_code in {403, 422}, wrong
    key = api.post("/api/keys", json={"name": f"{project}-key", "scope": f"operate:{project}"})
    with keeper.client(key.json()["key"]) as limited:
        outside = limited.post(f"{path}/fork", json={"project": f"other-{project}"})
        assert outside.status_code == 403
    token = api.post("/api/client-tokens", json={"project": project}).json()["token"]
    with keeper.client(token) as visitor:
        assert visitor.post(f"{path}/fork", json={"project": f"{first}-x"}).status_code == 403

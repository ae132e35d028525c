"""The script that runs inside a sandbox, on a disk that is really full."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import orjson
import pytest

from sandkeeper.engine.runtime.bubblewrap.binaries import find_bubblewrap
from sandkeeper.services.files.agent.agent_script import MARK, make_header
from sandkeeper.services.files.agent.bundle import read_script

DISK_BYTES = 256 * 1024


def ask(tmp_path: Path, prepare: str = "true", **request: Any) -> tuple[dict[str, Any], str]:
    """Run the script with a tiny disk at /full; gives its answer and the names on that disk."""
    text = base64.b64encode(zlib.compress(orjson.dumps(request))).decode()
    (tmp_path / "script.py").write_text(read_script())
    bwrap = [
        *(str(find_bubblewrap()), "--ro-bind", "/", "/", "--dev", "/dev"),
        *("--bind", str(tmp_path), str(tmp_path), "--size", str(DISK_BYTES), "--tmpfs", "/mnt"),
    ]
    line = f"{prepare}; {sys.executable} -I -S {tmp_path}/script.py {text}; find /mnt -type f"
    done = subprocess.run(
        [*bwrap, "sh", "-c", line], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0 and "bwrap" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr}")
    answer, _, names = done.stdout.partition(MARK)[2].partition("\n")
    return orjson.loads(zlib.decompress(base64.b64decode(answer))), names


def item(path: str, data: bytes) -> list[Any]:
    return [path, "file", 0o644, 1, hashlib.sha256(data).hexdigest(), "", None, None]


def pack(tmp_path: Path, items: list[list[Any]], contents: list[bytes]) -> list[str]:
    """A tar of these contents that begins with its list, as it is sent."""
    order = orjson.dumps({"items": items, "remove": []})
    tar = tmp_path / "in" / "0.tar"
    tar.parent.mkdir()
    tar.write_bytes(
        b"".join(
            make_header(str(number), len(data)) + data + bytes(-len(data) % 512)
            for number, data in enumerate([order, *contents])
        )
    )
    return [str(tar)]


def put_back(tmp_path: Path, tars: list[str]) -> tuple[dict[str, Any], str]:
    folder = str(tmp_path / "in")
    return ask(
        tmp_path,
        verb="put_back",
        root="/mnt",
        folder=folder,
        part_name=".t.sandkeeper-part",
        tars=tars,
        patience_s=1,
    )


def test_putting_back_stops_when_the_disk_is_full_and_leaves_no_piece(tmp_path: Path) -> None:
    contents = [bytes([number]) * 100_000 for number in range(4)]
    items = [item(f"d/{number}", data) for number, data in enumerate(contents)]
    answer, names = put_back(tmp_path, pack(tmp_path, items, contents))
    assert answer["is_full"] is True
    assert answer["lost"] == [["d/2", "No space left on device"]]
    assert sorted(names.split()) == ["/mnt/d/0", "/mnt/d/1"]
    assert not (tmp_path / "in").exists()


def test_other_content_than_was_kept_is_never_put_in_place(tmp_path: Path) -> None:
    answer, names = put_back(tmp_path, pack(tmp_path, [item("a", b"good")], [b"bad"]))
    assert answer["lost"] == [["a", "other content arrived than was kept"]]
    assert names == ""


def test_what_does_not_stay_in_its_place_is_named(tmp_path: Path) -> None:
    """A later item overwrites an earlier one, as a program that runs at the same time may do."""
    items = [item("a", b"one"), [*item("a", b"two")[:3], 2, *item("a", b"two")[4:]]]
    answer, _ = put_back(tmp_path, pack(tmp_path, items, [b"one", b"two"]))
    assert answer["lost"] == [["a", "it did not stay"]]


def test_a_script_that_hears_no_more_gives_up_and_clears_its_folder(tmp_path: Path) -> None:
    pack(tmp_path, [item("a", b"good")], [b"good"])
    request = {
        "verb": "put_back",
        "root": str(tmp_path / "work"),
        "folder": str(tmp_path / "in"),
        "tars": [],
        "patience_s": 0.2,
    }
    text = base64.b64encode(zlib.compress(orjson.dumps(request))).decode()
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", read_script(), text],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as script:
        assert script.stderr is not None
        assert b"no more data arrives" in script.stderr.read()
        assert script.wait(10) == 1
    assert not (tmp_path / "in").exists()


def test_a_capture_of_a_full_disk_reads_what_has_no_room_in_the_tar_by_itself(
    tmp_path: Path,
) -> None:
    answer, _ = ask(
        tmp_path,
        prepare="for i in 0 1 2; do head -c 60000 /dev/zero > /mnt/$i; done",
        verb="pack",
        root="/mnt",
        folder="/mnt/t",
        name="out.tar",
        items=[["0", ""], ["1", ""], ["2", ""], ["gone", ""]],
        tar_bytes=2**20,
        small_max=2**20,
        file_max=2**20,
    )
    where = [row[0] for row in answer["answers"]]
    assert where == ["tar", "apart", "apart", "gone"]

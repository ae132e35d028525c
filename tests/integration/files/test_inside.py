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
from sandkeeper.services.files.agent.bundle import read_script
from sandkeeper.services.files.agent.inside.common import MARK

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
        [*bwrap, "sh", "-c", line],
        input="1\n",  # One parcel was read.
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0 and "bwrap" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr}")
    answer, _, names = done.stdout.partition(MARK)[2].partition("\n")
    return orjson.loads(zlib.decompress(base64.b64decode(answer))), names


def item(path: str, data: bytes) -> list[Any]:
    return ["put", path, "file", 0o644, 1, hashlib.sha256(data).hexdigest(), "", len(data), None]


def pack(tmp_path: Path, items: list[list[Any]], contents: list[bytes]) -> list[str]:
    """A parcel of these contents that begins with its list, as it is sent."""
    order = orjson.dumps({"items": items, "remove": []})
    parcel = tmp_path / "in" / "0"
    parcel.parent.mkdir()
    parcel.write_bytes(order + b"\n" + b"".join(contents))
    return [str(parcel)]


def put_back(tmp_path: Path, parcels: list[str]) -> tuple[dict[str, Any], str]:
    folder = str(tmp_path / "in")
    return ask(
        tmp_path,
        verb="put_back",
        root="/mnt",
        folder=folder,
        part_name=".t.sandkeeper-part",
        parcels=parcels,
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
    answer, names = put_back(tmp_path, pack(tmp_path, [item("a", b"good")], [b"evil"]))
    assert answer["lost"] == [["a", "other content arrived than was kept"]]
    assert names == ""


def test_what_does_not_stay_in_its_place_is_named(tmp_path: Path) -> None:
    """A later item overwrites an earlier one, as a program that runs at the same time may do."""
    items = [item("a", b"one"), [*item("a", b"two")[:4], 2, *item("a", b"two")[5:]]]
    answer, _ = put_back(tmp_path, pack(tmp_path, items, [b"one", b"two"]))
    assert answer["lost"] == [["a", "it did not stay"]]


def test_a_script_that_hears_no_more_gives_up_and_clears_its_folder(tmp_path: Path) -> None:
    pack(tmp_path, [item("a", b"good")], [b"good"])
    request = {
        "verb": "put_back",
        "root": str(tmp_path / "work"),
        "folder": str(tmp_path / "in"),
        "parcels": [],
        "part_name": ".t.sandkeeper-part",
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


def collect(tmp_path: Path, prepare: str, **request: Any) -> tuple[dict[str, Any], list[Any]]:
    """Capture the tiny disk; gives the answer, and the rows that came with it."""
    answer, _ = ask(
        tmp_path,
        prepare=f"cd /mnt; {prepare}",
        **{
            "verb": "capture",
            "root": "/mnt",
            "rules": [],
            "secret_rules": [],
            "known": {},
            "entries_max": 100,
            "bytes_max": 2**30,
            "file_max": 2**30,
            "folder": "/mnt/.t",
            "parcel_bytes": 50_000,
            "parcel_rows": 100,
            "small_max": 100_000,
            "window": 8,
            "patience_s": 5,
            **request,
        },
    )
    rows = zlib.decompress(base64.b64decode(answer["rest"])).partition(b"\n")[0]
    return answer, orjson.loads(rows)


def test_a_capture_of_a_full_disk_reads_what_has_no_room_in_a_parcel_by_itself(
    tmp_path: Path,
) -> None:
    answer, rows = collect(
        tmp_path,
        "for i in 0 1 2; do head -c 60000 /dev/urandom > $i; done",
        known={"away": ["look", "hash"]},
    )
    assert [row[0] for row in rows] == ["apart", "apart"], "the first one is in a parcel"
    assert answer["gone"] == ["away"]


def test_a_large_file_with_holes_and_without_room_for_its_pieces_is_read_by_itself(
    tmp_path: Path,
) -> None:
    _, rows = collect(tmp_path, "head -c 200000 /dev/urandom > large; truncate -s 2M large")
    assert [row[:2] for row in rows] == [["apart", "large"]]

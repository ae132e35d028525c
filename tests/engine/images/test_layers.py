"""Layers are unpacked as the OCI says, and never beside the folder that they belong to."""

from __future__ import annotations

import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from sandkeeper.engine.images.errors import ImageError
from sandkeeper.engine.images.unpack import unpack
from sandkeeper.engine.runtime.bubblewrap.binaries import find_uid_base
from support.images import Entry, digest_of, folder, hard_link, make_tar, symlink

UID_BASE = find_uid_base()


def apply(where: Path, *layers: bytes, limit: int = 1 << 30, **config: str) -> dict[str, Any]:
    files = []
    for number, layer in enumerate(layers):
        path = where / f"{number}.tar"
        path.write_bytes(layer)
        files.append((str(path), digest_of(layer)))
    order = {
        "root": str(where / "root"),
        "uid_base": UID_BASE,
        "limit": limit,
        "layers": files,
        "config": {"user": "", "workdir": "", **config},
    }
    return unpack(order, lambda _number: None)


def names_in(where: Path) -> list[str]:
    return sorted(one.name for one in where.iterdir())


def test_upper_layers_replace_and_delete_what_is_below(tmp_path: Path) -> None:
    lower = make_tar(
        {"a/kept": "1", "a/gone": "1", "b/x/deep": "1", "b/y": "1", "c": "file", "d/f": "folder"}
    )
    upper = make_tar(
        [
            ("a/.wh.gone", ""),
            ("b/new/one", "2"),
            ("b/.wh..wh..opq", ""),
            ("c", folder()),
            ("c/inside", "2"),
            ("d", "now a file"),
            (".wh.missing", ""),
        ]
    )
    apply(tmp_path, lower, upper)
    root = tmp_path / "root"
    assert names_in(root / "a") == ["kept"]
    assert names_in(root / "b") == ["new"]
    assert (root / "b/new/one").read_text() == "2"
    assert (root / "c/inside").read_text() == "2"
    assert (root / "d").read_text() == "now a file"


def test_a_whiteout_spares_what_its_own_layer_holds(tmp_path: Path) -> None:
    apply(tmp_path, make_tar({"x": "old"}), make_tar([("x", "new"), (".wh.x", "")]))
    assert (tmp_path / "root/x").read_text() == "new"


def test_links_modes_times_and_attributes_are_kept(tmp_path: Path) -> None:
    apply(
        tmp_path,
        make_tar(
            {
                "one": Entry("1", 0o4750, (12, 34), pax={"SCHILY.xattr.user.note": "hello"}),
                "two": hard_link("one"),
                "soft": symlink("/one"),
                "evil": Entry("", pax={"SCHILY.xattr.user.overlay.opaque": "y"}),
                "pipe": Entry(kind=tarfile.FIFOTYPE),
                "null": Entry(kind=tarfile.CHRTYPE),
            }
        ),
        make_tar({"three": hard_link("/one")}),
    )
    root = tmp_path / "root"
    found = (root / "one").stat()
    assert found.st_nlink == 3
    assert (root / "soft").readlink() == Path("/one")
    assert stat.S_ISFIFO((root / "pipe").stat().st_mode)
    assert not (root / "null").exists()
    assert os.getxattr(root / "one", "user.note") == b"hello"
    assert os.listxattr(root / "evil") == []
    if UID_BASE is not None:
        assert (found.st_uid, found.st_gid) == (UID_BASE + 12, UID_BASE + 34)
        assert stat.S_IMODE(found.st_mode) == 0o4750


def test_links_are_followed_inside_the_image_only(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    apply(
        tmp_path,
        make_tar({"usr/bin": folder(), "bin": symlink("usr/bin"), "out": symlink(str(outside))}),
        make_tar([("bin/tool", "x"), (f"{str(outside)[1:]}", folder()), ("out/file", "x")]),
    )
    root = tmp_path / "root"
    assert (root / "usr/bin/tool").read_text() == "x"
    assert names_in(outside) == []
    assert (root / str(outside)[1:] / "file").read_text() == "x"


@pytest.mark.parametrize(
    "layer",
    [
        make_tar({"../evil": "x"}),
        make_tar({"a/../../evil": "x"}),
        make_tar({"link": hard_link("../../etc/passwd")}),
        make_tar({"link": hard_link("/etc/shadow-of-the-host")}),
        make_tar({"a": symlink("nowhere"), "a/b": "x"}),
        make_tar({"a/x": "x", "a/.wh...": ""}),
        make_tar([("a/x", "x"), (".wh..", "")]),
        make_tar({".wh.": ""}),
        make_tar({"a/" * 300: folder()}),
        b"not a tar at all" * 100,
        make_tar({"a": "x" * 5000})[:3000],
    ],
    ids=[
        *("up", "up-later", "link-up", "link-nowhere", "dangling", "white-up", "white-self"),
        *("white-none", "deep", "garbage", "cut"),
    ],
)
def test_a_layer_that_leads_out_or_is_damaged_is_refused(tmp_path: Path, layer: bytes) -> None:
    with pytest.raises(ImageError):
        apply(tmp_path, layer)
    assert not (tmp_path / "evil").exists()


def test_what_is_at_the_place_of_a_file_does_not_matter(tmp_path: Path) -> None:
    odd = {"etc/passwd": folder(), "etc/profile": Entry(kind=tarfile.FIFOTYPE)}
    more = {
        "etc/hosts": symlink("/etc"),
        "usr/bin/setpriv": folder(),
        "etc/group": symlink("group"),
    }
    assert apply(tmp_path, make_tar({**odd, **more}))["user"] == "user"
    assert "user:x:1000:" in (tmp_path / "root/etc/passwd").read_text()
    assert "localhost" in (tmp_path / "root/etc/hosts").read_text()


def test_the_space_is_limited(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="more space"):
        apply(tmp_path, make_tar({"big": "x" * 100_000}), limit=50_000)


def test_the_image_gets_a_user_and_keeps_its_own(tmp_path: Path) -> None:
    passwd = "root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh"
    system = make_tar({"etc/passwd": passwd, "etc/group": "node:x:1000:\n", "bin/sh": "x"})
    said = apply(tmp_path, system, user="1000", workdir="/srv/app")
    root = tmp_path / "root"
    lines = (root / "etc/passwd").read_text().splitlines()
    number = "1000" if UID_BASE is None else "1001"
    assert lines[-1] == f"user:x:{number}:{number}::/home/user:/bin/bash"
    assert said["user"] == "node"
    assert said["workdir"] == "/srv/app"
    assert (root / "srv/app").is_dir()
    assert (root / "bin/bash").read_text().startswith("#!/bin/sh")
    assert any("no bash" in note for note in said["notes"])


def test_an_image_that_names_nothing_gets_the_usual_user(tmp_path: Path) -> None:
    said = apply(tmp_path, make_tar({"hello": "x"}), user="stranger")
    assert (said["user"], said["workdir"]) == ("user", "/home/user")
    assert [note.partition(":")[0] for note in said["notes"]] == [
        "the image has no shell",
        "the image's user 'stranger' is not in its /etc/passwd",
    ]

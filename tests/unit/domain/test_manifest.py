"""Paths, rules and manifests are decided without touching a file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.domain.files.ignore_rules import DEFAULT_RULES, IgnoreRules, read_rules
from sandkeeper.domain.files.manifest import (
    Kind,
    Manifest,
    ManifestEntry,
    find_difference,
    find_path_problem,
    leads_out,
    put_entries,
)
from sandkeeper.services.files.agent.replies import SeenEntry
from sandkeeper.services.files.diff import compare, split_batches
from sandkeeper.services.files.versions import decode_manifest, encode_manifest


def file(path: str, content: str = "1", **fields: object) -> ManifestEntry:
    return ManifestEntry(path, Kind.FILE, sha256=content, size=len(content)).evolve(**fields)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("a/b.txt", ""),
        ("ünï/日本", ""),
        (".hidden/..dots...", ""),
        ("a b\nc", ""),
        ("", "empty"),
        ("/a", "absolute"),
        ("..", "leads out"),
        ("a/../b", "leads out"),
        ("a/", "ends in"),
        ("a//b", "ends in"),
        ("./a", "ends in"),
        ("a\0", "NUL"),
        ("a\udcff", "UTF-8"),
        ("x" * 256, "name longer"),
        ("x/" * 2500 + "x", ""),
        ("xyz/" * 1500 + "x", "is longer"),
    ],
)
def test_a_path_is_relative_plain_and_inside(path: str, problem: str) -> None:
    found = find_path_problem(path)
    assert problem in found
    assert bool(found) is bool(problem)


@pytest.mark.parametrize(
    ("path", "target", "out"),
    [
        ("a", "b", False),
        ("d/a", "../b", False),
        ("d/a", "../../b", True),
        ("a", "..", True),
        ("a", "/etc/passwd", True),
        ("d/e/a", "../../x/../y", False),
    ],
)
def test_a_link_that_leads_out_is_seen(path: str, target: str, out: bool) -> None:
    assert leads_out(path, target) is out


@pytest.mark.parametrize(
    ("rules", "path", "ignored"),
    [
        ("", "node_modules/a/b.js", True),
        ("", "deep/node_modules/x", True),
        ("", "node_modules", False),
        ("", ".git/objects/aa/bb", True),
        ("", ".git/HEAD", False),
        ("", "src/a.pyc", True),
        ("!node_modules/", "node_modules/a", False),
        ("*.log", "deep/app.log", True),
        ("/build", "build/x", True),
        ("/build", "src/build/x", False),
        ("docs/*.md", "docs/a.md", True),
        ("docs/*.md", "docs/deep/a.md", False),
        ("docs/**/a.md", "docs/x/y/a.md", True),
        ("docs/**", "docs/x/y", True),
        ("*.log\n!keep.log", "keep.log", False),
        ("[ab].txt", "b.txt", True),
        ("[!ab].txt", "b.txt", False),
        ("# *.py\n\n", "a.py", False),
    ],
)
def test_rules_are_read_as_a_gitignore_is(rules: str, path: str, ignored: bool) -> None:
    ignoring = IgnoreRules([*DEFAULT_RULES, *read_rules(rules)])
    assert ignoring.ignores_deeply(path) is ignored


def test_a_rule_that_could_take_hours_is_no_rule() -> None:
    ignoring = IgnoreRules(["*a" * 30, "**/" * 30 + "x", "[z-a]"])
    assert ignoring.ignores_deeply("a" * 200 + "b") is False


def test_a_version_changes_with_content_and_permissions_and_not_with_time() -> None:
    old = Manifest.of([file("a"), file("b"), ManifestEntry("d", Kind.FOLDER, mode=0o755)])
    assert old.tree == Manifest.of([*(one.evolve(mtime_ns=9) for one in old.files)]).tree
    new = Manifest.of([file("a", "2"), ManifestEntry("d", Kind.FOLDER, mode=0o700), file("c")])
    gone = new.entries | {"e": ManifestEntry("e", Kind.GONE)}
    found = [(one.path, one.verb) for one in find_difference(old, Manifest.of(gone.values()))]
    assert found == [("a", "changed"), ("b", "removed"), ("c", "added"), ("d", "changed")]
    assert find_difference(old, old) == []


def test_a_file_is_no_folder_and_a_folder_no_file() -> None:
    manifest = Manifest.of([file("d/e/f"), file("a")])
    for path in ("d", "d/e", "a/b", "d/e/f/g"):
        with pytest.raises(InvalidRequestError):
            put_entries(manifest, [file(path)])
    assert set(put_entries(manifest, [file("d/x")]).entries) == {"a", "d/e/f", "d/x"}


@given(
    st.lists(
        st.builds(
            file,
            st.text(min_size=1, max_size=8).filter(lambda text: not find_path_problem(text)),
            st.text("0123456789abcdef", min_size=1, max_size=8),
            mode=st.integers(0, 0o7777),
            mtime_ns=st.integers(0, 2**62),
            is_pending=st.booleans(),
            pack=st.sampled_from(["", "p1", "p2"]),
            offset=st.integers(0, 2**40),
        )
    )
)
def test_a_list_reads_back_as_it_was_written(entries: list[ManifestEntry]) -> None:
    manifest = Manifest.of(entries)
    assert decode_manifest(encode_manifest(manifest)) == manifest


def seen(mtime_ns: int, sha256: str = "", size: int = 1, kind: Kind = Kind.FILE) -> SeenEntry:
    return SeenEntry("a", kind, 0o644, size, mtime_ns, "", "", sha256)


@pytest.mark.parametrize(
    ("inside", "verdict"),
    [
        (None, "missing"),
        (seen(50, "1"), "whole"),
        (seen(99), "newer"),
        (seen(10), "older"),
        (seen(50), "whole"),
        (seen(50, size=7), "damaged"),
        (seen(10, "1"), "whole"),
        (seen(10, "2"), "older"),
        (seen(99, "2"), "newer"),
        (seen(50, "2"), "damaged"),
        (seen(99, kind=Kind.FOLDER), "newer"),
    ],
)
def test_a_hash_decides_before_the_time_does(inside: SeenEntry | None, verdict: str) -> None:
    assert compare(file("a", mtime_ns=50), inside, exact=False) == verdict


def test_folders_close_after_everything_in_them_is_written() -> None:
    entries = [
        ManifestEntry("d", Kind.FOLDER),
        ManifestEntry("d/e", Kind.FOLDER),
        file("d/big", size=100),
        *(file(f"d/e/{number}", size=4) for number in range(5)),
        ManifestEntry("d/link", Kind.SYMLINK, target="x"),
    ]
    batches = list(split_batches(entries, small_bytes=10, parcel_bytes=10, items_max=100))
    paths = [[one.path for one in batch] for batch in batches]
    assert paths[:3] == [["d/e/0", "d/e/1"], ["d/e/2", "d/e/3"], ["d/e/4"]]
    assert paths[3:] == [["d/big"], ["d/link", "d/e", "d"]]

"""A parcel from inside is taken only if it is what it says: a sandbox may send anything."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson
import pytest

from sandkeeper.domain.errors import ProviderAmbiguousError
from sandkeeper.services.files.agent.replies import Piece, SentFile, read_parcel


def here(path: str, data: bytes, **changes: Any) -> list[Any]:
    row = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), **changes}
    return ["here", path, "file", 0o644, row["size"], 1, "", row["sha256"]]


def make(rows: list[list[Any]], *contents: bytes) -> bytes:
    return orjson.dumps(rows) + b"\n" + b"".join(contents)


def test_contents_come_in_the_order_of_their_rows() -> None:
    rows = [here("a", b"one"), ["piece", "b", 5, 3], ["seen", "d", "dir", 0o755, 0, 1, "", ""]]
    first, piece, folder = read_parcel(make(rows, b"one", b"two"))
    assert isinstance(first, SentFile)
    assert isinstance(folder, SentFile)
    assert (first.data, folder.how) == (b"one", "seen")
    assert piece == Piece("b", 5, b"two")


@pytest.mark.parametrize(
    "raw",
    [
        make([here("a", b"one")], b"two"),
        make([here("a", b"one", size=9)], b"one"),
        make([here("a", b"one", size=-1)], b"one"),
        make([here("a", b"one")], b"one", b"more"),
        make([["piece", "b", 0, 5]], b"abc"),
        make([["here", "a"]], b""),
        b"no rows",
        b"{}\nrest",
    ],
)
def test_what_does_not_fit_is_refused_as_a_whole(raw: bytes) -> None:
    with pytest.raises(ProviderAmbiguousError):
        read_parcel(raw)


def test_a_path_that_leads_out_is_named_and_what_follows_is_still_read() -> None:
    bad, good = read_parcel(make([here("../a", b"one"), here("b", b"two")], b"one", b"two"))
    assert isinstance(bad, SentFile)
    assert isinstance(good, SentFile)
    assert (bad.how, bad.reason) == ("error", "leads out of the work folder")
    assert (good.how, good.data) == ("here", b"two")

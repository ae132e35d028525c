"""A pack opens chunk by chunk, and no change of it goes unseen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkeeper.encryption.errors import DataKeyMissingError
from sandkeeper.encryption.keyring import Keyring
from sandkeeper.encryption.packs import (
    CHUNK_BYTES,
    HEADER_BYTES,
    STORED_BYTES,
    PackDamagedError,
    PackSealer,
    find_last_chunk,
    locate_chunks,
    open_header,
    seal_pack,
)

SIZES = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 3 * CHUNK_BYTES + 7]


@pytest.fixture(scope="module")
def keyring() -> Keyring:
    made = Keyring()
    made.hold({"aaaaaaaa": b"k" * 32}, current="aaaaaaaa")
    return made


def make_content(size: int) -> bytes:
    return (b"0123456789abcdef" * (size // 16 + 1))[:size]


def open_all(keyring: Keyring, name: str, stored: bytes) -> bytes:
    cipher = open_header(keyring, name, stored[:HEADER_BYTES])
    last = find_last_chunk(len(stored))
    start, size = locate_chunks(0, last + 1, len(stored))
    return cipher.open_run(0, stored[start : start + size], last=last)


@pytest.mark.parametrize("size", SIZES)
def test_a_pack_of_any_size_comes_back_and_its_text_is_not_in_it(
    keyring: Keyring, size: int
) -> None:
    stored = seal_pack(keyring, "pack", make_content(size))
    assert open_all(keyring, "pack", stored) == make_content(size)
    assert b"0123456789abcdef" not in stored


@given(st.lists(st.integers(0, CHUNK_BYTES * 2), max_size=5))
def test_it_does_not_matter_in_which_pieces_the_content_arrives(sizes: list[int]) -> None:
    keyring = Keyring()
    keyring.hold({"aaaaaaaa": b"k" * 32}, current="aaaaaaaa")
    sealer = PackSealer(keyring, "pack")
    pieces = [make_content(size) for size in sizes]
    stored = b"".join([*(sealer.feed(piece) for piece in pieces), sealer.finish()])
    assert open_all(keyring, "pack", stored) == b"".join(pieces)


def test_one_chunk_opens_without_the_others(keyring: Keyring) -> None:
    content = make_content(5 * CHUNK_BYTES + 3)
    stored = seal_pack(keyring, "pack", content)
    cipher = open_header(keyring, "pack", stored[:HEADER_BYTES])
    start, size = locate_chunks(3, 1, len(stored))
    found = cipher.open_run(3, stored[start : start + size], last=find_last_chunk(len(stored)))
    assert found == content[3 * CHUNK_BYTES : 4 * CHUNK_BYTES]


@pytest.mark.parametrize("size", SIZES)
def test_a_pack_that_was_cut_off_is_found(keyring: Keyring, size: int) -> None:
    stored = seal_pack(keyring, "pack", make_content(size))
    cuts = {len(stored) - 1, HEADER_BYTES, HEADER_BYTES + STORED_BYTES, len(stored) - 17}
    for cut in cuts:
        if HEADER_BYTES <= cut < len(stored):
            with pytest.raises(PackDamagedError):
                open_all(keyring, "pack", stored[:cut])


def test_a_pack_that_was_made_longer_is_found(keyring: Keyring) -> None:
    stored = seal_pack(keyring, "pack", make_content(2 * CHUNK_BYTES))
    for more in (b"x", stored[HEADER_BYTES:], stored[HEADER_BYTES : HEADER_BYTES + STORED_BYTES]):
        with pytest.raises(PackDamagedError):
            open_all(keyring, "pack", stored + more)


def test_chunks_that_changed_places_or_came_from_another_pack_are_found(keyring: Keyring) -> None:
    content = make_content(3 * CHUNK_BYTES)
    one, two = (seal_pack(keyring, name, content) for name in ("one", "two"))
    first = slice(HEADER_BYTES, HEADER_BYTES + STORED_BYTES)
    second = slice(first.stop, first.stop + STORED_BYTES)
    swapped = one[: first.start] + one[second] + one[first] + one[second.stop :]
    mixed = one[: first.start] + two[first] + one[first.stop :]
    again = seal_pack(keyring, "one", content)
    older = one[: first.start] + again[first] + one[first.stop :]
    for changed in (swapped, mixed, older, two):
        with pytest.raises(PackDamagedError):
            open_all(keyring, "one", changed)


def test_a_change_of_any_part_is_found(keyring: Keyring) -> None:
    stored = bytearray(seal_pack(keyring, "pack", make_content(CHUNK_BYTES + 5)))
    for at in (0, 20, HEADER_BYTES, HEADER_BYTES + STORED_BYTES, len(stored) - 1):
        stored[at] ^= 1
        with pytest.raises(PackDamagedError):
            open_all(keyring, "pack", bytes(stored))
        stored[at] ^= 1


def test_a_pack_of_an_unknown_data_key_names_it(keyring: Keyring) -> None:
    stored = seal_pack(keyring, "pack", b"text")
    other = Keyring()
    other.hold({"bbbbbbbb": b"k" * 32}, current="bbbbbbbb")
    with pytest.raises(DataKeyMissingError, match="aaaaaaaa"):
        open_header(other, "pack", stored[:HEADER_BYTES])

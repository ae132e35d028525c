"""A sealed value opens in its own place with its own key, and nowhere else."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkeeper.encryption.errors import DataKeyMissingError, SecretDamagedError
from sandkeeper.encryption.keyring import Keyring


def make_keyring(*ids: str) -> Keyring:
    keyring = Keyring()
    keyring.hold({key_id: key_id.encode().ljust(32, b"x") for key_id in ids}, current=ids[-1])
    return keyring


@given(st.text(), st.text())
def test_what_was_sealed_opens_with_the_same_context_and_says_nothing(
    text: str, context: str
) -> None:
    keyring = make_keyring("aaaaaaaa")
    sealed = keyring.seal(text, context=context)
    assert keyring.open(sealed, context=context) == text
    assert sealed.startswith("sk1.aaaaaaaa.")


def test_the_same_text_is_never_sealed_to_the_same_value() -> None:
    keyring = make_keyring("aaaaaaaa")
    assert len({keyring.seal("same", context="c") for _ in range(100)}) == 100


def test_a_value_that_was_moved_to_another_place_does_not_open() -> None:
    keyring = make_keyring("aaaaaaaa")
    sealed = keyring.seal("secret", context="sandboxes.env:project:shop")
    with pytest.raises(SecretDamagedError):
        keyring.open(sealed, context="sandboxes.env:project:blog")


def test_a_change_of_any_byte_is_found() -> None:
    keyring = make_keyring("aaaaaaaa")
    head, _, body = keyring.seal("secret", context="c").rpartition(".")
    raw = bytearray(base64.urlsafe_b64decode(body))
    for at in range(len(raw)):
        raw[at] ^= 1
        changed = f"{head}.{base64.urlsafe_b64encode(raw).decode()}"
        with pytest.raises(SecretDamagedError):
            keyring.open(changed, context="c")
        raw[at] ^= 1


@pytest.mark.parametrize("text", ["", "secret", "sk1.aaaaaaaa.", "sk1.aaaaaaaa.AAAA", "é"])
def test_what_was_never_sealed_is_damaged(text: str) -> None:
    with pytest.raises(SecretDamagedError):
        make_keyring("aaaaaaaa").open(text, context="c")


def test_an_older_key_opens_and_a_key_that_is_not_known_is_named() -> None:
    sealed = make_keyring("aaaaaaaa").seal("secret", context="c")
    assert make_keyring("aaaaaaaa", "bbbbbbbb").open(sealed, context="c") == "secret"
    with pytest.raises(DataKeyMissingError, match="aaaaaaaa"):
        make_keyring("bbbbbbbb").open(sealed, context="c")


def test_an_empty_keyring_seals_nothing() -> None:
    with pytest.raises(DataKeyMissingError):
        Keyring().seal("secret", context="c")

"""Master keys wrap data keys, and only the right one unwraps them."""

from __future__ import annotations

import base64
import os
import stat
import sys
from pathlib import Path

import pytest

from sandkeeper.domain.errors import InvalidSettingsError
from sandkeeper.encryption.master_keys import (
    KmsMasterKey,
    LocalMasterKey,
    add_key_to_file,
    create_key_file,
    keep_first_key_in_file,
    parse_keys,
    read_key_file,
)

KMS = """
import base64, sys
verb, key_id = sys.argv[1:]
given = base64.b64decode(sys.stdin.read())
mark = key_id.encode()
if verb == "wrap":
    print(base64.b64encode(mark + given[::-1]).decode())
elif given.startswith(mark):
    print(base64.b64encode(given[len(mark):][::-1]).decode())
else:
    sys.exit("this key was not wrapped here")
"""


def test_a_data_key_unwraps_with_its_own_master_key_and_id_only() -> None:
    one, other = LocalMasterKey(bytes(32)), LocalMasterKey(b"x" * 32)
    wrapped = one.wrap(b"d" * 32, key_id="k")
    assert one.unwrap(wrapped, key_id="k") == b"d" * 32
    assert one.unwrap(wrapped, key_id="another") is None
    assert other.unwrap(wrapped, key_id="k") is None
    assert one.unwrap("no base64", key_id="k") is None
    assert one.id != other.id


def test_keys_are_read_in_both_alphabets_and_separated_by_commas_or_lines() -> None:
    key = b"\xfb\xff" * 16
    texts = base64.b64encode(key).decode(), base64.urlsafe_b64encode(key).decode()
    found = parse_keys(f"{texts[0]},{texts[1]}\n{texts[0]}", source="here")
    assert {one.id for one in found} == {LocalMasterKey(key).id}
    assert len(found) == 3


@pytest.mark.parametrize("text", ["short", "A" * 44, base64.b64encode(bytes(16)).decode()])
def test_a_key_of_another_size_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(InvalidSettingsError, match="openssl rand") as caught:
        parse_keys(text, source="SANDKEEPER_ENCRYPTION_KEY")
    assert text not in str(caught.value)


def test_a_key_file_is_private_and_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "encryption.key"
    assert read_key_file(path) == []
    create_key_file(path)
    before = path.read_text()
    create_key_file(path)
    assert path.read_text() == before
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["encryption.key"]


def test_a_file_holds_the_new_key_before_the_old_one_until_it_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "encryption.key"
    create_key_file(path)
    old = read_key_file(path)[0].id
    add_key_to_file(path)
    new, kept = (one.id for one in read_key_file(path))
    assert (kept, new == old) == (old, False)
    keep_first_key_in_file(path)
    assert [one.id for one in read_key_file(path)] == [new]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_command_wraps_and_unwraps_with_a_key_management_service(tmp_path: Path) -> None:
    script = tmp_path / "kms.py"
    script.write_text(KMS)
    master = KmsMasterKey(f"{sys.executable} {script}")
    data_key = os.urandom(32)
    wrapped = master.wrap(data_key, key_id="k")
    assert master.unwrap(wrapped, key_id="k") == data_key
    with pytest.raises(InvalidSettingsError, match="this key was not wrapped here"):
        master.unwrap(wrapped, key_id="another")
    with pytest.raises(InvalidSettingsError, match="cannot be run"):
        KmsMasterKey("/no/such/command").wrap(data_key, key_id="k")
    with pytest.raises(InvalidSettingsError, match="did not print a key"):
        KmsMasterKey("echo").unwrap(wrapped, key_id="k")

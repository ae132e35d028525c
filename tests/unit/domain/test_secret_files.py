"""Which files are taken for secrets, and what a receipt says about them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandkeeper.domain.files.ignore_rules import (
    DEFAULT_RULES,
    SECRET_RULES,
    KeptPaths,
    read_rules,
)
from sandkeeper.domain.files.manifest import Manifest, NotKept
from sandkeeper.domain.policy import Policy
from sandkeeper.domain.receipt import Receipt, WakeMethod, parse_receipt, render_receipt
from sandkeeper.services.files.versions import decode_manifest, encode_manifest


def apply(own: str = "") -> KeptPaths:
    return KeptPaths([*DEFAULT_RULES, *read_rules(own)], SECRET_RULES)


@pytest.mark.parametrize(
    "path",
    [
        ".env",
        "api/.env",
        ".env.local",
        ".env.production",
        ".ssh/config",
        "home/.ssh/deep/key",
        "tls/server.pem",
        "server.key",
        "a.p12",
        "a.pfx",
        "id_rsa",
        "keys/id_ed25519.pub",
        "id_ecdsa_work",
        ".netrc",
        ".npmrc",
        "web/.npmrc",
        ".pypirc",
        ".git-credentials",
        ".aws/credentials",
        "home/.aws/credentials",
        ".docker/config.json",
        ".kube/config",
    ],
)
def test_a_file_that_usually_holds_secrets_is_not_kept_and_noted(path: str) -> None:
    kept = apply()
    assert kept.skips_deeply(path)
    assert kept.secret_files == [path]
    assert not KeptPaths(DEFAULT_RULES).skips_deeply(path)


@pytest.mark.parametrize(
    "path",
    [
        ".env.example",
        ".env.sample",
        "api/.env.template",
        ".envrc",
        "env",
        "app.py",
        "keyboard.py",
        "monkey",
        "pem.txt",
        ".aws/config",
        "config.json",
        "docker/config.json",
        "certs/cacert.pem",
        ".local/lib/python3.12/site-packages/grpc/roots.pem",
        ".env/bin/activate",
        "my.key/notes.txt",
    ],
)
def test_other_files_are_kept(path: str) -> None:
    kept = apply()
    assert not kept.skips_deeply(path)
    assert kept.secret_files == []


@pytest.mark.parametrize(
    ("own", "path"),
    [("!.env", ".env"), ("!*.pem", "tls/a.pem"), ("!.ssh/", ".ssh/config"), ("!/a.key", "a.key")],
)
def test_a_rule_of_the_sandbox_itself_wins(own: str, path: str) -> None:
    assert not apply(own).skips_deeply(path)


@pytest.mark.parametrize(("own", "path"), [(".env", ".env"), ("", "node_modules/a/.env")])
def test_what_is_ignored_anyway_is_not_put_down_to_the_policy(own: str, path: str) -> None:
    kept = apply(own)
    assert kept.skips_deeply(path)
    assert kept.secret_files == []


def test_a_policy_that_says_nothing_follows_the_setting() -> None:
    for default in (True, False):
        assert Policy().keeps_secret_files(default=default) is default
        assert Policy(keep_secret_files=True).keeps_secret_files(default=default)
        assert not Policy(keep_secret_files=False).keeps_secret_files(default=default)


def test_a_list_names_what_was_not_kept_and_is_the_same_version() -> None:
    manifest = Manifest({}, NotKept((".env",), 30))
    assert decode_manifest(encode_manifest(manifest)) == manifest
    assert manifest.tree == Manifest().tree


RECREATED = Receipt(WakeMethod.RECREATE, files_version=2, not_kept=(".env",), not_kept_count=1)


@pytest.mark.parametrize(
    ("receipt", "note"),
    [
        (RECREATED, "not kept by policy: .env (1 file)"),
        (
            replace(RECREATED, not_kept=("a.pem", "b.pem", "c.pem", "d.pem"), not_kept_count=40),
            "not kept by policy: a.pem, b.pem, c.pem, … (40 files)",
        ),
        (
            replace(RECREATED, files_gap_ms=2000),
            "files as of 2 s before the end; not kept by policy: .env (1 file)",
        ),
        (replace(RECREATED, method=WakeMethod.RESUME), None),
        (replace(RECREATED, not_kept=(), not_kept_count=0), None),
    ],
)
def test_the_note_of_a_new_instance_names_what_was_not_kept(
    receipt: Receipt, note: str | None
) -> None:
    assert receipt.files_note == note
    assert parse_receipt(render_receipt(receipt)) == receipt

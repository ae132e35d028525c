"""What `network.rules` may say, and what becomes of placeholders."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from e2b import Secret

from sandkeeper.engine.egress_proxy.authority import EgressAuthority
from sandkeeper.engine.egress_proxy.rules import check_rules, fill, list_secrets
from sandkeeper.engine.errors import BadRequestError


@pytest.mark.parametrize(
    ("host", "headers", "said"),
    [
        ("*.example.com", {"a": "b"}, "full name"),
        ("192.0.2.1", {"a": "b"}, "full name"),
        ("localhost", {"a": "b"}, "full name"),
        ("example.com", {"host": "b"}, "belongs to the connection"),
        ("example.com", {"Content-Length": "1"}, "belongs to the connection"),
        ("example.com", {"a b": "c"}, "no name of a header"),
        ("example.com", {"a": "b\r\nc: d"}, "on one line"),
        ("example.com", {"a": "\N{EURO SIGN}"}, "one byte"),
        ("example.com", {"a": "b" * 10_000}, "8192"),
        ("example.com", {"a": "${e2b.identity.tokens.aws}"}, "workload identity"),
    ],
)
def test_a_rule_that_cannot_be_obeyed_is_refused(
    host: str, headers: dict[str, str], said: str
) -> None:
    with pytest.raises(BadRequestError, match=said):
        check_rules({host: [headers]})


def test_later_headers_win_and_hosts_without_any_are_left_out() -> None:
    rules = check_rules(
        {"API.Example.com": [{"X-One": "1", "X-Two": "2"}, {"x-one": "3"}], "example.org": [{}]}
    )
    assert rules == {"api.example.com": {"x-one": "3", "x-two": "2"}}


def test_placeholders_are_those_of_the_sdk() -> None:
    rules = check_rules({"example.com": [{"authorization": f"Bearer {Secret.fill('a key')}"}]})
    assert list_secrets(rules) == {"a key"}
    filled = fill(rules["example.com"], {"a key": "${e2b.secrets.other}"})
    assert filled == {"authorization": "Bearer ${e2b.secrets.other}"}, "a value is only a value"
    with pytest.raises(KeyError):
        fill(rules["example.com"], {})


def test_the_authority_is_kept_and_vouches_for_hosts(tmp_path: Path) -> None:
    first, second = EgressAuthority(tmp_path / "tls"), EgressAuthority(tmp_path / "tls")
    assert first.pem == second.pem
    assert (tmp_path / "tls/egress-authority.pem").stat().st_mode & 0o777 == 0o600
    trusting = ssl.create_default_context(cadata=first.pem)
    into_client, into_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = second.find_context("example.com").wrap_bio(into_server, into_client, server_side=True)
    client = trusting.wrap_bio(into_client, into_server, server_hostname="example.com")
    done = 0
    while done < 2:
        done = 0
        for side in (client, server):
            try:
                side.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                continue
    assert client.getpeercert()["subjectAltName"] == (("DNS", "example.com"),)  # type: ignore[index]

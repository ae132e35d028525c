"""How a new instance is reached is kept from its creation, for its first use only."""

from __future__ import annotations

from sandkeeper.providers.e2b.connections import KEPT_MAX, Connections

DETAIL = {"envdVersion": "0.6.13", "envdAccessToken": "token", "domain": None}


def make_connections() -> Connections:
    return Connections(api_url="http://api", sandbox_url=None, domain="e2b.example")


def test_a_kept_connection_is_handed_out_once() -> None:
    connections = make_connections()
    connections.keep("i1", DETAIL)
    told = connections.take("i1")
    assert told == connections.read("i1", DETAIL)
    assert told is not None
    assert (told.access_token, told.domain) == ("token", "e2b.example")
    assert connections.take("i1") is None


def test_a_detail_that_cannot_be_read_fails_no_creation() -> None:
    connections = make_connections()
    for number, detail in enumerate(({}, {"envdVersion": "not a version"})):
        connections.keep(f"i{number}", detail)
        assert connections.take(f"i{number}") is None


def test_only_the_newest_connections_are_kept() -> None:
    connections = make_connections()
    for number in range(KEPT_MAX + 1):
        connections.keep(f"i{number}", DETAIL)
    assert connections.take("i0") is None
    assert connections.take(f"i{KEPT_MAX}") is not None

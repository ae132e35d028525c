"""Which names the machine's other servers have too, and where the dashboard is instead."""

from __future__ import annotations

import pytest

from sandkeeper.common.dashboard_host import get_dashboard_url, is_shared_name


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1:7420", "127.9.9.9:1", "LOCALHOST:7420", "localhost."),
        *("[::1]:7420", "[::]:80", "0.0.0.0:7420", "[::ffff:127.0.0.1]:1", "127.0.0.1:nonsense"),
    ],
)
def test_these_names_are_shared_by_all_servers_of_the_machine(host: str) -> None:
    assert is_shared_name(host)


@pytest.mark.parametrize(
    "host",
    [
        *("sandkeeper.localhost:7420", "keeper.example.com", "10.0.0.5:7420", "", "[fe80::1]:7420"),
        *("127.0.0.1.example.com", "localhost.example.com", "3000-abc.localhost:7421"),
    ],
)
def test_these_are_not(host: str) -> None:
    assert not is_shared_name(host)


def test_the_dashboard_keeps_port_path_and_query() -> None:
    assert get_dashboard_url("http://127.0.0.1:7420") == "http://sandkeeper.localhost:7420"
    moved = get_dashboard_url("http://localhost:7/sandboxes/a%2Fb?x=1")
    assert moved == "http://sandkeeper.localhost:7/sandboxes/a%2Fb?x=1"
    assert get_dashboard_url("http://[::1]:7420/") == "http://sandkeeper.localhost:7420/"
    assert get_dashboard_url("http://127.0.0.1:x/") == "http://sandkeeper.localhost/"
    assert get_dashboard_url("https://keeper.example.com/") == "https://keeper.example.com/"

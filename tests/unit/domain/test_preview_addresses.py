"""The host names of previews: stable, one for each owner, and never another owner's."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkeeper.domain.gateway.addresses import (
    PreviewAddress,
    build_preview_host,
    find_owner_by_id,
    find_preview_name,
    parse_preview_host,
)
from sandkeeper.domain.owner import Owner, OwnerKind

DOMAIN = "preview.localhost"
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
OWNERS = st.builds(Owner, st.sampled_from(OwnerKind), st.text(min_size=1, max_size=200))


@given(OWNERS, st.none() | st.integers(1, 65535))
def test_every_owner_and_port_has_a_host_name_that_leads_back(
    owner: Owner, port: int | None
) -> None:
    name = find_preview_name(owner)
    host = build_preview_host(name, DOMAIN, port)
    assert LABEL.fullmatch(host.removesuffix(f".{DOMAIN}"))
    assert parse_preview_host(host, DOMAIN) == PreviewAddress(name, port)
    by_id = find_owner_by_id(name)
    assert by_id is None or by_id == owner


@given(OWNERS, OWNERS)
def test_no_two_owners_share_a_name(one: Owner, other: Owner) -> None:
    assert one == other or find_preview_name(one) != find_preview_name(other)


@pytest.mark.parametrize(
    ("project", "name"),
    [
        ("shop", "shop"),
        ("7c9e6679-7425-40de-944b-e07fc1f90ae7", "7c9e6679-7425-40de-944b-e07fc1f90ae7"),
        ("My_Shop", "my-shop--moonluscbfu6a2m3"),
    ],
)
def test_names_never_change(project: str, name: str) -> None:
    assert find_preview_name(Owner.project(project)) == name


def test_an_id_that_looks_like_another_owners_name_gets_one_of_its_own() -> None:
    name = find_preview_name(Owner.project("My_Shop"))
    assert find_preview_name(Owner.project(name)) != name


@pytest.mark.parametrize(
    "host",
    [
        "preview.localhost",
        "a.b.preview.localhost",
        "A.preview.localhost",
        "-a.preview.localhost",
        "a-.preview.localhost",
        "0--a.preview.localhost",
        "65536--a.preview.localhost",
        "a--b.preview.localhost",
        "a.preview.localhost.evil.test",
        f"{'a' * 57}.preview.localhost",
    ],
)
def test_other_hosts_lead_nowhere(host: str) -> None:
    assert parse_preview_host(host, DOMAIN) is None

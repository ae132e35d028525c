"""Whom a sandbox is counted for."""

from __future__ import annotations

import pytest

from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.domain.policy import Launch
from sandkeeper.domain.tenant import DEFAULT_TENANT, find_tenant, parse_tenant


def test_a_named_tenant_comes_before_the_metadata_and_both_before_the_default() -> None:
    metadata = {"customer": "acme"}
    named = Launch(metadata=metadata, tenant="globex")
    assert find_tenant(named, metadata_key="customer") == "globex"
    assert find_tenant(Launch(metadata=metadata), metadata_key="customer") == "acme"
    assert find_tenant(Launch(metadata=metadata), metadata_key="") == DEFAULT_TENANT
    assert find_tenant(Launch(metadata={"customer": ""}), metadata_key="customer") == DEFAULT_TENANT


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "x" * 65, "ü", "a\n", "-a", "a\x00"])
def test_a_name_that_no_url_or_header_can_carry_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_tenant(name)
    if name:
        with pytest.raises(InvalidRequestError):
            find_tenant(Launch(metadata={"customer": name}), metadata_key="customer")

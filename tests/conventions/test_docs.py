"""What is written about the code is what the code is."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from sandkeeper.api.auth import Access
from sandkeeper.api.errors import STATUS
from sandkeeper.api.routes import ROUTES
from sandkeeper.settings import Settings
from sandkeeper.telemetry import Metrics
from support.generated_docs import PAGES, error_classes

HERE = Path(__file__).parents[2]


@pytest.mark.parametrize("name", PAGES)
def test_a_reference_page_is_in_step_with_the_code(name: str) -> None:
    page = HERE / "docs" / name
    made = PAGES[name]()
    if os.environ.get("UPDATE_DOCS"):
        page.write_text(made)
    assert page.read_text() == made, "run UPDATE_DOCS=1 pytest tests/conventions"


def test_every_error_has_a_status_a_hint_and_a_code_of_its_own() -> None:
    classes = error_classes()
    codes = [one.code for one in classes]
    assert len(codes) == len(set(codes))
    for one in classes:
        assert any(ancestor in STATUS for ancestor in one.__mro__), one
        assert one.hint, one
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", one.code), one


def test_every_route_says_who_may_call_and_what_it_does() -> None:
    seen = set()
    for entry in ROUTES:
        assert isinstance(entry.access, Access)
        assert (entry.handler.__doc__ or "").strip(), entry
        assert (entry.method, entry.path) not in seen
        seen.add((entry.method, entry.path))


def test_every_setting_has_its_sentence() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name


def test_metrics_have_our_prefix_and_no_owner_as_a_label() -> None:
    for family in Metrics().registry.collect():
        assert family.name.startswith(("sandkeeper_", "process_"))
        assert family.documentation
    forbidden = {"owner", "project", "sandbox", "sandbox_id", "instance_id", "user"}
    for collector in Metrics().registry._collector_to_names:
        assert not forbidden & set(getattr(collector, "_labelnames", ()))

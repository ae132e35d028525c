"""What is written about the code is what the code is."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest

import sandkeeper
from sandkeeper.api.auth import Access
from sandkeeper.api.errors import STATUS
from sandkeeper.api.routes import ROUTES
from sandkeeper.settings import Settings
from sandkeeper.telemetry import Metrics
from support.generated_docs import PAGES, error_classes

HERE = Path(__file__).parents[2]
SOURCE = Path(sandkeeper.__file__).parent


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


def test_every_setting_is_read_somewhere() -> None:
    text = "\n".join(
        path.read_text() for path in SOURCE.rglob("*.py") if path.name != "settings.py"
    )
    unread = [name for name in Settings.model_fields if not re.search(rf"\b{name}\b", text)]
    assert not unread


def test_metrics_have_our_prefix_and_no_owner_as_a_label() -> None:
    for family in Metrics().registry.collect():
        assert family.name.startswith("sandkeeper_")
        assert family.documentation
    forbidden = {"owner", "project", "sandbox", "sandbox_id", "instance_id", "user"}
    for collector in Metrics().registry._collector_to_names:
        assert not forbidden & set(getattr(collector, "_labelnames", ()))


def test_functions_and_modules_stay_readable() -> None:
    """A function has at most 60 lines and a module at most 500: beyond that nobody reads it."""
    long: list[str] = []
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        if text.count("\n") > 500:
            long.append(f"{path.name}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > 60:
                    long.append(f"{path.name}:{node.name}: {lines} lines")
    assert not long


def test_the_engine_imports_nothing_of_the_keeper() -> None:
    allowed = {"engine"}
    for path in (SOURCE / "engine").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                parts = name.split(".")
                if parts[0] == "sandkeeper" and len(parts) > 1:
                    assert parts[1] in allowed, f"{path.name} imports {name}"

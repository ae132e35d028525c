"""Links in the README and the docs lead to files that exist, and every page can be found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_readme_names_every_page() -> None:
    linked = set(LINK.findall((ROOT / "README.md").read_text()))
    pages = {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    assert pages <= linked


def test_the_site_has_every_page() -> None:
    navigation = set(re.findall(r"([\w./-]+\.md)\n", (ROOT / "mkdocs.yml").read_text()))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages <= navigation


def test_the_tests_for_changed_files_exist() -> None:
    named = re.findall(r'"(tests/[\w/.]+)"', (ROOT / "scripts/changed_tests.py").read_text())
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_no_page_names_a_path_of_one_machine() -> None:
    for page in PAGES:
        assert not re.search(r"/(root|home)/(?!user)\w", page.read_text()), page

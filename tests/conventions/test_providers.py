"""The page about providers says the same as `sandkeeper doctor --provider`."""

from __future__ import annotations

from pathlib import Path

from sandkeeper.providers.features import INSTEAD, NEEDED, ProviderFeature

PAGE = Path("docs/providers.md")


def test_the_page_says_what_happens_without_each_feature() -> None:
    page = PAGE.read_text()
    needed = ", ".join(one.value for one in ProviderFeature if one in NEEDED)
    rows = [f"| {feature.value} | {text} |" for feature, text in INSTEAD.items()]
    assert [row for row in (f"| {needed} |", *rows) if row not in page] == []


def test_every_feature_is_needed_or_has_something_instead() -> None:
    assert NEEDED | set(INSTEAD) == set(ProviderFeature)
    assert not NEEDED & set(INSTEAD)

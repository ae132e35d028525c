"""Names and texts use plain modern English; the words here have a plainer one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOT_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
CHECKED = (*ROOT_PAGES, "bench", "deploy", "docs", "examples", "scripts", "src", "tests")
SUFFIXES = {".css", ".html", ".js", ".jsx", ".md", ".mjs", ".py", ".sh", ".ts", ".tsx", ".yaml"}

WORDS = ("whoever", "somebody", "nobody", "anew", "mend", "mends", "mended", "meanwhile")
WORD = re.compile(rf"(?<![a-z])(?:{'|'.join(WORDS)})(?![a-z])", re.IGNORECASE)

EXCEPTIONS = ("src/sandkeeper/engine/runtime/base/rootfs.py",)
"""The name of a Unix user."""


def is_below(path: str, entry: str) -> bool:
    return path == entry or path.startswith(f"{entry}/")


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """The lines with such a word, by the file that they are in."""
    listed = subprocess.run(
        ["git", "ls-files", *CHECKED], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    own = Path(__file__).relative_to(ROOT).as_posix()
    lines: dict[str, list[str]] = {}
    for path in listed:
        file = ROOT / path
        if path == own or file.suffix not in SUFFIXES or not file.exists():
            continue
        numbered = enumerate(file.read_text().splitlines(), start=1)
        hits = [
            f"{path}:{number}: {line.strip()}" for number, line in numbered if WORD.search(line)
        ]
        if hits:
            lines[path] = hits
    return lines


def test_no_text_uses_a_word_that_has_a_plainer_one(found: dict[str, list[str]]) -> None:
    wrong = [
        line
        for path, lines in found.items()
        if not any(is_below(path, entry) for entry in EXCEPTIONS)
        for line in lines
    ]
    assert wrong == []

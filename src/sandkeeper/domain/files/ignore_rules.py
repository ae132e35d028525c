"""Decide which paths are not saved: rules like those of ``.gitignore``; the last match decides.

This module is also sent into the sandbox, where the walk must know what to skip. So it needs only
the standard library, and nothing newer than Python 3.7.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

IGNORE_FILE = ".sandkeeperignore"
RULES_MAX = 1000

DEFAULT_RULES = (
    "node_modules/",
    ".git/objects/",
    ".git/lfs/",
    "__pycache__/",
    "*.pyc",
    ".venv/",
    "venv/",
    ".tox/",
    ".cache/",
    ".npm/",
    ".pnpm-store/",
    ".yarn/cache/",
    ".next/cache/",
    ".nuxt/",
    ".parcel-cache/",
    ".turbo/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".DS_Store",
    "*.sandkeeper-part",
)
"""What a package manager or compiler can create again; ``!rule`` in the ignore file undoes one."""


class IgnoreRules:
    """The rules in force: our defaults, then the lines of the sandbox's own file."""

    def __init__(self, lines: Iterable[str] = DEFAULT_RULES) -> None:
        self._rules = [rule for rule in (_parse_rule(line) for line in lines) if rule is not None]

    def ignores(self, path: str, is_folder: bool) -> bool:
        """Return True if this path itself is ignored; do not ask for paths in an ignored folder."""
        verdict = False
        name = path.rpartition("/")[2]
        for pattern, is_negated, folders_only, whole in self._rules:
            if folders_only and not is_folder:
                continue
            if verdict is is_negated and pattern.fullmatch(path if whole else name):
                verdict = not is_negated
        return verdict

    def ignores_deeply(self, path: str, is_folder: bool = False) -> bool:
        """Return True if this path or any folder above it is ignored."""
        parts = path.split("/")
        above = ("/".join(parts[:count]) for count in range(1, len(parts)))
        return any(self.ignores(folder, True) for folder in above) or self.ignores(path, is_folder)


def read_rules(text: str) -> list[str]:
    """Return the lines of an ignore file that are rules, at most a thousand."""
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")][:RULES_MAX]


def _parse_rule(line: str) -> tuple[re.Pattern[str], bool, bool, bool] | None:
    is_negated = line.startswith("!")
    body = line[1:] if is_negated else line
    folders_only = body.endswith("/")
    body = body.rstrip("/")
    whole = "/" in body
    body = body.lstrip("/")
    # More wildcards would let one line of an untrusted file keep us busy for hours.
    is_wild = body.count("**") > 2 or any(name.count("*") > 2 for name in body.split("/"))
    if not body or len(body) > 1000 or is_wild:
        return None
    try:
        pattern = re.compile(_translate(body), re.DOTALL)
    except re.error:
        return None
    return pattern, is_negated, folders_only, whole


def _translate(glob: str) -> str:
    """Return a pattern as a regular expression: ``*`` stays within a folder, ``**`` does not."""
    pieces = []
    at = 0
    while at < len(glob):
        if glob.startswith("**/", at):
            pieces.append("(?:[^/]+/)*")
            at += 3
        elif glob.startswith("**", at):
            pieces.append(".*")
            at += 2
        elif glob[at] == "*":
            pieces.append("[^/]*")
            at += 1
        elif glob[at] == "?":
            pieces.append("[^/]")
            at += 1
        elif glob[at] == "[" and "]" in glob[at + 2 :]:
            end = glob.index("]", at + 2)
            inner = glob[at + 1 : end].replace("\\", "\\\\")
            pieces.append("[" + ("^" + inner[1:] if inner[0] == "!" else inner) + "]")
            at = end + 1
        else:
            pieces.append(re.escape(glob[at]))
            at += 1
    return "".join(pieces)

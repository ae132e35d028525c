"""Decide which paths are not saved: rules like those of ``.gitignore``; the last match decides.

This module is also sent into the sandbox, where the walk must know what to skip. So it needs only
the standard library, and nothing newer than Python 3.7.
"""

from __future__ import annotations

import re
from itertools import groupby
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
PRUNED_FOLDERS = [rule[:-1] for rule in DEFAULT_RULES if rule.find("/") == len(rule) - 1]
"""Names of folders that the default rules leave out wherever they are."""

SECRET_RULES = (
    ".env",
    ".env.*",
    "!.env.example",
    "!.env.sample",
    "!.env.template",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "id_rsa*",
    "id_ed25519*",
    "id_ecdsa*",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    "**/.aws/credentials",
    "**/.docker/config.json",
    "**/.kube/config",
    # Public certificates, and whatever else lies in an installed package.
    "!cacert.pem",
    "!**/site-packages/**",
    # All of the above are files; a folder `.env` is a virtual environment.
    "!*/",
    ".ssh/",
)
"""Files that usually hold secrets. They come before all other rules, so that any of those wins."""

NOT_KEPT_MAX = 20
"""How many paths are named of those that only the rules for secrets leave out."""


class IgnoreRules:
    """The rules in force: our defaults, then the lines of the sandbox's own file."""

    def __init__(self, lines: Iterable[str] = DEFAULT_RULES) -> None:
        rules = [rule for rule in (_parse_rule(line) for line in lines) if rule is not None]
        # Neighbours that differ only in their pattern become one: a walk asks for every path.
        self._rules = [
            (re.compile("|".join(rule[0].pattern for rule in same), re.DOTALL), *kind)
            for kind, same in groupby(rules, key=lambda rule: rule[1:])
        ]

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


class KeptPaths:
    """Decide what is kept, and note what only the rules for secrets leave out.

    Without `secret_rules` nothing is left out for that reason. A folder that is left out is noted
    apart from the files, because only what lies in it is of interest.
    """

    def __init__(self, rules: Iterable[str], secret_rules: Iterable[str] = ()) -> None:
        others = list(rules)
        self._others = IgnoreRules(others)
        self._all = IgnoreRules([*secret_rules, *others])
        self.secret_files: list[str] = []
        self.secret_folders: list[str] = []

    def skips(self, path: str, is_folder: bool) -> bool:
        """Return True if this path itself is not kept; do not ask for paths in such a folder."""
        if not self._all.ignores(path, is_folder):
            return False
        if not self._others.ignores(path, is_folder):
            (self.secret_folders if is_folder else self.secret_files).append(path)
        return True

    def skips_deeply(self, path: str, is_folder: bool = False) -> bool:
        """Return True if this path or any folder above it is not kept."""
        if not self._all.ignores_deeply(path, is_folder):
            return False
        if not is_folder and not self._others.ignores_deeply(path, is_folder):
            self.secret_files.append(path)
        return True


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

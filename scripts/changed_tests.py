"""Print the tests that belong to the files changed against main.

Called by `make test-changed`. The mapping is by folder: the longest prefix in `TESTS` wins, and a
changed test file runs itself. It is a quick check while you work; `make test` remains the proof.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

TESTS: dict[str, tuple[str, ...]] = {
    "src/sandkeeper/": ("tests/conventions",),
    "src/sandkeeper/api/": ("tests/unit/api", "tests/api", "tests/acceptance/test_http.py"),
    "src/sandkeeper/api/auth.py": ("tests/api", "tests/security/test_keys.py"),
    "src/sandkeeper/background/": ("tests/unit/services", "tests/integration/services"),
    "src/sandkeeper/cli/": ("tests/acceptance/test_cli.py",),
    "src/sandkeeper/client/": ("tests/client",),
    "src/sandkeeper/common/": ("tests/unit", "tests/security/test_data_folder.py"),
    "src/sandkeeper/domain/": ("tests/unit",),
    "src/sandkeeper/engine/": ("tests/engine/control", "tests/engine/runtime"),
    "src/sandkeeper/engine/control/": ("tests/engine/control",),
    "src/sandkeeper/engine/envd/": ("tests/engine/envd",),
    "src/sandkeeper/engine/images/": ("tests/engine/images",),
    "src/sandkeeper/engine/interpreter/": ("tests/engine/interpreter",),
    "src/sandkeeper/engine/proxy/": ("tests/engine/proxy",),
    "src/sandkeeper/engine/runtime/": ("tests/engine/runtime", "tests/security"),
    "src/sandkeeper/gateway/": ("tests/unit/domain", "tests/acceptance/test_previews.py"),
    "src/sandkeeper/hosting/": ("tests/unit", "tests/security/test_data_folder.py"),
    "src/sandkeeper/integrations/": ("tests/client",),
    "src/sandkeeper/integrations/backend/": ("tests/backend",),
    "src/sandkeeper/providers/": ("tests/unit/providers", "tests/contract/provider"),
    "src/sandkeeper/relay/": ("tests/unit/relay", "tests/engine/proxy"),
    "src/sandkeeper/services/": ("tests/unit/services", "tests/integration/services"),
    "src/sandkeeper/services/access/": ("tests/security/test_keys.py",),
    "src/sandkeeper/services/files/": ("tests/integration/files",),
    "src/sandkeeper/services/jobs/": ("tests/integration/wake/jobs",),
    "src/sandkeeper/services/observe/": ("tests/integration/observations",),
    "src/sandkeeper/services/sessions/": ("tests/unit/sessions", "tests/integration/sessions"),
    "src/sandkeeper/services/wake/": ("tests/integration/wake",),
    "src/sandkeeper/store/": ("tests/contract/store",),
    "src/sandkeeper/web/": ("tests/browser", "tests/typescript"),
    "clients/typescript/": ("tests/typescript",),
    "bench/": ("tests/conventions",),
    "deploy/": ("tests/conventions",),
    "docs/": ("tests/conventions",),
    "README.md": ("tests/conventions",),
    "CONTRIBUTING.md": ("tests/conventions",),
    "scripts/": ("tests/unit/scripts",),
}
CODE_CHECKS = "tests/conventions"
"""Runs whenever source code changed: the reference pages are made from it."""


def main() -> int:
    """Print one path of a test or test folder for each line."""
    for path in select_tests(changed_files()):
        print(path)
    return 0


def changed_files() -> list[str]:
    """Return the files that differ from main, uncommitted and new ones included."""
    base = git("merge-base", "HEAD", find_main()).strip()
    changed = git("diff", "--name-only", "--diff-filter=d", base).splitlines()
    return changed + git("ls-files", "--others", "--exclude-standard").splitlines()


def select_tests(changed: list[str]) -> list[str]:
    """Return the tests for these files, without those inside a folder that runs anyway."""
    found: set[str] = set()
    for name in changed:
        path = Path(name)
        if name.startswith("tests/"):
            is_test = path.name.startswith("test_") and path.suffix == ".py"
            # Shared helpers concern too many tests to guess: only a conftest runs its folder.
            if is_test or path.name == "conftest.py":
                found.add(name if is_test else str(path.parent))
            continue
        prefixes = [prefix for prefix in TESTS if name.startswith(prefix)]
        if prefixes:
            found.update(TESTS[max(prefixes, key=len)])
        if name.startswith("src/"):
            found.add(CODE_CHECKS)
    return sorted(one for one in found if not any(is_inside(one, other) for other in found))


def is_inside(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/")


def find_main() -> str:
    for name in ("main", "origin/main"):
        if git("rev-parse", "--verify", "--quiet", name, check=False):
            return name
    sys.exit("There is no branch main to compare with: fetch it first.")


def git(*arguments: str, check: bool = True) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=check, capture_output=True, text=True
    ).stdout


if __name__ == "__main__":
    sys.exit(main())

"""Build the documentation site: gather the pages, fit their links, run the site generator.

Called by `make docs`. The Markdown files link to each other as they lie in the repository, so that
they also work in a code browser. On the site, pages at the repository's root lie beside the others,
and a link to source code becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "site-src"
ROOT_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
}
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s:]+)(#[^)\s]*)?\)")
IMAGE = re.compile(r"(!\[[^\]]*\]\()docs/")


def main() -> int:
    """Build the site into `site/`; any warning, such as a dead link, fails."""
    if BUILD.exists():
        shutil.rmtree(BUILD)
    shutil.copytree(ROOT / "docs", BUILD, ignore=shutil.ignore_patterns("*.py"))
    for name, target in ROOT_PAGES.items():
        (BUILD / target).write_text((ROOT / name).read_text())
    for page in BUILD.rglob("*.md"):
        page.write_text(fit_links(page.read_text(), page.relative_to(BUILD).as_posix()))
    try:
        return subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--clean", "--strict"],
            cwd=ROOT,
            check=False,
        ).returncode
    finally:
        shutil.rmtree(BUILD)


def fit_links(text: str, page: str) -> str:
    """Rewrite the links of one page from the repository's layout to the site's."""
    is_root_page = page in ROOT_PAGES.values()
    site_folder = posixpath.join("docs", posixpath.dirname(page))
    folder = "" if is_root_page else site_folder

    def rewrite(match: re.Match[str]) -> str:
        label, target, anchor = match.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        if path in ROOT_PAGES:
            path = posixpath.join("docs", ROOT_PAGES[path])
        elif not path.startswith("docs/"):
            return label if (ROOT / path).exists() else match.group()
        return f"[{label}]({posixpath.relpath(path, site_folder)}{anchor or ''})"

    text = LINK.sub(rewrite, text)
    return IMAGE.sub(r"\1", text) if is_root_page else text


if __name__ == "__main__":
    sys.exit(main())

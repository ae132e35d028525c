"""The static files, read once, each ready to be sent plain or compressed.

The *version* is a digest of all of them together, because modules import one another by relative
path: a page that loads one file of a version gets every other file of the same version.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

STATIC = Path(__file__).parent / "static"

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".ts": "text/plain; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file as it goes over the wire."""

    path: str
    media_type: str
    body: bytes
    zipped: bytes


class Assets:
    """Every static file by its path below the folder, with forward slashes."""

    def __init__(self, folder: Path = STATIC) -> None:
        self._by_path = {asset.path: asset for asset in _read(folder)}
        digest = hashlib.sha256()
        for path in sorted(self._by_path):
            digest.update(path.encode() + b"\0" + self._by_path[path].body)
        self.version = digest.hexdigest()[:12]

    def find(self, path: str) -> Asset | None:
        return self._by_path.get(path)

    def paths(self) -> list[str]:
        return sorted(self._by_path)

    def render_page(self, path: str) -> bytes:
        """Gives an HTML page whose asset addresses carry this version."""
        return self._by_path[path].body.replace(b"{version}", self.version.encode())


def strip_comments(source: bytes) -> bytes:
    """Leaves out the lines of a script that are only comment, and the indentation.

    The comments are for whoever reads the repository; browsers would pay for them on every load.
    Our scripts keep no text in which a line's beginning matters.
    """
    kept = []
    inside = False
    for line in source.decode().splitlines():
        text = line.strip()
        if not inside and text.startswith("/*"):
            inside = True
        if inside:
            # A comment that ends before the line does is part of code, such as a cast.
            if "*/" in text:
                inside = False
                rest = text.partition("*/")[2].strip()
                if rest:
                    kept.append(rest)
            continue
        if text and not text.startswith("//"):
            kept.append(text)
    return ("\n".join(kept) + "\n").encode()


def _read(folder: Path) -> list[Asset]:
    assets = []
    for file in sorted(folder.rglob("*")):
        media_type = MEDIA_TYPES.get(file.suffix)
        if media_type is None or not file.is_file():
            continue
        body = file.read_bytes()
        if file.suffix == ".js":
            body = strip_comments(body)
        zipped = gzip.compress(body, compresslevel=9, mtime=0)
        assets.append(Asset(file.relative_to(folder).as_posix(), media_type, body, zipped))
    return assets

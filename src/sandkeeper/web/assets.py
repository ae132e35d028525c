"""The static files, read once, each ready to be sent plain or compressed.

The *version* is a digest of all files together, because modules import each other by relative path:
a page that loads one file of a version gets all other files of the same version.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import orjson

from sandkeeper.domain.texts.page_words import render_word_modules

STATIC = Path(__file__).parent / "static"

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

EXPORTED_MODULE = re.compile(rb'^export \* from "\./([\w.-]+)";$', re.MULTILINE)
EXPORTED_MODULE_IMPORT = re.compile(rb'^import \{[^}]*\} from "\./[\w.-]+";\n', re.MULTILINE)

INLINE_TYPE = re.compile(r"/\*\* .*? \*/ ?")


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file as it is sent."""

    path: str
    media_type: str
    body: bytes
    zipped: bytes


class Assets:
    """All static files by path below the folder, with forward slashes."""

    def __init__(self, folder: Path = STATIC) -> None:
        bodies = {file.relative_to(folder).as_posix(): _read(file) for file in _files(folder)}
        for path, (name, words) in render_word_modules().items():
            bodies[path] = b"export const %s = %s;\n" % (name.encode(), orjson.dumps(words))
        bodies["pane.js"] = join_modules(bodies, "pane.js")
        self._by_path = {path: _asset(path, body) for path, body in bodies.items()}
        digest = hashlib.sha256()
        for path in sorted(self._by_path):
            digest.update(path.encode() + b"\0" + self._by_path[path].body)
        self.version = digest.hexdigest()[:12]

    def find(self, path: str) -> Asset | None:
        return self._by_path.get(path)

    def paths(self) -> list[str]:
        return sorted(self._by_path)

    def render_page(self, path: str) -> bytes:
        """Return an HTML page whose asset URLs contain this version."""
        return self._by_path[path].body.replace(b"{version}", self.version.encode())


def strip_comments(source: bytes) -> bytes:
    """Remove comment lines and indentation from a script, which browsers need not load.

    Our scripts contain no text whose leading whitespace matters.
    """
    lines = []
    inside = False
    for line in source.decode().splitlines():
        text = line.strip()
        if not inside and text.startswith("/*"):
            inside = True
        if inside:
            # A comment that ends before its line is part of code, such as a cast.
            if "*/" in text:
                inside = False
                rest = text.partition("*/")[2].strip()
                if rest:
                    lines.append(INLINE_TYPE.sub("", rest))
            continue
        if text and not text.startswith("//"):
            lines.append(INLINE_TYPE.sub("", text))
    return ("\n".join(lines) + "\n").encode()


def join_modules(bodies: dict[str, bytes], entry: str) -> bytes:
    """Return one module for an entry that only contains ``export * from``, in its order.

    This saves six requests and compresses better. Other modules import the entry too, so a page has
    one copy of every module.
    """
    parts = [bodies[name.decode()] for name in EXPORTED_MODULE.findall(bodies[entry])]
    return EXPORTED_MODULE_IMPORT.sub(b"", b"".join(parts))


def _files(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*"))
    return [file for file in found if file.suffix in MEDIA_TYPES and file.is_file()]


def _read(file: Path) -> bytes:
    """Return what is sent of a file; a module of others (`.mjs`) is sent as it is."""
    body = file.read_bytes()
    return strip_comments(body) if file.suffix == ".js" else body


def _asset(path: str, body: bytes) -> Asset:
    media_type = MEDIA_TYPES["." + path.rpartition(".")[2]]
    return Asset(path, media_type, body, gzip.compress(body, compresslevel=9, mtime=0))

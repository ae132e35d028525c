"""Commands on kept files: list, fetch, bring."""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from sandkeeper.cli.connection import (
    Exit,
    JsonOption,
    KeeperConnection,
    ProjectArgument,
    QuietOption,
    UrlOption,
    fail,
)
from sandkeeper.cli.output import print_json, print_lines, print_table, say

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import IO

CHUNK_BYTES = 1024 * 1024
VersionOption = Annotated[
    int | None, typer.Option("--version", help="An earlier version instead of the present one.")
]

app = typer.Typer(no_args_is_help=True, add_completion=False, help="A sandbox's kept files.")


@app.command("ls")
def list_files(
    project: ProjectArgument,
    prefix: Annotated[str, typer.Argument(help="Only paths that begin so.")] = "",
    version: VersionOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    url: UrlOption = None,
) -> None:
    """List the kept files of a sandbox."""
    connection = KeeperConnection(url)
    path = f"{_address(project)}/files"
    items: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = connection.get(path, prefix=prefix, version=version, limit=10_000, cursor=cursor)
        items += page["items"]
        cursor = page["nextCursor"]
        if cursor is None:
            break
    if as_json:
        print_json(items)
    elif quiet:
        print_lines(item["path"] for item in items)
    else:
        print_table(("mode", "size", "path"), (_row(item) for item in items))
        say(f"version {page['version']}: {page['files']} files, {page['bytes']} bytes")


@app.command("get")
def get_file(
    project: ProjectArgument,
    path: Annotated[
        str, typer.Argument(help="A kept path; without one, everything as a tar.")
    ] = "",
    to: Annotated[str, typer.Option("--to", "-o", help="Where to; - is the output.")] = "",
    version: VersionOption = None,
    url: UrlOption = None,
) -> None:
    """Fetch one kept file, or all of them as a tar."""
    connection = KeeperConnection(url)
    where = f"{_address(project)}/files/{quote(path)}" if path else f"{_address(project)}/archive"
    target = to or (path.rpartition("/")[2] if path else "-")
    pieces = _shown(connection.download(where, version=version))
    if target == "-":
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        return
    # Beside its place first: a transfer that breaks off must not spoil the file that is there.
    final = Path(target)
    part = final.with_name(f".{final.name}.part")
    try:
        with part.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        part.replace(final)
    finally:
        part.unlink(missing_ok=True)


@app.command("put")
def put_file(
    project: ProjectArgument,
    source: Annotated[Path, typer.Argument(help="A file or a folder of this machine.")],
    path: Annotated[str, typer.Argument(help="Where it is kept; its own name by default.")] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Of a folder: keep nothing else.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Keep a file, or everything in a folder, and write it into the sandbox if that runs."""
    connection = KeeperConnection(url)
    if source.is_dir():
        with tempfile.TemporaryFile() as file:
            _pack(source, path.strip("/"), file)
            size = file.tell()
            file.seek(0)
            answer = connection.send(
                "PUT",
                f"{_address(project)}/archive",
                query={"replace": str(replace).lower()},
                content=_shown(_read(file), size),
            )
    elif source.is_file():
        name = path or source.name
        with source.open("rb") as file:
            size = source.stat().st_size
            answer = connection.send(
                "PUT",
                f"{_address(project)}/files/{quote(name)}",
                query={"mode": f"{source.stat().st_mode & 0o777:03o}"},
                content=_shown(_read(file), size),
            )
    else:
        raise fail(Exit.NOT_FOUND, f"There is no file or folder {str(source)!r}.")
    if not answer.is_success:
        raise connection.explain_failure(answer)
    edited = answer.json()
    if as_json:
        print_json(edited)
        return
    where = "and inside" if edited["inside"] else "and waits for the next wake"
    say(f"version {edited['version']}: {edited['changed']} kept, {where}")


def _address(project: str) -> str:
    """Kept files have an owner and need no sandbox, so the name is taken as it is."""
    return f"/api/sandboxes/{quote(project, safe='')}"


def _row(item: dict[str, Any]) -> tuple[str, str, str]:
    link = f" -> {item['target']}" if item["target"] else ""
    slash = "/" if item["kind"] == "dir" else ""
    waits = "  (not yet inside)" if item["pending"] else ""
    return item["mode"], str(item["size"]), f"{item['path']}{slash}{link}{waits}"


def _pack(folder: Path, prefix: str, file: IO[bytes]) -> None:
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for one in sorted(folder.rglob("*")):
            name = one.relative_to(folder).as_posix()
            tar.add(one, f"{prefix}/{name}" if prefix else name, recursive=False)


def _read(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(CHUNK_BYTES):
        yield piece


def _shown(pieces: Iterable[bytes], total: int = 0) -> Iterator[bytes]:
    """The same pieces, with a line about them on a terminal."""
    is_shown = sys.stderr.isatty()
    done = 0
    for piece in pieces:
        done += len(piece)
        if is_shown:
            of = f" of {total / 2**20:.1f}" if total else ""
            sys.stderr.write(f"\r{done / 2**20:.1f}{of} MiB")
            sys.stderr.flush()
        yield piece
    if is_shown:
        sys.stderr.write("\r\033[K")

"""`sandkeeper files`: list, download and upload kept files, and compare their versions."""

from __future__ import annotations

import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Annotated, Any
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
from sandkeeper.cli.output import print_items, print_json, print_message
from sandkeeper.cli.sandboxes.versions import (
    VersionOption,
    diff,
    find_version,
    get_address,
    list_versions,
    restore,
)

CHUNK_BYTES = 1024 * 1024

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Kept files of a sandbox.")
app.command("versions")(list_versions)
app.command("diff")(diff)
app.command("restore")(restore)


@app.command("ls")
def list_files(
    project: ProjectArgument,
    prefix: Annotated[str, typer.Argument(help="Only paths with this prefix.")] = "",
    version: VersionOption = "",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    url: UrlOption = None,
) -> None:
    """List the kept files of a sandbox."""
    connection = KeeperConnection(url)
    path = f"{get_address(project)}/files"
    number = find_version(connection, project, version)
    pages = list(connection.iter_pages(path, page_size=10_000, prefix=prefix, version=number))
    print_items(
        [item for page in pages for item in page["items"]],
        columns=("mode", "size", "path"),
        row=_row,
        id_field="path",
        as_json=as_json,
        quiet=quiet,
    )
    if not (as_json or quiet):
        total = pages[-1]
        print_message(f"version {total['version']}: {total['files']} files, {total['bytes']} bytes")


@app.command("get")
def get_file(
    project: ProjectArgument,
    path: Annotated[
        str, typer.Argument(help="Path of a kept file. [default: all files as a tar archive]")
    ] = "",
    to: Annotated[str, typer.Option("--to", "-o", help="Target file; - is stdout.")] = "",
    version: VersionOption = "",
    url: UrlOption = None,
) -> None:
    """Download one kept file, or all of them as a tar archive."""
    connection = KeeperConnection(url)
    where = (
        f"{get_address(project)}/files/{quote(path)}" if path else f"{get_address(project)}/archive"
    )
    target = to or (path.rpartition("/")[2] if path else "-")
    number = find_version(connection, project, version)
    chunks = _show_progress(connection.download(where, version=number))
    if target == "-":
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
        return
    # Write to a temporary file first: an interrupted download must not damage an existing file.
    final = Path(target)
    part = final.with_name(f".{final.name}.part")
    try:
        with part.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
        part.replace(final)
    finally:
        part.unlink(missing_ok=True)


@app.command("put")
def put_file(
    project: ProjectArgument,
    source: Annotated[Path, typer.Argument(help="Local file or folder.")],
    path: Annotated[str, typer.Argument(help="Path in the sandbox. [default: its own name]")] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="For a folder: remove all other kept files.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Keep a file or a folder, and write it into the sandbox if that is running."""
    connection = KeeperConnection(url)
    if source.is_dir():
        with tempfile.TemporaryFile() as file:
            _pack(source, path.strip("/"), file)
            size = file.tell()
            file.seek(0)
            response = connection.send(
                "PUT",
                f"{get_address(project)}/archive",
                query={"replace": str(replace).lower()},
                content=_show_progress(_read(file), size),
            )
    elif source.is_file():
        name = path or source.name
        with source.open("rb") as file:
            size = source.stat().st_size
            response = connection.send(
                "PUT",
                f"{get_address(project)}/files/{quote(name)}",
                query={"mode": f"{source.stat().st_mode & 0o777:03o}"},
                content=_show_progress(_read(file), size),
            )
    else:
        raise fail(Exit.NOT_FOUND, f"File or folder {str(source)!r} not found.")
    if not response.is_success:
        raise connection.make_exit(response)
    edited = response.json()
    if as_json:
        print_json(edited)
        return
    where = "written to the sandbox" if edited["inside"] else "restored by the next wake"
    print_message(f"version {edited['version']}: {edited['changed']} kept, {where}")


def _row(item: dict[str, Any]) -> tuple[str, str, str]:
    link = f" -> {item['target']}" if item["target"] else ""
    slash = "/" if item["kind"] == "dir" else ""
    waits = "  (not yet in the sandbox)" if item["pending"] else ""
    return item["mode"], str(item["size"]), f"{item['path']}{slash}{link}{waits}"


def _pack(folder: Path, prefix: str, file: IO[bytes]) -> None:
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for one in sorted(folder.rglob("*")):
            name = one.relative_to(folder).as_posix()
            tar.add(one, f"{prefix}/{name}" if prefix else name, recursive=False)


def _read(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def _show_progress(chunks: Iterable[bytes], total: int = 0) -> Iterator[bytes]:
    """Yield the chunks and show the progress on a terminal."""
    is_shown = sys.stderr.isatty()
    done = 0
    for chunk in chunks:
        done += len(chunk)
        if is_shown:
            of = f" of {total / 2**20:.1f}" if total else ""
            sys.stderr.write(f"\r{done / 2**20:.1f}{of} MiB")
            sys.stderr.flush()
        yield chunk
    if is_shown:
        sys.stderr.write("\r\033[K")

"""Kept files through time: `files versions`, `diff` and `restore`, and `checkpoint`."""

from __future__ import annotations

from typing import Annotated, Any
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
from sandkeeper.cli.output import (
    format_time,
    print_items,
    print_json,
    print_lines,
    print_message,
    print_table,
)

SIGNS = {"added": "A", "changed": "M", "removed": "D"}
PROBLEMS = {
    "binary": "It is not text; use `files get --version`.",
    "too_large": "It is too large to compare here; use `files get --version`.",
}
VersionOption = Annotated[
    str, typer.Option("--version", help="A version's number or checkpoint. [default: latest]")
]


def get_address(project: str) -> str:
    """Return the URL path of an owner. Kept files need no sandbox, so it is not looked up."""
    return f"/api/sandboxes/{quote(project, safe='')}"


def find_version(connection: KeeperConnection, project: str, text: str) -> int | None:
    """Return the version with this number or checkpoint's name; None for an empty text."""
    if not text:
        return None
    if text.isdecimal():
        return int(text)
    named = list(connection.iter_items(f"{get_address(project)}/versions", named="true"))
    for one in named:
        if text in one["names"]:
            return int(one["number"])
    known = ", ".join(name for one in named for name in one["names"][:8])
    hint = f"Its checkpoints: {known}." if known else "`sandkeeper files versions` lists all."
    raise fail(Exit.NOT_FOUND, f"{project} has no version or checkpoint {text!r}.", hint)


def list_versions(
    project: ProjectArgument,
    named: Annotated[bool, typer.Option("--named", help="Only checkpoints.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Maximum number of results.")] = 100,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    url: UrlOption = None,
) -> None:
    """List the versions of the kept files, newest first."""
    page = KeeperConnection(url).get(
        f"{get_address(project)}/versions", named=str(named).lower(), limit=limit
    )
    print_items(
        page["items"],
        columns=("version", "saved", "checkpoint", "changed", "removed", "files", "why"),
        row=_version_row,
        id_field="number",
        as_json=as_json,
        quiet=quiet,
    )


def diff(
    project: ProjectArgument,
    version: Annotated[str, typer.Argument(help="A version's number or checkpoint.")],
    path: Annotated[str, typer.Argument(help="Compare the text of this file.")] = "",
    against: Annotated[
        str, typer.Option(help="The version to compare with. [default: the one saved before]")
    ] = "",
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Show which files differ between two versions, or what differs in one file."""
    connection = KeeperConnection(url)
    number = find_version(connection, project, version)
    query = {"against": find_version(connection, project, against)}
    where = f"{get_address(project)}/versions/{number}/diff"
    if path:
        found = connection.get(f"{where}/{quote(path)}", **query)
        if as_json:
            print_json(found)
        elif found["problem"]:
            raise fail(Exit.FAILURE, f"{path} differs. {PROBLEMS[found['problem']]}")
        else:
            print_lines(found["diff"].splitlines())
        return
    pages = list(connection.iter_pages(where, page_size=10_000, **query))
    items = [item for page in pages for item in page["items"]]
    if as_json:
        print_json(items)
        return
    print_table(("", "path", "size"), [_change_row(item) for item in items])
    first = pages[0]
    print_message(
        f"version {first['new']} against {first['old'] or 'nothing'}: "
        f"{first['changed']} new or changed, {first['removed']} removed"
    )


def restore(
    project: ProjectArgument,
    version: Annotated[str, typer.Argument(help="A version's number or checkpoint.")],
    path: Annotated[
        str, typer.Argument(help="Only this file or folder. [default: all files]")
    ] = "",
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Restore files as they were in a version; the present ones are saved first."""
    connection = KeeperConnection(url)
    number = find_version(connection, project, version)
    body = {"version": number, "path": path.rstrip("/")}
    done = connection.post(f"{get_address(project)}/restore", body)
    if as_json:
        print_json(done)
    else:
        changes = f"{done['changed']} restored, {done['removed']} removed"
        print_lines([f"{project}\tversion {done['version']}\t{changes}"])
        for one in done["left"]:
            print_message(f"  left alone: {one['path']} ({one['reason']})")
        if not done["inside"]:
            print_message("There is no sandbox; the next wake brings these files.")
        if done["undoVersion"]:
            print_message(f"Undo: sandkeeper files restore {project} {done['undoVersion']} {path}")
    if done["leftCount"]:
        raise typer.Exit(int(Exit.PARTIAL))


def fork(
    project: ProjectArgument,
    new: Annotated[str, typer.Argument(help="The new project.")],
    version: Annotated[
        str,
        typer.Option(
            "--version", help="A version's number or checkpoint. [default: the files as they are]"
        ),
    ] = "",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    url: UrlOption = None,
) -> None:
    """Create a new project from a version of another one, launched in the same way."""
    connection = KeeperConnection(url)
    body = {"project": new, "version": find_version(connection, project, version)}
    made = connection.post(f"{get_address(project)}/fork", body)
    if as_json:
        print_json(made)
    elif quiet:
        print_lines([made["project"]])
    else:
        origin = f"version {made['fromVersion']} of {project}"
        print_lines([f"{made['project']}\t{made['status']}\t{origin}"])


def checkpoint(
    project: ProjectArgument,
    name: Annotated[str, typer.Argument(help="The name. [default: list checkpoints]")] = "",
    *,
    version: Annotated[
        str, typer.Option("--version", help="Name this version. [default: the files as they are]")
    ] = "",
    delete: Annotated[bool, typer.Option("--delete", help="Remove this name.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Name a version of the kept files, which keeps it; without a name, list checkpoints."""
    connection = KeeperConnection(url)
    if not name and (delete or version):
        raise fail(Exit.USAGE, "A name is missing.", 'sandkeeper checkpoint shop "before the move"')
    if not name:
        list_versions(project, named=True, as_json=as_json, url=url)
        return
    where = f"{get_address(project)}/checkpoints"
    if delete:
        connection.request("DELETE", f"{where}/{quote(name, safe='')}")
        return
    body = {"name": name, "version": find_version(connection, project, version)}
    made = connection.post(where, body)
    if as_json:
        print_json(made)
    else:
        print_lines([f"{project}\tversion {made['version']}\t{made['name']}"])


def _version_row(item: dict[str, Any]) -> tuple[object, ...]:
    why = ", ".join(one for one in (item["reason"] or item["source"], item["actor"]) if one)
    return (
        item["number"],
        format_time(item["createdAt"]),
        "; ".join(item["names"]),
        item["changed"],
        item["removed"],
        item["files"],
        why,
    )


def _change_row(item: dict[str, Any]) -> tuple[object, ...]:
    sizes = [one["size"] for one in (item["old"], item["new"]) if one is not None]
    is_same = len(set(sizes)) == 1
    size = str(sizes[0]) if is_same else " → ".join(map(str, sizes))
    return SIGNS[item["change"]], item["path"], size

"""`sandkeeper session`: conversations and their sandboxes."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from sandkeeper.cli.connection import (
    JsonOption,
    KeeperConnection,
    QuietOption,
    UrlOption,
    parse_duration,
)
from sandkeeper.cli.output import (
    format_age,
    format_time_left,
    print_items,
    print_json,
    print_lines,
    print_message,
)

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Sessions and their sandboxes.")

SessionArgument = Annotated[str, typer.Argument(help="The session's id, `se-…`.")]
LeaseOption = Annotated[str | None, typer.Option("--lease", help="The lease to release.")]
ConversationOption = Annotated[
    str | None, typer.Option("--conversation", help="The conversation's id.")
]


@app.command("ls")
def list_sessions(
    kind: Annotated[str, typer.Option(help="Only this kind: execution or desktop.")] = "",
    user: Annotated[str, typer.Option(help="Only this user's sessions.")] = "",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    url: UrlOption = None,
) -> None:
    """List the open sessions."""
    connection = KeeperConnection(url)
    print_items(
        list(connection.iter_items("/api/sessions", kind=kind, user=user)),
        columns=("session", "key", "kind", "state", "used", "closes in", "uses"),
        row=_row,
        as_json=as_json,
        quiet=quiet,
    )


@app.command("acquire")
def acquire(
    user: Annotated[str, typer.Argument(help="The user's id.")],
    task: Annotated[str | None, typer.Argument(help="The task's id.")] = None,
    *,
    conversation: ConversationOption = None,
    kind: Annotated[str, typer.Option(help="Kind of session: execution or desktop.")] = "execution",
    template: Annotated[str | None, typer.Option(help="Template of a new sandbox.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Whom a new sandbox is counted for.")] = None,
    idle: Annotated[
        str | None, typer.Option(help="Idle time of a new sandbox, such as 10m.")
    ] = None,
    shared: Annotated[bool, typer.Option("--shared", help="Share the user's sandbox.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    url: UrlOption = None,
) -> None:
    """Get the conversation's sandbox, running and healthy, with a lease that expires."""
    body = {
        "userId": user,
        "taskId": task,
        "conversationId": conversation,
        "kind": kind,
        "template": template,
        "tenant": tenant,
        "idleTimeoutMs": None if idle is None else round(parse_duration(idle) * 1000),
        "shared": shared,
        "holder": "cli",
    }
    given = {name: value for name, value in body.items() if value is not None}
    found = KeeperConnection(url).post("/api/sessions/acquire", given)
    if as_json:
        print_json(found)
    elif quiet:
        print_lines([found["id"]])
    else:
        place = (found["id"], found["key"], found["source"], found["sandbox"]["project"])
        print_lines(["\t".join((*place, found["lease"]["id"]))])


@app.command("release")
def release(
    session: SessionArgument,
    lease: LeaseOption = None,
    close: Annotated[
        bool, typer.Option("--close", help="Close the session and kill its sandbox.")
    ] = False,
    url: UrlOption = None,
) -> None:
    """Release a session's sandbox, or close the session with --close."""
    connection = KeeperConnection(url)
    path = f"/api/sessions/{quote(session, safe='')}"
    if close:
        connection.request("DELETE", path)
        print_lines([f"{session}\tclosed"])
        return
    body = {} if lease is None else {"leaseId": lease}
    released = connection.post(f"{path}/release", body)
    left = format_time_left(released["idleAt"])
    print_lines([f"{session}\treleased\tcloses in {left} if unused"])
    for one in released["leases"]:
        print_message(f"Still leased by {one['holder']}: {one['id']} until {one['until']}.")


@app.command("transfer")
def transfer(
    session: SessionArgument,
    task: Annotated[str | None, typer.Argument(help="The task that gets the sandbox.")] = None,
    conversation: ConversationOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Transfer a session's sandbox with its files to another conversation of the same user."""
    body = {"taskId": task, "conversationId": conversation}
    given = {name: value for name, value in body.items() if value is not None}
    path = f"/api/sessions/{quote(session, safe='')}/transfer"
    moved = KeeperConnection(url).post(path, given)
    if as_json:
        print_json(moved)
    else:
        print_lines([f"{moved['id']}\t{moved['key']}"])


def _row(item: dict[str, Any]) -> tuple[object, ...]:
    sandbox = item["sandbox"]
    return (
        item["id"],
        item["key"],
        item["kind"],
        sandbox["status"] if sandbox else "-",
        format_age(item["lastUsedAt"]),
        format_time_left(item["idleAt"]),
        item["uses"],
    )

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
from sandkeeper.cli.output import age, print_json, print_lines, print_table, until

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Sessions and their sandboxes.")

SessionArgument = Annotated[str, typer.Argument(help="The session's id, `se-…`.")]
LeaseOption = Annotated[str | None, typer.Option("--lease", help="The lease to give back.")]
ConversationOption = Annotated[
    str | None, typer.Option("--conversation", help="The conversation's id.")
]


@app.command("ls")
def list_sessions(
    kind: Annotated[str, typer.Option(help="Only execution or desktop.")] = "",
    user: Annotated[str, typer.Option(help="Only this user's.")] = "",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    url: UrlOption = None,
) -> None:
    """List the open sessions."""
    connection = KeeperConnection(url)
    items: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = connection.get("/api/sessions", kind=kind, user=user, cursor=cursor, limit=200)
        items += page["items"]
        cursor = page["nextCursor"]
        if cursor is None:
            break
    if as_json:
        print_json(items)
    elif quiet:
        print_lines(item["id"] for item in items)
    else:
        columns = ("session", "key", "kind", "state", "used", "closes in", "uses")
        print_table(columns, (_row(item) for item in items))


@app.command("acquire")
def acquire(
    user: Annotated[str, typer.Argument(help="The user's id.")],
    task: Annotated[str | None, typer.Argument(help="The task's id.")] = None,
    *,
    conversation: ConversationOption = None,
    kind: Annotated[str, typer.Option(help="execution or desktop.")] = "execution",
    template: Annotated[str | None, typer.Option(help="What a new one is made from.")] = None,
    idle: Annotated[str | None, typer.Option(help="Idle time of a new one, as 10m.")] = None,
    shared: Annotated[bool, typer.Option("--shared", help="Share the user's sandbox.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    url: UrlOption = None,
) -> None:
    """Get the conversation's sandbox, running and healthy; the lease ends by itself."""
    body = {
        "userId": user,
        "taskId": task,
        "conversationId": conversation,
        "kind": kind,
        "template": template,
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
        place = (found["id"], found["key"], found["how"], found["sandbox"]["project"])
        print_lines(["\t".join((*place, found["lease"]["id"]))])


@app.command("release")
def release(
    session: SessionArgument,
    lease: LeaseOption = None,
    close: Annotated[bool, typer.Option("--close", help="End its sandbox as well.")] = False,
    url: UrlOption = None,
) -> None:
    """Give a session's sandbox back for now, or close the session for good."""
    connection = KeeperConnection(url)
    path = f"/api/sessions/{quote(session, safe='')}"
    if close:
        connection.ask("DELETE", path)
        print_lines([f"{session}\tclosed"])
        return
    body = {} if lease is None else {"leaseId": lease}
    released = connection.post(f"{path}/release", body)
    print_lines([f"{session}\treleased\tcloses in {until(released['idleAt'])} unless it is used"])


@app.command("transfer")
def transfer(
    session: SessionArgument,
    task: Annotated[str | None, typer.Argument(help="The task that gets the sandbox.")] = None,
    conversation: ConversationOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Hand a session's sandbox, with its files, to another conversation of the same user."""
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
        age(item["lastUsedAt"]),
        until(item["idleAt"]),
        item["uses"],
    )

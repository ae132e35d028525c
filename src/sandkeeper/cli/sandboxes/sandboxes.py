"""Commands on sandboxes: look at them, act on them."""

from __future__ import annotations

import sys
import webbrowser
from typing import Annotated, Any
from urllib.parse import quote

import typer

from sandkeeper.cli.connection import (
    Exit,
    JsonOption,
    KeeperConnection,
    ProjectArgument,
    QuietOption,
    TimeoutOption,
    UrlOption,
    WaitOption,
    YesOption,
    dashboard_url,
    exit_code,
    fail,
    parse_duration,
)
from sandkeeper.cli.output import (
    age,
    is_for_a_person,
    moment,
    print_fields,
    print_json,
    print_lines,
    print_table,
    say,
    until,
)
from sandkeeper.cli.sandboxes.events import read_change
from sandkeeper.hosting.dashboard_host import find_dashboard

ProjectsArgument = Annotated[
    list[str], typer.Argument(help="Projects, ids, or unique beginnings of them.")
]
PairsOption = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE")]


def ls(
    state: Annotated[str, typer.Option(help="Only these states, comma-separated.")] = "",
    owner: Annotated[str, typer.Option(help="Only this kind of owner, or kind:id.")] = "",
    search: Annotated[str, typer.Option(help="Part of an id, an owner or metadata.")] = "",
    sort: Annotated[str, typer.Option(help="Field to sort by; a leading - reverses.")] = "",
    limit: Annotated[int, typer.Option(help="How many at most.")] = 1000,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    url: UrlOption = None,
) -> None:
    """List sandboxes."""
    connection = KeeperConnection(url)
    items: list[dict[str, Any]] = []
    cursor: str | None = None
    while len(items) < limit:
        page = connection.get(
            "/api/sandboxes",
            state=state.upper(),
            owner=owner,
            search=search,
            sort=sort,
            cursor=cursor,
            limit=min(200, limit - len(items)),
        )
        items += page["items"]
        cursor = page["nextCursor"]
        if cursor is None:
            break
    if as_json:
        print_json(items)
    elif quiet:
        print_lines(item["project"] for item in items)
    else:
        columns = ("project", "state", "why", "sleeps in", "version", "last active")
        print_table(columns, (_row(item) for item in items))


def show(project: ProjectArgument, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Show one sandbox."""
    connection = KeeperConnection(url)
    status = connection.get(connection.path(project, "status"))
    if as_json:
        print_json(status)
    else:
        print_fields(status.items())


def explain(project: ProjectArgument, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Say why a sandbox is awake or asleep, and what happens to it next."""
    connection = KeeperConnection(url)
    answer = connection.get(connection.path(project, "explain"))
    if as_json:
        print_json(answer)
        return
    print_lines(_sentences(answer))


def history(
    project: ProjectArgument,
    limit: Annotated[int, typer.Option(help="How many at most.")] = 100,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Show what happened to a sandbox, newest first."""
    connection = KeeperConnection(url)
    page = connection.get(connection.path(project, "history"), limit=limit)
    if as_json:
        print_json(page["items"])
        return
    if is_for_a_person():
        print_table(("at", "what", "why", "by"), (read_change(item) for item in page["items"]))
        return
    keys = ("at", "type", "fromState", "toState", "cause", "actor", "reason")
    print_table(keys, ([item[key] for key in keys] for item in page["items"]))


def create(
    project: Annotated[str, typer.Argument(help="Whose sandbox it is.")],
    *,
    template: Annotated[str, typer.Option(help="What it is made from.")] = "base",
    port: Annotated[int | None, typer.Option(help="Port that its app listens on.")] = None,
    start: Annotated[str | None, typer.Option(help="Command that starts its app.")] = None,
    workdir: Annotated[str | None, typer.Option(help="Where that command runs.")] = None,
    region: Annotated[
        str | None, typer.Option(help="Where it runs; several with commas, the nearest first.")
    ] = None,
    idle: Annotated[
        str | None, typer.Option(help="Idle time before sleep, as 3m; or `adaptive`.")
    ] = None,
    env: PairsOption = None,
    metadata: PairsOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    url: UrlOption = None,
) -> None:
    """Create a project's sandbox if it has none."""
    body: dict[str, Any] = {
        "template": template,
        "env": _pairs(env),
        "metadata": _pairs(metadata),
    }
    optional = {"port": port, "startCommand": start, "workdir": workdir, "region": region}
    body |= {name: value for name, value in optional.items() if value is not None}
    if idle == "adaptive":
        body["policy"] = {"idle": idle}
    elif idle is not None:
        body["policy"] = {"idleTimeoutMs": round(parse_duration(idle) * 1000)}
    connection = KeeperConnection(url)
    status = connection.ask("PUT", f"/api/sandboxes/{quote(project, safe='')}", body=body)
    _print_status(status, as_json=as_json, quiet=quiet)


def pause(
    projects: ProjectsArgument,
    wait: WaitOption = False,
    timeout: TimeoutOption = "60s",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    url: UrlOption = None,
) -> None:
    """Put sandboxes to sleep."""
    connection = KeeperConnection(url)
    statuses = _each(connection, projects, "POST", "pause", {})
    if wait:
        within_s = parse_duration(timeout)
        statuses = [
            connection.wait_for(status["project"], {"PAUSED"}, within_s=within_s)
            for status in statuses
        ]
    _print_many(statuses, asked=len(projects), as_json=as_json, quiet=quiet)


def kill(
    projects: ProjectsArgument,
    yes: YesOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    url: UrlOption = None,
) -> None:
    """End sandboxes for good; their records stay."""
    if not yes and sys.stdin.isatty():
        typer.confirm(f"End {', '.join(projects)} for good?", abort=True, err=True)
    elif not yes:
        raise fail(Exit.USAGE, "Nobody is there to confirm.", "Give --yes.")
    statuses = _each(KeeperConnection(url), projects, "DELETE", "", None)
    _print_many(statuses, asked=len(projects), as_json=as_json, quiet=quiet)


def verify(
    projects: ProjectsArgument,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    url: UrlOption = None,
) -> None:
    """Compare records with the provider's truth."""
    statuses = _each(KeeperConnection(url), projects, "POST", "verify", {})
    _print_many(statuses, asked=len(projects), as_json=as_json, quiet=quiet)


def extend(
    project: ProjectArgument,
    by: Annotated[str, typer.Option(help="How long from now, as 30m.")] = "1h",
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Let a sandbox run longer."""
    connection = KeeperConnection(url)
    body = {"byMs": round(parse_duration(by) * 1000)}
    status = connection.post(connection.path(project, "extend"), body)
    _print_status(status, as_json=as_json, quiet=False)


def touch(
    project: ProjectArgument,
    kind: Annotated[str, typer.Option(help="intent, work or passive.")] = "intent",
    source: Annotated[str, typer.Option(help="Who was active.")] = "cli",
    url: UrlOption = None,
) -> None:
    """Say that a sandbox is in use, so that it stays awake."""
    connection = KeeperConnection(url)
    connection.post(connection.path(project, "activity"), {"kind": kind, "source": source})


def open_page(
    project: Annotated[
        str | None, typer.Argument(help="Project, id, or a unique beginning of one.")
    ] = None,
    url: UrlOption = None,
) -> None:
    """Open a sandbox's preview in the browser, or with no project the dashboard, signed in."""
    connection = KeeperConnection(url)
    if project is None:
        link = dashboard_url(connection.url, connection.post("/api/login-passes")["token"])
        # A pass is for the person at the terminal, and not for a file.
        print_lines([link if is_for_a_person() else f"{find_dashboard(connection.url)}/"])
        webbrowser.open(link)
        return
    status = connection.get(connection.path(project, "status"))
    if not status["sandboxUrl"]:
        raise fail(Exit.WRONG_STATE, f"{project} has no preview: {status['label']}.")
    print_lines([status["sandboxUrl"]])
    webbrowser.open(status["sandboxUrl"])


def _each(
    connection: KeeperConnection, projects: list[str], method: str, verb: str, body: object
) -> list[dict[str, Any]]:
    """Act on each; one that fails is told and does not stop the others."""
    done: list[dict[str, Any]] = []
    failed = Exit.OK
    for project in projects:
        answer = connection.send(method, connection.path(project, verb), body=body)
        if answer.is_success:
            done.append(answer.json())
            continue
        problem = answer.json()
        failed = exit_code(answer.status_code, problem)
        say(f"{project}: {problem['detail']}")
    if failed and not done:
        raise typer.Exit(int(failed))
    return done


def _print_many(statuses: list[dict[str, Any]], *, asked: int, as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json(statuses)
    else:
        for status in statuses:
            _print_status(status, as_json=False, quiet=quiet)
    if len(statuses) < asked:
        raise typer.Exit(int(Exit.PARTIAL))


def _print_status(status: dict[str, Any], *, as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json(status)
    elif quiet:
        print_lines([status["project"]])
    else:
        print_lines([f"{status['project']}\t{status['status']}\t{status['label']}"])


def _row(item: dict[str, Any]) -> tuple[object, ...]:
    return (
        item["project"],
        item["status"],
        item["reason"],
        until(item["sleepsAt"]),
        f"v{item['version']}",
        age(item["lastActiveAt"]),
    )


def _pairs(given: list[str] | None) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given or []:
        name, mark, value = text.partition("=")
        if not mark or not name:
            raise fail(Exit.USAGE, f"{text!r} is not NAME=VALUE.")
        pairs[name] = value
    return pairs


def _sentences(answer: dict[str, Any]) -> list[str]:
    since = f"{moment(answer['since'])} ({age(answer['since'])})"
    head = f"{answer['project']} has been {answer['status']} since {since}"
    lines = [f"{head}: {answer['why']} (by {answer['actor']})."]
    if answer["lastActiveAt"]:
        lines.append(
            f"Last activity {age(answer['lastActiveAt'])}: {answer['lastActiveClass']} "
            f"from {answer['lastActiveSource']}."
        )
    else:
        lines.append("No activity was ever recorded.")
    lines.append(
        f"Ignored as passive: {answer['ignoredPassiveCount']}"
        + (f", last from {answer['ignoredPassiveSource']}." if answer["ignoredPassiveAt"] else ".")
    )
    lines.append(f"Idle limit: {answer['idleTimeoutWhy']}.")
    if answer["idlePauses"]:
        lines.append(
            f"Paused when idle: {answer['idlePauses']}, too early: {answer['earlyPauses']}, "
            f"ran for nobody before that: {answer['idleTailMs'] / 1000:.0f} s."
        )
    when = f", in {until(answer['nextAt'])}" if answer["nextAt"] else ""
    lines.append(f"Next{when}: {answer['nextRule']}.")
    if answer["preventedBy"]:
        lines.append(f"Prevented by: {'; '.join(answer['preventedBy'])}.")
    return lines

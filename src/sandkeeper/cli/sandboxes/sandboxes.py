"""Commands that show and change sandboxes."""

from __future__ import annotations

import shutil
import sys
import time
import webbrowser
from itertools import islice
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
    complete_projects,
    exit_code,
    fail,
    make_sign_in_url,
    parse_duration,
    report_error,
)
from sandkeeper.cli.output import (
    format_age,
    format_time,
    format_time_left,
    is_terminal,
    print_fields,
    print_items,
    print_json,
    print_lines,
    print_message,
    print_table,
)
from sandkeeper.cli.sandboxes.events import format_change
from sandkeeper.common.dashboard_host import get_dashboard_url

ProjectsArgument = Annotated[
    list[str],
    typer.Argument(
        help="Projects, sandbox ids, or unique prefixes.", autocompletion=complete_projects
    ),
]
LS_COLUMNS = ("project", "state", "what is true", "sleeps in", "last use")
WATCH_S = 2
HOME_AND_CLEAR = "\x1b[H\x1b[2J"
OptionalProjectsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="Projects, sandbox ids, or unique prefixes.", autocompletion=complete_projects
    ),
]
PairsOption = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE")]


def ls(
    *,
    state: Annotated[str, typer.Option(help="Only these states, comma-separated.")] = "",
    owner: Annotated[str, typer.Option(help="Only this kind of owner, or kind:id.")] = "",
    search: Annotated[str, typer.Option(help="Text in an id, an owner or metadata.")] = "",
    tenant: Annotated[str, typer.Option(help="Only this tenant's.")] = "",
    sort: Annotated[
        str, typer.Option(help="Field to sort by; a leading - reverses the order.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of results.")] = 1000,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show the list again every 2 s.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    url: UrlOption = None,
) -> None:
    """List sandboxes."""
    connection = KeeperConnection(url)
    query: dict[str, object] = {
        "state": state.upper(),
        "owner": owner,
        "search": search,
        "tenant": tenant,
        "sort": sort,
    }
    if watch:
        _watch(connection, limit, query)
        return
    is_here = url is None and not (owner or sort)
    if is_here and not connection.is_up():
        from sandkeeper.cli.sandboxes.recorded import list_recorded  # noqa: PLC0415  Slow to import.

        found = iter(list_recorded(state=state.upper(), search=search, tenant=tenant, limit=limit))
        print_message("No keeper runs: this is what was recorded last.")
    else:
        found = connection.iter_items("/api/sandboxes", page_size=min(200, limit), **query)
    print_items(
        list(islice(found, limit)),
        columns=LS_COLUMNS,
        row=_row,
        id_field="project",
        as_json=as_json,
        quiet=quiet,
    )


def _watch(connection: KeeperConnection, limit: int, query: dict[str, object]) -> None:
    """Show the list that fits the terminal until Ctrl-C, with one request each time."""
    if not is_terminal():
        raise fail(
            Exit.USAGE, "--watch needs a terminal.", "`sandkeeper events --follow` is for a pipe."
        )
    while True:
        room = max(1, shutil.get_terminal_size().lines - 2)
        page = connection.get(
            "/api/sandboxes", limit=min(limit, room, 500), fields="compact", **query
        )
        sys.stdout.write(HOME_AND_CLEAR)
        print_table(LS_COLUMNS, [_row(item) for item in page["items"]])
        if page["nextCursor"]:
            print_lines(["… there are more; use --state, --search or --sort."])
        time.sleep(WATCH_S)


def show(project: ProjectArgument, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Show one sandbox: what is true now, then what matters; `--json` has everything."""
    connection = KeeperConnection(url)
    status = connection.get(connection.path(project, "status"))
    if as_json:
        print_json(status)
        return
    summary = status["summary"]
    age = format_age(summary["since"])
    print_lines([f"{status['project']}: {summary['word']}, {age}. {summary['sentence']}"])
    print_fields((name, value) for name, value in _list_facts(status) if value not in (None, ""))
    for operation in summary["operations"][:1]:
        verb = "wake" if operation == "restart" else operation
        print_message(f"Next: sandkeeper {verb} {status['project']}")


def _list_facts(status: dict[str, Any]) -> list[tuple[str, object]]:
    last = None
    if status["lastActiveClass"]:
        source = status["lastActiveSource"]
        last = f"{format_age(status['lastActiveAt'])}, {status['lastActiveClass']} from {source}"
    receipt = status["receipt"] or {}
    sleeps = format_time_left(status["sleepsAt"]) if status["sleepsAt"] else None
    expires = format_time_left(status["expiresAt"]) if status["expiresAt"] else None
    return [
        ("preview", status["sandboxUrl"] if status["ready"] else None),
        ("why", f"{status['reason']} (by {status['actor']})"),
        ("sleeps in", sleeps),
        ("expires in", expires),
        ("last use", last),
        ("files", receipt.get("filesNote")),
        ("port", status["port"]),
        ("template", status["template"]),
        ("region", status["region"]),
        ("tenant", status["tenant"] if status["tenant"] != "default" else None),
        ("metadata", ", ".join(f"{k}={v}" for k, v in status["metadata"].items())),
        ("created", format_time(status["createdAt"])),
        ("id", status["id"]),
        ("instance", status["instanceId"]),
    ]


def explain(project: ProjectArgument, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Explain why a sandbox is awake or paused, and what happens to it next."""
    connection = KeeperConnection(url)
    answer = connection.get(connection.path(project, "explain"))
    if as_json:
        print_json(answer)
        return
    print_lines(_sentences(answer))


def history(
    project: ProjectArgument,
    limit: Annotated[int, typer.Option(help="Maximum number of results.")] = 100,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Show what happened to a sandbox, newest first."""
    connection = KeeperConnection(url)
    page = connection.get(connection.path(project, "history"), limit=limit)
    if as_json:
        print_json(page["items"])
        return
    if is_terminal():
        print_table(("at", "what", "why", "by"), (format_change(item) for item in page["items"]))
        return
    keys = ("at", "type", "fromState", "toState", "cause", "actor", "reason")
    print_table(keys, ([item[key] for key in keys] for item in page["items"]))


def create(
    project: Annotated[str, typer.Argument(help="The project.")],
    *,
    template: Annotated[str, typer.Option(help="Template to create it from.")] = "base",
    port: Annotated[int | None, typer.Option(help="Port that the app listens on.")] = None,
    start: Annotated[str | None, typer.Option(help="Command that starts the app.")] = None,
    workdir: Annotated[str | None, typer.Option(help="Working directory of that command.")] = None,
    region: Annotated[
        str | None, typer.Option(help="Region; or several, comma-separated, preferred first.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Whom it is counted for.")] = None,
    idle: Annotated[
        str | None, typer.Option(help="Idle time before a pause, such as 3m; or `adaptive`.")
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
    optional = {
        "port": port,
        "startCommand": start,
        "workdir": workdir,
        "region": region,
        "tenant": tenant,
    }
    body |= {name: value for name, value in optional.items() if value is not None}
    if idle == "adaptive":
        body["policy"] = {"idle": idle}
    elif idle is not None:
        body["policy"] = {"idleTimeoutMs": round(parse_duration(idle) * 1000)}
    connection = KeeperConnection(url)
    status = connection.request("PUT", f"/api/sandboxes/{quote(project, safe='')}", body=body)
    _print_status(status, as_json=as_json, quiet=quiet)


def pause(
    projects: OptionalProjectsArgument = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Pause every running sandbox.")] = False,
    yes: YesOption = False,
    wait: WaitOption = False,
    timeout: TimeoutOption = "60s",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    url: UrlOption = None,
) -> None:
    """Pause sandboxes."""
    if bool(projects) is everything:
        raise fail(Exit.USAGE, "Name the sandboxes, or pass --all.")
    connection = KeeperConnection(url)
    if everything:
        found = connection.iter_items("/api/sandboxes", state="RUNNING", fields="compact")
        names = [str(item["project"]) for item in found]
        if names:
            confirm(f"Pause {len(names)} running sandboxes?", yes=yes)
    else:
        names = connection.resolve_all(projects or ())
    statuses = _each(connection, names, "POST", "pause", {})
    if wait:
        within_s = parse_duration(timeout)
        statuses = [
            connection.wait_for(status["project"], {"PAUSED"}, within_s=within_s)
            for status in statuses
        ]
    _print_many(statuses, expected=len(names), as_json=as_json, quiet=quiet)


def kill(
    projects: ProjectsArgument,
    yes: YesOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    url: UrlOption = None,
) -> None:
    """Kill sandboxes; their records and kept files stay."""
    connection = KeeperConnection(url)
    projects = connection.resolve_all(projects)
    confirm(f"Kill {', '.join(projects)}?", yes=yes)
    statuses = _each(connection, projects, "DELETE", "", None)
    _print_many(statuses, expected=len(projects), as_json=as_json, quiet=quiet)


def verify(
    projects: ProjectsArgument,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    url: UrlOption = None,
) -> None:
    """Check sandboxes with the provider and update their records."""
    connection = KeeperConnection(url)
    projects = connection.resolve_all(projects)
    statuses = _each(connection, projects, "POST", "verify", {})
    _print_many(statuses, expected=len(projects), as_json=as_json, quiet=quiet)


def extend(
    project: ProjectArgument,
    by: Annotated[str, typer.Option(help="New time to live from now, such as 30m.")] = "1h",
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Extend the time to live of a sandbox."""
    connection = KeeperConnection(url)
    body = {"byMs": round(parse_duration(by) * 1000)}
    status = connection.post(connection.path(project, "extend"), body)
    _print_status(status, as_json=as_json, quiet=False)


def touch(
    project: ProjectArgument,
    kind: Annotated[
        str, typer.Option(help="Kind of activity: intent, work or passive.")
    ] = "intent",
    source: Annotated[str, typer.Option(help="Source of the activity.")] = "cli",
    url: UrlOption = None,
) -> None:
    """Report activity, which keeps a sandbox awake."""
    connection = KeeperConnection(url)
    connection.post(connection.path(project, "activity"), {"kind": kind, "source": source})


def open_page(
    project: Annotated[
        str | None, typer.Argument(help="Project, sandbox id, or a unique prefix.")
    ] = None,
    url: UrlOption = None,
) -> None:
    """Open a sandbox's preview in the browser; without a project, the dashboard, signed in."""
    connection = KeeperConnection(url)
    if project is None:
        link = make_sign_in_url(connection.url, connection.post("/api/login-codes")["token"])
        # Print the login code on a terminal only, never into a file.
        print_lines([link if is_terminal() else f"{get_dashboard_url(connection.url)}/"])
        webbrowser.open(link)
        return
    status = connection.get(connection.path(project, "status"))
    if not status["sandboxUrl"] or not status["ready"]:
        raise fail(Exit.WRONG_STATE, f"{project} has no preview: {status['label']}.")
    print_lines([status["sandboxUrl"]])
    webbrowser.open(status["sandboxUrl"])


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal, unless `--yes` was given; exit if the answer is no."""
    if not yes and sys.stdin.isatty():
        typer.confirm(question, abort=True, err=True)
    elif not yes:
        raise fail(Exit.USAGE, "Cannot ask for confirmation without a terminal.", "Pass --yes.")


def _each(
    connection: KeeperConnection, projects: list[str], method: str, verb: str, body: object
) -> list[dict[str, Any]]:
    """Send one request per project; report a failure and continue with the others."""
    done: list[dict[str, Any]] = []
    failed = Exit.OK
    for project in projects:
        path = f"/api/sandboxes/{quote(project, safe='')}{'/' + verb if verb else ''}"
        response = connection.send(method, path, body=body)
        if response.is_success:
            done.append(response.json())
            continue
        problem = response.json()
        failed = exit_code(response.status_code, problem)
        report_error(failed, f"{project}: {problem['detail']}", error=problem["code"])
    if failed and not done:
        raise typer.Exit(int(failed))
    return done


def _print_many(
    statuses: list[dict[str, Any]], *, expected: int, as_json: bool, quiet: bool
) -> None:
    if as_json:
        print_json(statuses)
    else:
        for status in statuses:
            _print_status(status, as_json=False, quiet=quiet)
    if len(statuses) < expected:
        raise typer.Exit(int(Exit.PARTIAL))


def _print_status(status: dict[str, Any], *, as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json(status)
    elif quiet:
        print_lines([status["project"]])
    else:
        summary = status["summary"]["sentence"]
        print_lines([f"{status['project']}\t{status['status']}\t{summary}"])


def _row(item: dict[str, Any]) -> tuple[object, ...]:
    summary = item["summary"]
    return (
        item["project"],
        summary["word"] if is_terminal() else item["status"],
        summary["sentence"],
        format_time_left(item["sleepsAt"]),
        format_age(item["lastActiveAt"] if item["lastActiveClass"] else None),
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
    since = f"{format_time(answer['since'])} ({format_age(answer['since'])})"
    lines = [
        f"{answer['project']}: {answer['label']}",
        answer["caption"],
        f"It has been {answer['status']} since {since}: {answer['why']} (by {answer['actor']}).",
    ]
    if answer["lastActiveClass"]:
        lines.append(
            f"Last activity {format_age(answer['lastActiveAt'])}: {answer['lastActiveClass']} "
            f"from {answer['lastActiveSource']}."
        )
    else:
        besides = " but what runs inside" if answer["work"] else ""
        started = format_age(answer["lastActiveAt"])
        lines.append(f"No activity since it was started {started}{besides}.")
    lines.append(
        f"Passive reads ignored: {answer['ignoredPassiveCount']}"
        + (f", last from {answer['ignoredPassiveSource']}." if answer["ignoredPassiveAt"] else ".")
    )
    if answer["work"]:
        lines.append(f"Running inside: {answer['work']}.")
    if answer["files"]:
        lines.append(f"Its files are {answer['files']}.")
    lines.append(f"Idle limit: {answer['idleTimeoutWhy']}.")
    if answer["idlePauses"]:
        lines.append(
            f"Paused when idle: {answer['idlePauses']}, too early: {answer['earlyPauses']}, "
            f"idle running time before those pauses: {answer['idleTailMs'] / 1000:.0f} s."
        )
    lines += [
        f"Leased by {one['holder']} for another {format_time_left(one['until'])}: {one['id']}."
        for one in answer["leases"]
    ]
    if answer["lastFailure"]:
        age = format_age(answer["lastFailureAt"])
        lines.append(f"The last attempt failed {age}: {answer['lastFailure']}")
    when = f", in {format_time_left(answer['nextAt'])}" if answer["nextAt"] else ""
    lines.append(f"Next{when}: {answer['nextRule']}.")
    if answer["preventedBy"]:
        lines.append(f"Prevented by: {'; '.join(answer['preventedBy'])}.")
    return lines

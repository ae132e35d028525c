"""Commands that take sandboxes of an existing fleet under Sandkeeper's care."""

from __future__ import annotations

import asyncio
import csv
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from sandkeeper.cli.connection import Exit, JsonOption, KeeperConnection, UrlOption, fail
from sandkeeper.cli.output import is_terminal, print_json, print_lines, print_message
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.store.database import Database

Row = Mapping[str, Any]

FIELDS = {
    "sandbox_id": "instanceId",
    "port": "port",
    "start_command": "startCommand",
    "workdir": "workdir",
    "region": "region",
    "tenant": "tenant",
}
"""Column of an import → field of the request. `project` and `sandbox_id` are required."""

PROGRESS_EVERY = 25

FromKeeperOption = Annotated[
    str | None,
    typer.Option("--from-keeper", help="Id of the keeper whose mark it carries, if abandoned."),
]


def adopt(
    project: Annotated[str, typer.Argument(help="The project that gets the sandbox.")],
    sandbox_id: Annotated[str, typer.Argument(help="The sandbox's id at the provider.")],
    *,
    port: Annotated[int | None, typer.Option(help="Port that the app listens on.")] = None,
    start: Annotated[str | None, typer.Option(help="Command that starts the app.")] = None,
    workdir: Annotated[str | None, typer.Option(help="Working directory of that command.")] = None,
    region: Annotated[str | None, typer.Option(help="Region that has the sandbox.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Whom it is counted for.")] = None,
    from_keeper: FromKeeperOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Take a running or paused sandbox that exists at the provider as a project's sandbox."""
    given = {
        "instanceId": sandbox_id,
        "port": port,
        "startCommand": start,
        "workdir": workdir,
        "region": region,
        "tenant": tenant,
        "fromKeeper": from_keeper,
    }
    body = {name: value for name, value in given.items() if value is not None}
    adopted = KeeperConnection(url).post(_path(project), body)
    if as_json:
        print_json(adopted)
    else:
        print_lines([_line(adopted)])


def import_fleet(
    file: Annotated[
        Path | None, typer.Argument(help="CSV file with the columns project and sandbox_id.")
    ] = None,
    *,
    database: Annotated[
        str | None, typer.Option("--database", help="postgresql://… or sqlite:///… to query.")
    ] = None,
    query: Annotated[
        str | None, typer.Option("--query", help="SELECT of project and sandbox_id.")
    ] = None,
    from_keeper: FromKeeperOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check every row and change nothing.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Adopt every sandbox of a CSV file or of a SQL query; safe to repeat."""
    rows = _read_rows(file, database, query)
    connection = KeeperConnection(url)
    results: list[dict[str, Any]] = []
    for number, row in enumerate(rows, start=1):
        body = {**_body(row), "dryRun": dry_run}
        if from_keeper is not None:
            body["fromKeeper"] = from_keeper
        results.append(_adopt_row(connection, number, row, body))
        if not as_json:
            print_lines([_line(results[-1])])
        if is_terminal() and number % PROGRESS_EVERY == 0:
            print_message(f"{number} of {len(rows)}")
    if as_json:
        print_json(results)
    counts = Counter(one["outcome"] for one in results)
    print_message(", ".join(f"{count} {name}" for name, count in counts.items()) or "No rows.")
    if counts["failed"]:
        raise typer.Exit(int(Exit.PARTIAL))


def _adopt_row(
    connection: KeeperConnection, number: int, row: Row, body: dict[str, Any]
) -> dict[str, Any]:
    """Return what became of one row; an error is a result, and the next row follows."""
    project = str(row.get("project") or "").strip()
    failed = {"outcome": "failed", "row": number, "project": project}
    failed["instanceId"] = body.get("instanceId", "")
    if not project or not body.get("instanceId"):
        return {**failed, "error": "project or sandbox_id is empty"}
    if "/" in project:
        return {**failed, "error": "the name of a project has no /"}
    response = connection.send("POST", _path(project), body=body)
    answer = response.json()
    if response.is_success:
        return {**answer, "row": number}
    return {**failed, "error": f"{answer.get('detail') or answer.get('title')}"}


def _read_rows(file: Path | None, database: str | None, query: str | None) -> list[Row]:
    if (file is None) == (query is None) or (query is None) != (database is None):
        raise fail(Exit.USAGE, "Name a CSV file, or --database and --query.")
    rows = _read_csv(file) if file is not None else _run_query(str(database), str(query))
    missing = {"project", "sandbox_id"} - set(rows[0] if rows else ("project", "sandbox_id"))
    if missing:
        raise fail(Exit.USAGE, f"There is no column {', '.join(sorted(missing))}.")
    return rows


def _read_csv(file: Path) -> list[Row]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            return list(csv.DictReader(opened))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise fail(Exit.USAGE, f"{file} cannot be read: {error}.") from None


def _run_query(url: str, query: str) -> list[Row]:
    """Return the rows of a query, which may not change anything in the other database."""

    async def read() -> list[Row]:
        opened = Database(url)
        only_reads = "SET default_transaction_read_only = on"
        if opened.is_sqlite:
            only_reads = "PRAGMA query_only = on"
        try:
            async with opened.reading() as connection:
                await connection.execute(text(only_reads))
                await connection.commit()
                return [dict(row) for row in (await connection.execute(text(query))).mappings()]
        finally:
            await opened.close()

    try:
        return asyncio.run(read())
    except (SandkeeperError, SQLAlchemyError) as error:
        cause = error.__cause__ if isinstance(error.__cause__, SQLAlchemyError) else error
        raise fail(Exit.FAILURE, f"The query failed: {getattr(cause, 'orig', cause)}") from None


def _body(row: Row) -> dict[str, Any]:
    """Return the request of a row; an empty cell is not given."""
    body: dict[str, Any] = {}
    for column, field in FIELDS.items():
        value = str("" if row.get(column) is None else row[column]).strip()
        if value:
            body[field] = int(value) if column == "port" and value.isdecimal() else value
    return body


def _path(project: str) -> str:
    return f"/api/sandboxes/{quote(project, safe='')}/adopt"


def _line(result: Row) -> str:
    last = result["error"] if result["outcome"] == "failed" else result["status"]
    return "\t".join((result["project"], result["instanceId"], result["outcome"], last))

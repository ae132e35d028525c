"""`sandkeeper db`: upgrade and downgrade the database schema."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from sandkeeper.cli.connection import Exit, fail
from sandkeeper.cli.output import print_lines
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.hosting.data_dir import create_data_dir
from sandkeeper.settings import read_settings
from sandkeeper.store.database import Database
from sandkeeper.store.schema import (
    check_current,
    downgrade,
    find_revision,
    latest_revision,
    upgrade,
)

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Database schema.")
DatabaseOption = Annotated[
    str | None, typer.Option("--database", help="postgresql://… or sqlite:///…")
]


@app.command("upgrade")
def upgrade_schema(database: DatabaseOption = None) -> None:
    """Upgrade the schema to the latest revision; all data is kept."""
    _run(database, upgrade)


@app.command("downgrade", context_settings={"ignore_unknown_options": True})
def downgrade_schema(
    revision: Annotated[str, typer.Argument(help="Target revision, such as 0001 or -1.")],
    database: DatabaseOption = None,
) -> None:
    """Downgrade the schema to an older revision; data it cannot hold is lost."""
    _run(database, lambda opened: downgrade(opened, revision))


@app.command("current")
def show_current(database: DatabaseOption = None) -> None:
    """Show the schema's revision and the one this version needs."""
    found = _run(database, find_revision)
    print_lines([f"{found or 'empty'}\t{latest_revision()}"])
    try:
        _run(database, check_current)
    except typer.Exit:
        raise typer.Exit(int(Exit.FINDINGS)) from None


def _run(database: str | None, act: Callable[[Database], Awaitable[object]]) -> object:
    settings = read_settings(database=database)

    async def perform() -> object:
        if not settings.database:
            create_data_dir(settings.data)
        opened = Database(settings.database_url)
        try:
            return await act(opened)
        finally:
            await opened.close()

    try:
        return asyncio.run(perform())
    except SandkeeperError as error:
        raise fail(Exit.FAILURE, str(error), error.hint) from None

"""`sandkeeper db`: the database's schema, forward and back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from sandkeeper.cli.connection import Exit, fail
from sandkeeper.cli.output import print_lines, say
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.hosting.data_dir import prepare_folder
from sandkeeper.settings import read_settings
from sandkeeper.store.database import Database
from sandkeeper.store.schema import downgrade, find_revision, latest_revision, upgrade

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

app = typer.Typer(add_completion=False, no_args_is_help=True, help="The database's schema.")
DatabaseOption = Annotated[
    str | None, typer.Option("--database", help="postgresql://… or sqlite:///…")
]


@app.command("upgrade")
def upgrade_schema(database: DatabaseOption = None) -> None:
    """Bring the schema up to date, with all data kept."""
    _run(database, upgrade)


@app.command("downgrade")
def downgrade_schema(
    revision: Annotated[str, typer.Argument(help="Target, as 0001 or -1.")],
    database: DatabaseOption = None,
) -> None:
    """Take the schema back to an older revision, with the data that it can hold."""
    _run(database, lambda opened: downgrade(opened, revision))


@app.command("current")
def show_current(database: DatabaseOption = None) -> None:
    """Show the schema's revision and the one that this version needs."""
    found = _run(database, find_revision)
    print_lines([f"{found or 'empty'}\t{latest_revision()}"])
    if found != latest_revision():
        say("Run `sandkeeper db upgrade`.")
        raise typer.Exit(int(Exit.FINDINGS))


def _run(database: str | None, act: Callable[[Database], Awaitable[object]]) -> object:
    settings = read_settings(database=database)
    if not settings.database:
        prepare_folder(settings.data)

    async def perform() -> object:
        opened = Database(settings.database_url)
        try:
            return await act(opened)
        finally:
            await opened.close()

    try:
        return asyncio.run(perform())
    except SandkeeperError as error:
        raise fail(Exit.FAILURE, str(error), error.hint) from None

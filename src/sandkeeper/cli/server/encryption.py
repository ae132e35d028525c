"""`sandkeeper encryption`: which keys encrypt what, and how to change them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from sandkeeper.cli.connection import Exit, JsonOption, fail
from sandkeeper.cli.output import print_items, print_lines, print_message
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.settings import Settings, read_settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any, TypeVar

    from sandkeeper.store import Store

    T = TypeVar("T")

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Encryption at rest.")
DatabaseOption = Annotated[
    str | None, typer.Option("--database", help="postgresql://… or sqlite:///…")
]


@app.command("status")
def show_status(database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """Show the data keys, the master key of each, and how much each has encrypted."""
    print_items(
        _run(database, list_keys),
        columns=("data key", "master key", "active at", "environments", "secrets", "packs"),
        row=lambda item: list(item.values()),
        as_json=as_json,
    )


@app.command("rotate")
def rotate(database: DatabaseOption = None) -> None:
    """Wrap the data keys with a new master key; the data itself stays as it is.

    Without a configured key, a new one is created in the data folder. Otherwise put the new key
    before the old one, on every replica, and run this; then remove the old one.
    """
    from sandkeeper.hosting.data_keys import rotate_master_key  # noqa: PLC0415

    done = _run(database, rotate_master_key)
    print_lines([done.master_key])
    print_message(f"{done.rewrapped} data keys are wrapped with the master key {done.master_key}.")
    print_message("Back it up, and keep the old one for as long as you keep backups made with it.")
    if done.obsolete is not None:
        print_message(f"{done.obsolete} is not needed any more.")


@app.command("new-key")
def add_key(database: DatabaseOption = None) -> None:
    """Add a data key; a running keeper then re-encrypts everything with it, in small steps."""
    from sandkeeper.hosting.data_keys import add_data_key  # noqa: PLC0415

    added = _run(
        database,
        lambda store, settings: add_data_key(store, settings, now=datetime.now(UTC)),
    )
    print_lines([added.id])
    print_message("It encrypts from one minute from now. See `sandkeeper encryption status`.")


async def list_keys(store: Store, _settings: Settings) -> list[dict[str, Any]]:
    """Return every data key with what it has encrypted; what is plain comes last, without a key."""
    counts = await store.sealed_values.count()
    keys = {one.id: one for one in await store.data_keys.list()}
    used = {key_id for found in counts.values() for key_id in found}
    return [
        {
            "dataKey": key_id or "none: not encrypted",
            "masterKey": keys[key_id].master_key if key_id in keys else "",
            "activeAt": keys[key_id].active_at.isoformat() if key_id in keys else "",
            **{kind: found[key_id] for kind, found in counts.items()},
        }
        for key_id in [*keys, *sorted(used - set(keys), reverse=True)]
    ]


def _run(database: str | None, act: Callable[[Store, Settings], Awaitable[T]]) -> T:
    from sandkeeper.store import open_store  # noqa: PLC0415

    settings = read_settings(database=database)

    async def perform() -> T:
        async with open_store(settings.database_url, migrate=False) as store:
            return await act(store, settings)

    try:
        return asyncio.run(perform())
    except SandkeeperError as error:
        raise fail(Exit.FAILURE, str(error), error.hint) from None

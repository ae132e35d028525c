"""`sandkeeper backup` and `restore`: the database and the saved files, together."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Annotated

import typer

from sandkeeper.cli.connection import Exit, JsonOption, fail
from sandkeeper.cli.output import print_fields, print_json, print_message
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.hosting.data_dir import create_data_dir
from sandkeeper.settings import Settings, read_settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeVar

    T = TypeVar("T")

DatabaseOption = Annotated[
    str | None, typer.Option("--database", help="postgresql://… or sqlite:///…")
]
PLACE = "A folder, or a bucket such as s3://bucket/prefix."


def backup(
    place: Annotated[str, typer.Argument(help=f"{PLACE} It must hold no backup yet.")],
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Back up the database and the saved files, beside running keepers.

    The master key of the encryption is not in a backup. Keep it elsewhere: nothing can be restored
    without it.
    """
    from sandkeeper.services.backup.backup import BackupReport, back_up  # noqa: PLC0415
    from sandkeeper.services.backup.place import BackupPlace  # noqa: PLC0415
    from sandkeeper.services.files.blobs import open_blobs  # noqa: PLC0415
    from sandkeeper.store import open_store  # noqa: PLC0415

    async def perform(settings: Settings) -> BackupReport:
        blobs = open_blobs(settings.files_url, settings.data / "files")
        async with open_store(settings.database_url, migrate=False) as store:
            return await back_up(store, blobs, BackupPlace(place), tell=print_message)

    done = _run(database, perform)
    _print({"rows": done.rows, "packs": done.packs, "bytes": done.bytes}, as_json=as_json)
    print_message("Keep the master key apart from this backup: nothing is restored without it.")
    if done.missing:
        names = ", ".join(done.missing[:5])
        raise fail(
            Exit.PARTIAL,
            f"{len(done.missing)} packs are missing in the file store, and in the backup: {names}",
            "The rest is backed up. Check that `files_url` names the keeper's own store.",
        )


def restore(
    place: Annotated[str, typer.Argument(help=PLACE)],
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restore a backup into an empty database and a file store, while no keeper runs.

    Nothing is asked of the provider. At the next start the records are compared with what exists,
    and sandboxes that were created since the backup are adopted.
    """
    from sandkeeper.services.backup.place import BackupPlace  # noqa: PLC0415
    from sandkeeper.services.backup.restore import RestoredBackup  # noqa: PLC0415
    from sandkeeper.services.backup.restore import restore as restore_all  # noqa: PLC0415
    from sandkeeper.services.files.blobs import open_blobs  # noqa: PLC0415
    from sandkeeper.store.database import Database  # noqa: PLC0415

    async def perform(settings: Settings) -> RestoredBackup:
        if not settings.database:
            create_data_dir(settings.data)
        blobs = open_blobs(settings.files_url, settings.data / "files")
        opened = Database(settings.database_url)
        try:
            return await restore_all(
                opened, blobs, BackupPlace(place), settings, tell=print_message
            )
        finally:
            await opened.close()

    done = _run(database, perform)
    counts = {"rows": done.rows, "packs": done.packs, "bytes": done.bytes}
    _print({**counts, "takenAt": done.taken_at.isoformat()}, as_json=as_json)
    print_message("Start the keeper: it compares the records with the provider.")


def _print(fields: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print_json(fields)
    else:
        print_fields(fields.items())


def _run(database: str | None, act: Callable[[Settings], Awaitable[T]]) -> T:
    from sandkeeper.services.backup.place import BackupError  # noqa: PLC0415

    # What is in a backup is for its owner only.
    os.umask(0o077)
    settings = read_settings(database=database)

    async def perform() -> T:
        return await act(settings)

    try:
        return asyncio.run(perform())
    except (SandkeeperError, BackupError) as error:
        raise fail(Exit.FAILURE, str(error), error.hint) from None

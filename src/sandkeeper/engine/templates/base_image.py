"""The image that the operator chose for the template `base`."""

from __future__ import annotations

import logging
import sqlite3

from sandkeeper.engine.images.credentials import read_docker_credentials
from sandkeeper.engine.images.errors import ImageError
from sandkeeper.engine.images.reference import RegistryImage, parse_reference
from sandkeeper.engine.images.store import ImageStore
from sandkeeper.engine.runtime.contract import RuntimeFaultError
from sandkeeper.engine.sandboxes.records import Blueprint
from sandkeeper.engine.storage.data_dir import DataDir
from sandkeeper.engine.storage.database import EngineDatabase
from sandkeeper.engine.templates.builder import make_image_blueprint

_log = logging.getLogger("sandkeeper.engine")


async def find_base(
    name: str, images: ImageStore, database: EngineDatabase, data_dir: DataDir
) -> Blueprint:
    """Return the blueprint of an image; the last known one if it cannot be asked for now.

    Raises RuntimeFaultError for one that was never here.
    """
    try:
        image = parse_reference(name)
        credentials = None
        if isinstance(image, RegistryImage):
            credentials = read_docker_credentials(image.host)
        found = await images.pull(
            name,
            credentials,
            lambda said: _log.info("base %s: %s", name, said),
            may_read_anywhere=True,
        )
    except ImageError as error:
        known = await database.run(_read)
        if known is None or known.image != name or not data_dir.layer(known.layers[0]).is_dir():
            raise RuntimeFaultError(f"--base {name}: {error.message}") from error
        _log.warning("base %s is used as it was fetched before: %s", name, error.message)
        return known
    for note in found.notes:
        _log.info("base %s: %s", name, note)
    blueprint = make_image_blueprint(name, found)
    await database.run(lambda connection: _write(connection, blueprint))
    return blueprint


def _read(connection: sqlite3.Connection) -> Blueprint | None:
    row = connection.execute("SELECT value FROM facts WHERE name = 'base_image'").fetchone()
    return Blueprint.from_json(row[0]) if row else None


def _write(connection: sqlite3.Connection, blueprint: Blueprint) -> None:
    connection.execute(
        "INSERT INTO facts (name, value) VALUES ('base_image', ?) "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (blueprint.to_json(),),
    )

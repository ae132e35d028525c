"""Migrate a database to another schema version, forward and back, and keep its data."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.engine import Connection

from sandkeeper.domain.errors import SchemaMismatchError, SchemaTooNewError
from sandkeeper.store.database import Database

MIGRATIONS: Final = Path(__file__).parent / "migrations"
_MIGRATION_LOCK: Final = 0x5A4D_0002


def latest_revision() -> str:
    """Return the schema version that this code needs."""
    head = ScriptDirectory(str(MIGRATIONS)).get_current_head()
    assert head is not None
    return head


async def find_revision(database: Database) -> str | None:
    """Return the database's schema version; None for an empty database."""
    async with database.reading() as connection:
        return await connection.run_sync(read_revision)


async def upgrade(database: Database, revision: str = "head") -> None:
    """Migrate forward. Safe to repeat, and for several replicas at once."""
    found = await find_revision(database)
    if revision == "head" and found == latest_revision():
        return
    _refuse_newer(found)
    async with database.writing(is_limited=False) as connection:
        await connection.run_sync(migrate_within, "upgrade", revision)


async def downgrade(database: Database, revision: str) -> None:
    """Migrate back to ``revision`` (``base`` removes everything)."""
    _refuse_newer(await find_revision(database))
    async with database.writing(is_limited=False) as connection:
        await connection.run_sync(migrate_within, "downgrade", revision)


async def check_current(database: Database) -> None:
    """Raise SchemaMismatchError unless the schema is the one this code needs."""
    found, needed = await find_revision(database), latest_revision()
    _refuse_newer(found)
    if found != needed:
        raise SchemaMismatchError(found=found, needed=needed)


def is_known(revision: str) -> bool:
    """Return False for a schema that only a newer version of the program knows."""
    known = ScriptDirectory(str(MIGRATIONS)).walk_revisions()
    return revision in {one.revision for one in known}


def _refuse_newer(found: str | None) -> None:
    if found is not None and not is_known(found):
        raise SchemaTooNewError(found=found, needed=latest_revision())


def read_revision(connection: Connection) -> str | None:
    """Return the schema version that a connection sees; None for an empty database."""
    return MigrationContext.configure(connection).get_current_revision()


def migrate_within(
    connection: Connection, direction: Literal["upgrade", "downgrade"], revision: str
) -> None:
    """Run Alembic on our own connection, inside our transaction, which has no time limit then."""
    if connection.dialect.name == "postgresql":
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            connection.execute(text(f"SET LOCAL {name} = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
    else:
        # Its transaction begins with the first statement, and Alembic does not before it is ready.
        connection.execute(text("SELECT 1"))
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    (command.upgrade if direction == "upgrade" else command.downgrade)(config, revision)

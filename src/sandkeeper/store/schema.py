"""Migrate a database to another schema version, forward and back, and keep its data."""

from __future__ import annotations

from pathlib import Path
from typing import Final

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
        return await connection.run_sync(_revision)


async def upgrade(database: Database, revision: str = "head") -> None:
    """Migrate forward. Safe to repeat, and for several replicas at once."""
    found = await find_revision(database)
    if revision == "head" and found == latest_revision():
        return
    _refuse_newer(found)
    async with database.writing(is_limited=False) as connection:
        await connection.run_sync(_migrate, command.upgrade, revision)


async def downgrade(database: Database, revision: str) -> None:
    """Migrate back to ``revision`` (``base`` removes everything)."""
    _refuse_newer(await find_revision(database))
    async with database.writing(is_limited=False) as connection:
        await connection.run_sync(_migrate, command.downgrade, revision)


async def check_current(database: Database) -> None:
    """Raise SchemaMismatchError unless the schema is the one this code needs."""
    found, needed = await find_revision(database), latest_revision()
    _refuse_newer(found)
    if found != needed:
        raise SchemaMismatchError(found=found, needed=needed)


def _refuse_newer(found: str | None) -> None:
    """Raise SchemaTooNewError for a schema that only a newer version of the program knows."""
    known = {one.revision for one in ScriptDirectory(str(MIGRATIONS)).walk_revisions()}
    if found is not None and found not in known:
        raise SchemaTooNewError(found=found, needed=latest_revision())


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _migrate(connection: Connection, move: object, revision: str) -> None:
    """Run Alembic on our own connection, inside our transaction."""
    if connection.dialect.name == "postgresql":
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            connection.execute(text(f"SET LOCAL {name} = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    assert callable(move)
    move(config, revision)

"""Note every write to a sandbox, so that every replica shows every committed version.

Triggers do it, so no statement can forget it. ``position`` grows with each change: it is the
transaction's number on PostgreSQL, and a counter on SQLite, which has one writer.

A record also says since when its app does not answer, and how the app ended.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0016"
branch_labels = None
depends_on = None

_NOTED = {"INSERT": "NEW", "UPDATE": "NEW", "DELETE": "OLD"}
"""Which row of a statement names the sandbox."""


def upgrade() -> None:
    """Create the table and the triggers that fill it."""
    op.create_table(
        "sandbox_changes",
        sa.Column("sandbox_id", sa.String, primary_key=True),
        sa.Column("position", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_sandbox_changes_position", "sandbox_changes", ["position"])
    op.add_column("sandboxes", sa.Column("app_down_at", sa.BigInteger))
    op.add_column("sandboxes", sa.Column("app_exit_code", sa.Integer))
    note = _note_on_sqlite if op.get_bind().dialect.name == "sqlite" else _note_on_postgresql
    for verb, row in _NOTED.items():
        note(verb, row)


def downgrade() -> None:
    """Drop both."""
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for verb in _NOTED:
        on = "" if is_sqlite else " ON sandboxes"
        op.execute(f"DROP TRIGGER note_sandbox_{verb.lower()}{on}")
        if not is_sqlite:
            op.execute(f"DROP FUNCTION note_sandbox_{verb.lower()}()")
    op.drop_table("sandbox_changes")
    op.drop_column("sandboxes", "app_exit_code")
    op.drop_column("sandboxes", "app_down_at")


def _note_on_sqlite(verb: str, row: str) -> None:
    op.execute(
        f"CREATE TRIGGER note_sandbox_{verb.lower()} AFTER {verb} ON sandboxes BEGIN"  # noqa: S608
        " INSERT INTO sandbox_changes (sandbox_id, position)"
        f" VALUES ({row}.id, (SELECT coalesce(max(position), 0) + 1 FROM sandbox_changes))"
        " ON CONFLICT (sandbox_id) DO UPDATE SET position = excluded.position;"
        " END"
    )


def _note_on_postgresql(verb: str, row: str) -> None:
    name = f"note_sandbox_{verb.lower()}"
    op.execute(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"  # noqa: S608
        " INSERT INTO sandbox_changes (sandbox_id, position)"
        " SELECT id, pg_current_xact_id()::text::bigint FROM noted"
        " ON CONFLICT (sandbox_id) DO UPDATE SET position = excluded.position;"
        " RETURN NULL; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {name} AFTER {verb} ON sandboxes REFERENCING {row} TABLE AS noted"
        f" FOR EACH STATEMENT EXECUTE FUNCTION {name}()"
    )

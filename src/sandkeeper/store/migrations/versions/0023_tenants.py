"""Whom each sandbox is counted for, as a column that lists filter by and searches find."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; earlier sandboxes are the default tenant's."""
    op.add_column(
        "sandboxes", sa.Column("tenant", sa.String, nullable=False, server_default="default")
    )
    op.create_index("ix_sandboxes_tenant", "sandboxes", ["tenant", "created_at", "id"])
    if op.get_bind().dialect.name == "sqlite":
        _search_on_sqlite(with_tenant=True)
    else:
        op.execute(
            """
            CREATE FUNCTION sandbox_search_text(id text, instance_id text, owner_id text,
              launch text, tenant text) RETURNS text LANGUAGE sql AS $$
            SELECT sandbox_search_text(id, instance_id, owner_id, launch)
              || coalesce(E'\\n\\n' || nullif(tenant, 'default'), '') $$
            """
        )
        _search_on_postgresql(with_tenant=True)


def downgrade() -> None:
    """Remove it, from the texts that are searched too."""
    if op.get_bind().dialect.name == "sqlite":
        _search_on_sqlite(with_tenant=False)
    else:
        _search_on_postgresql(with_tenant=False)
        op.execute("DROP FUNCTION sandbox_search_text(text, text, text, text, text)")
    op.drop_index("ix_sandboxes_tenant", "sandboxes")
    op.drop_column("sandboxes", "tenant")


def _search_on_sqlite(*, with_tenant: bool) -> None:
    gap = "char(10, 10)"
    metadata = (
        "CASE WHEN json_valid(NEW.launch) THEN"  # noqa: S608  # Our own names.
        f" (SELECT group_concat(key || {gap} || value, {gap})"
        " FROM json_each(NEW.launch, '$.metadata')) END"
    )
    parts = ["NEW.id", "coalesce(NEW.instance_id, '')", "NEW.owner_id", f"coalesce({metadata}, '')"]
    if with_tenant:
        parts.append("coalesce(nullif(NEW.tenant, 'default'), '')")
    words = " || ".join(f"{gap} || {part}" for part in parts)
    columns = ["owner_id", "instance_id", "launch", *(["tenant"] if with_tenant else [])]
    changed = " OR ".join(f"OLD.{one} IS NOT NEW.{one}" for one in columns)
    op.execute("DROP TRIGGER search_sandbox_insert")
    op.execute("DROP TRIGGER search_sandbox_update")
    op.execute(
        "CREATE TRIGGER search_sandbox_insert AFTER INSERT ON sandboxes BEGIN"  # noqa: S608
        f" INSERT INTO sandbox_search (sandbox_id, text) VALUES (NEW.id, {words}); END"
    )
    op.execute(
        f"CREATE TRIGGER search_sandbox_update AFTER UPDATE OF {', '.join(columns)} ON sandboxes"  # noqa: S608
        f" WHEN {changed} BEGIN"
        f" UPDATE sandbox_search SET text = {words} WHERE sandbox_id = NEW.id; END"
    )


def _search_on_postgresql(*, with_tenant: bool) -> None:
    columns = ["owner_id", "instance_id", "launch", *(["tenant"] if with_tenant else [])]
    words = "sandbox_search_text({0}id, {0}instance_id, {0}owner_id, {0}launch"
    words += ", {0}tenant)" if with_tenant else ")"
    bodies = {
        "insert": "INSERT INTO sandbox_search (sandbox_id, text)"  # noqa: S608
        f" SELECT id, {words.format('')} FROM noted",
        "update": f"UPDATE sandbox_search SET text = {words.format('NEW.')}"  # noqa: S608
        " WHERE sandbox_id = NEW.id",
    }
    for verb, body in bodies.items():
        op.execute(
            f"CREATE OR REPLACE FUNCTION search_sandbox_{verb}() RETURNS trigger LANGUAGE plpgsql"
            f" AS $$ BEGIN {body}; RETURN NULL; END $$"
        )
    moved = " OR ".join(f"OLD.{one} IS DISTINCT FROM NEW.{one}" for one in columns)
    op.execute("DROP TRIGGER search_sandbox_update ON sandboxes")
    op.execute(
        "CREATE TRIGGER search_sandbox_update AFTER UPDATE ON sandboxes FOR EACH ROW"
        f" WHEN ({moved}) EXECUTE FUNCTION search_sandbox_update()"
    )

"""What runs or may run at each provider, kept by triggers, and what waits for it.

A row of ``slots`` is live while the record says RUNNING or UNKNOWN, and reserved while a start is
under way. It is removed when it is neither. So no statement can forget what runs, and an older
version counts as well.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0029"
branch_labels = None
depends_on = None

ALIVE = "('RUNNING', 'UNKNOWN')"
COPIED = "sandbox_id, generation, provider, region, template, tenant, live, since"


def upgrade() -> None:
    """Create the tables, count what runs, and keep counting."""
    op.create_table(
        "slots",
        sa.Column("sandbox_id", sa.String, primary_key=True),
        sa.Column("generation", sa.Integer, primary_key=True),
        sa.Column("provider", sa.String, nullable=False),
        sa.Column("region", sa.String, nullable=False),
        sa.Column("template", sa.String, nullable=False),
        sa.Column("tenant", sa.String, nullable=False),
        sa.Column("live", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("since", sa.BigInteger, nullable=False),
        sa.Column("token", sa.String),
        sa.Column("reserved_until", sa.BigInteger),
        sa.Column("evicting_until", sa.BigInteger),
    )
    op.create_index("ix_slots_place", "slots", ["provider", "region", "template"])
    op.create_index("ix_slots_tenant", "slots", ["tenant"])
    op.create_index("ix_slots_reserved_until", "slots", ["reserved_until"])
    op.create_table(
        "waiters",
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("sandbox_id", sa.String, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("provider", sa.String, nullable=False),
        sa.Column("region", sa.String, nullable=False),
        sa.Column("template", sa.String, nullable=False),
        sa.Column("tenant", sa.String, nullable=False),
        sa.Column("priority", sa.String, nullable=False),
        sa.Column("overflow", sa.String, nullable=False),
        sa.Column("since", sa.BigInteger, nullable=False),
        sa.Column("seen_at", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_waiters_place", "waiters", ["provider", "region", "since"])
    op.create_table(
        "places",
        sa.Column("provider", sa.String, primary_key=True),
        sa.Column("region", sa.String, primary_key=True),
        sa.Column("learned_limit", sa.Integer),
        sa.Column("learned_at", sa.BigInteger),
        sa.Column("unrecorded", sa.Integer, nullable=False, server_default="0"),
        sa.Column("granted_at", sa.BigInteger),
        sa.Column("grant_every_ms", sa.BigInteger),
    )
    for name in ("priority", "overflow"):
        op.add_column("wakes", sa.Column(name, sa.String))
    if op.get_bind().dialect.name == "sqlite":
        _count_on_sqlite()
    else:
        _count_on_postgresql()


def downgrade() -> None:
    """Remove it all."""
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for verb in ("insert", "update", "delete"):
        op.execute(f"DROP TRIGGER slot_{verb}" + ("" if is_sqlite else " ON sandboxes"))
    if not is_sqlite:
        op.execute("DROP FUNCTION slot_written()")
        op.execute("DROP FUNCTION slot_delete()")
        op.execute("DROP FUNCTION slot_template(text)")
    for table in ("places", "waiters", "slots"):
        op.drop_table(table)
    for name in ("overflow", "priority"):
        op.drop_column("wakes", name)


def _keep(row: str) -> str:
    """Return what ends a slot that the record no longer has."""
    return (
        f"UPDATE slots SET live = false WHERE sandbox_id = {row}.id AND live"  # noqa: S608
        f" AND ({row}.state NOT IN {ALIVE} OR generation <> {row}.generation);"
        f" DELETE FROM slots WHERE sandbox_id = {row}.id AND NOT live AND reserved_until IS NULL;"
    )


def _values(row: str, template: str) -> str:
    return (
        f"{row}id, {row}generation, {row}provider, coalesce({row}region, ''), {template},"
        f" {row}tenant, true, {row}state_since"
    )


_TAKE = (
    "ON CONFLICT (sandbox_id, generation) DO UPDATE SET live = true, token = NULL,"
    " reserved_until = NULL, tenant = excluded.tenant"
)
_WATCHED = ("state", "generation", "tenant")


def _count_on_sqlite() -> None:
    template = (
        "CASE WHEN json_valid({0}launch)"
        " THEN coalesce(json_extract({0}launch, '$.template'), 'base') ELSE 'base' END"
    )
    op.execute(
        f"INSERT INTO slots ({COPIED}) SELECT {_values('', template.format(''))}"  # noqa: S608
        f" FROM sandboxes WHERE state IN {ALIVE}"
    )
    take = (
        f"INSERT INTO slots ({COPIED}) SELECT {_values('NEW.', template.format('NEW.'))}"
        f" WHERE NEW.state IN {ALIVE} {_TAKE};"
    )
    changed = " OR ".join(f"OLD.{one} IS NOT NEW.{one}" for one in _WATCHED)
    op.execute(f"CREATE TRIGGER slot_insert AFTER INSERT ON sandboxes BEGIN {take} END")
    op.execute(
        f"CREATE TRIGGER slot_update AFTER UPDATE OF {', '.join(_WATCHED)} ON sandboxes"
        f" WHEN {changed} BEGIN {_keep('NEW')} {take} END"
    )
    op.execute(
        "CREATE TRIGGER slot_delete AFTER DELETE ON sandboxes BEGIN"
        " DELETE FROM slots WHERE sandbox_id = OLD.id AND reserved_until IS NULL; END"
    )


def _count_on_postgresql() -> None:
    op.execute(
        r"""
        CREATE FUNCTION slot_template(launch text) RETURNS text LANGUAGE sql AS $$
        SELECT CASE WHEN launch NOT LIKE '{%' OR strpos(launch, '\u0000') > 0 THEN 'base'
          ELSE coalesce(launch::json ->> 'template', 'base') END $$
        """
    )
    op.execute(
        f"INSERT INTO slots ({COPIED}) SELECT {_values('', 'slot_template(launch)')}"  # noqa: S608
        f" FROM sandboxes WHERE state IN {ALIVE}"
    )
    values = _values("NEW.", "slot_template(NEW.launch)")
    op.execute(
        "CREATE FUNCTION slot_written() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"  # noqa: S608
        f" IF TG_OP = 'UPDATE' THEN {_keep('NEW')} END IF;"
        f" IF NEW.state IN {ALIVE} THEN INSERT INTO slots ({COPIED}) VALUES ({values}) {_TAKE};"
        " END IF; RETURN NULL; END $$"
    )
    op.execute(
        "CREATE FUNCTION slot_delete() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " DELETE FROM slots WHERE sandbox_id = OLD.id AND reserved_until IS NULL;"
        " RETURN NULL; END $$"
    )
    changed = " OR ".join(f"OLD.{one} IS DISTINCT FROM NEW.{one}" for one in _WATCHED)
    op.execute(
        "CREATE TRIGGER slot_insert AFTER INSERT ON sandboxes FOR EACH ROW"
        f" WHEN (NEW.state IN {ALIVE}) EXECUTE FUNCTION slot_written()"
    )
    op.execute(
        "CREATE TRIGGER slot_update AFTER UPDATE ON sandboxes FOR EACH ROW"
        f" WHEN ({changed}) EXECUTE FUNCTION slot_written()"
    )
    op.execute(
        "CREATE TRIGGER slot_delete AFTER DELETE ON sandboxes FOR EACH ROW"
        " EXECUTE FUNCTION slot_delete()"
    )

"""Counts, search texts and sort keys of the sandboxes, kept by triggers.

No statement can forget them, and they are written in the transaction of the row itself. A count is
the sum of its changes: writers only append, so that no two of them wait for one row. PostgreSQL
searches with the extension ``pg_trgm`` and SQLite with FTS5; where neither can be had, a search
reads every text.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.exc import DBAPIError

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

SEQUENCE = sa.BigInteger().with_variant(sa.Integer, "sqlite")
ENDED = "('EXPIRED', 'KILLED', 'TERMINATED')"
PLACE = "provider, region, state"
INDEXES = {
    "ix_sandboxes_due": ("next_check_at, id", "next_check_at IS NOT NULL"),
    "ix_sandboxes_unchecked": ("id", "next_check_at IS NULL"),
    "ix_sandboxes_claim_holder": ("claim_holder", "claim_holder IS NOT NULL"),
    "ix_sandboxes_ended": ("state_since", f"state IN {ENDED}"),
}
CHANGE_INDEXES = {
    "ix_sandbox_changes_active": ("last_active_at, sandbox_id", "last_active_at IS NOT NULL"),
    "ix_sandbox_changes_inactive": ("sandbox_id", "last_active_at IS NULL AND NOT removed"),
    "ix_sandbox_changes_seen_at": ("seen_at", "seen_at IS NOT NULL"),
    "ix_sandbox_changes_removed": ("position", "removed"),
}


def upgrade() -> None:
    """Create what is counted, searched and sorted by, and fill it from the rows."""
    op.create_table(
        "sandbox_counts",
        sa.Column("number", SEQUENCE, primary_key=True, autoincrement=True),
        sa.Column("provider", sa.String, nullable=False),
        sa.Column("region", sa.String),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("change", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "sandbox_search",
        sa.Column("number", SEQUENCE, primary_key=True, autoincrement=True),
        sa.Column("sandbox_id", sa.String, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.UniqueConstraint("sandbox_id", name="uq_sandbox_search_sandbox_id"),
    )
    op.add_column("sandbox_changes", sa.Column("last_active_at", sa.BigInteger))
    op.add_column("sandbox_changes", sa.Column("seen_at", sa.BigInteger))
    op.add_column(
        "sandbox_changes",
        sa.Column("removed", sa.Boolean, nullable=False, server_default=sa.false()),
    )
    op.drop_index("ix_sandboxes_due", "sandboxes")
    op.drop_index("ix_sandboxes_state", "sandboxes")
    op.create_index("ix_sandboxes_state", "sandboxes", ["state", "created_at", "id"])
    op.drop_index("ix_events_recorded_at", "events")
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    if is_sqlite:
        _drop_notes_on_sqlite()
        _index_search_on_sqlite()
        _trigger_on_sqlite()
    else:
        _trigger_on_postgresql()
    _fill(is_sqlite)
    if not is_sqlite:
        _index_search_on_postgresql()
    for table, indexes in (("sandboxes", INDEXES), ("sandbox_changes", CHANGE_INDEXES)):
        for name, (columns, condition) in indexes.items():
            op.execute(f"CREATE INDEX {name} ON {table} ({columns}) WHERE {condition}")


def downgrade() -> None:
    """Drop it all; the notes of changes are written as before."""
    for name in (*INDEXES, *CHANGE_INDEXES):
        op.execute(f"DROP INDEX {name}")
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("insert", "update", "delete"):
            op.execute(f"DROP TRIGGER count_sandbox_{verb}")
            op.execute(f"DROP TRIGGER search_sandbox_{verb}")
            op.execute(f"DROP TRIGGER IF EXISTS index_search_{verb}")
        op.execute("DROP TABLE IF EXISTS sandbox_search_index")
        _drop_notes_on_sqlite()
        for verb, row in {"insert": "NEW", "update": "NEW", "delete": "OLD"}.items():
            _note_on_sqlite(verb, f"({row}.id, {_NEXT_POSITION})", ("position",))
    else:
        for verb in ("insert", "update", "delete"):
            for name in (f"count_sandbox_{verb}", f"search_sandbox_{verb}"):
                op.execute(f"DROP TRIGGER {name} ON sandboxes")
                op.execute(f"DROP FUNCTION {name}()")
            _note_on_postgresql(verb, "id, pg_current_xact_id()::text::bigint", ("position",))
        op.execute("DROP FUNCTION sandbox_search_text(text, text, text, text)")
    for name in ("removed", "seen_at", "last_active_at"):
        op.drop_column("sandbox_changes", name)
    op.drop_table("sandbox_search")
    op.drop_table("sandbox_counts")
    op.create_index("ix_events_recorded_at", "events", ["recorded_at"])
    op.drop_index("ix_sandboxes_state", "sandboxes")
    op.create_index("ix_sandboxes_state", "sandboxes", ["state", "id"])
    op.execute(
        "CREATE INDEX ix_sandboxes_due ON sandboxes (next_check_at) WHERE next_check_at IS NOT NULL"
    )


_NEXT_POSITION = "(SELECT coalesce(max(position), 0) + 1 FROM sandbox_changes)"
_NOTED = ("position", "last_active_at", "seen_at", "removed")


def _seen_at(row: str, newest: str) -> str:
    """Return when a live sandbox was last confirmed, and NULL for an ended one."""
    confirmed = f"coalesce({row}last_verified_at, {row}created_at)"
    return (
        f"CASE WHEN {row}state IN {ENDED} THEN NULL"
        f" ELSE {newest}({confirmed}, coalesce({row}observed_at, 0)) END"
    )


def _fill(is_sqlite: bool) -> None:
    seen_at = _seen_at("", "max" if is_sqlite else "greatest")
    found = "FROM sandboxes WHERE sandboxes.id = sandbox_changes.sandbox_id"
    op.execute(
        "UPDATE sandbox_changes SET removed = NOT EXISTS (SELECT 1 " + found + "),"  # noqa: S608
        f" last_active_at = (SELECT last_active_at {found}), seen_at = (SELECT {seen_at} {found})"
    )
    op.execute(
        f"INSERT INTO sandbox_counts ({PLACE}, change)"  # noqa: S608
        f" SELECT {PLACE}, count(*) FROM sandboxes GROUP BY {PLACE}"
    )
    words = (
        _render_words_on_sqlite("sandboxes")
        if is_sqlite
        else "sandbox_search_text(id, instance_id, owner_id, launch)"
    )
    op.execute(
        f"INSERT INTO sandbox_search (sandbox_id, text) SELECT id, {words} FROM sandboxes"  # noqa: S608
    )


# SQLite.


def _drop_notes_on_sqlite() -> None:
    for verb in ("insert", "update", "delete"):
        op.execute(f"DROP TRIGGER note_sandbox_{verb}")


def _note_on_sqlite(verb: str, values: str, names: tuple[str, ...]) -> None:
    moved = ", ".join(f"{name} = excluded.{name}" for name in names)
    op.execute(
        f"CREATE TRIGGER note_sandbox_{verb} AFTER {verb.upper()} ON sandboxes BEGIN"  # noqa: S608
        f" INSERT INTO sandbox_changes (sandbox_id, {', '.join(names)}) VALUES {values}"
        f" ON CONFLICT (sandbox_id) DO UPDATE SET {moved}; END"
    )


def _trigger_on_sqlite() -> None:
    written = f"(NEW.id, {_NEXT_POSITION}, NEW.last_active_at, {_seen_at('NEW.', 'max')}, 0)"
    _note_on_sqlite("insert", written, _NOTED)
    _note_on_sqlite("update", written, _NOTED)
    _note_on_sqlite("delete", f"(OLD.id, {_NEXT_POSITION}, NULL, NULL, 1)", _NOTED)
    add = f"INSERT INTO sandbox_counts ({PLACE}, change) VALUES"
    added = f" {add} (NEW.provider, NEW.region, NEW.state, 1);"
    taken = f" {add} (OLD.provider, OLD.region, OLD.state, -1);"
    new = "INSERT INTO sandbox_search (sandbox_id, text)"
    words = _render_words_on_sqlite("NEW")
    renewed = f" UPDATE sandbox_search SET text = {words} WHERE sandbox_id = NEW.id;"  # noqa: S608
    triggers = {
        "count_sandbox_insert AFTER INSERT": added,
        "count_sandbox_delete AFTER DELETE": taken,
        f"count_sandbox_update AFTER UPDATE OF {PLACE}": taken + added,
        "search_sandbox_insert AFTER INSERT": f" {new} VALUES (NEW.id, {words});",
        "search_sandbox_delete AFTER DELETE": " DELETE FROM sandbox_search"
        " WHERE sandbox_id = OLD.id;",
        "search_sandbox_update AFTER UPDATE OF owner_id, instance_id, launch": renewed,
    }
    for head, body in triggers.items():
        columns = head.partition(" OF ")[2]
        changed = (f"OLD.{one} IS NOT NEW.{one}" for one in columns.split(", ") if columns)
        when = f" WHEN {' OR '.join(changed)}" if columns else ""
        op.execute(f"CREATE TRIGGER {head} ON sandboxes{when} BEGIN{body} END")


def _render_words_on_sqlite(row: str) -> str:
    gap = "char(10, 10)"
    metadata = (
        f"CASE WHEN json_valid({row}.launch) THEN"  # noqa: S608
        f" (SELECT group_concat(key || {gap} || value, {gap})"
        f" FROM json_each({row}.launch, '$.metadata')) END"
    )
    parts = (f"{row}.id", f"coalesce({row}.instance_id, '')", f"{row}.owner_id")
    return "".join(f"{gap} || {part} || " for part in parts) + f"{gap} || coalesce({metadata}, '')"


def _index_search_on_sqlite() -> None:
    """Index the texts by trigrams where this SQLite can: FTS5 of version 3.34 or newer."""
    version = op.get_bind().scalar(sa.text("SELECT sqlite_version()"))
    has_fts5 = op.get_bind().scalar(
        sa.text("SELECT count(*) FROM pragma_module_list WHERE name = 'fts5'")
    )
    if not has_fts5 or tuple(map(int, str(version).split("."))) < (3, 34):
        return
    op.execute(
        "CREATE VIRTUAL TABLE sandbox_search_index USING fts5(text, content='sandbox_search',"
        " content_rowid='number', tokenize='trigram')"
    )
    add = " INSERT INTO sandbox_search_index (rowid, text) VALUES (NEW.number, NEW.text);"
    drop = (
        " INSERT INTO sandbox_search_index (sandbox_search_index, rowid, text)"
        " VALUES ('delete', OLD.number, OLD.text);"
    )
    for verb, body in {"insert": add, "update": drop + add, "delete": drop}.items():
        op.execute(
            f"CREATE TRIGGER index_search_{verb} AFTER {verb.upper()} ON sandbox_search"
            f" BEGIN{body} END"
        )


# PostgreSQL.


def _note_on_postgresql(verb: str, values: str, names: tuple[str, ...]) -> None:
    moved = ", ".join(f"{name} = excluded.{name}" for name in names)
    op.execute(
        f"CREATE OR REPLACE FUNCTION note_sandbox_{verb}() RETURNS trigger LANGUAGE plpgsql"  # noqa: S608
        f" AS $$ BEGIN INSERT INTO sandbox_changes (sandbox_id, {', '.join(names)})"
        f" SELECT {values} FROM noted ON CONFLICT (sandbox_id) DO UPDATE SET {moved};"
        " RETURN NULL; END $$"
    )


def _trigger_on_postgresql() -> None:
    position = "pg_current_xact_id()::text::bigint"
    written = f"id, {position}, last_active_at, {_seen_at('', 'greatest')}, false"
    _note_on_postgresql("insert", written, _NOTED)
    _note_on_postgresql("update", written, _NOTED)
    _note_on_postgresql("delete", f"id, {position}, NULL, NULL, true", _NOTED)
    _make_search_text()
    count = f"INSERT INTO sandbox_counts ({PLACE}, change)"
    search = "INSERT INTO sandbox_search (sandbox_id, text)"
    forget = "DELETE FROM sandbox_search WHERE sandbox_id IN"
    taken, added = (f"({one}.provider, {one}.region, {one}.state" for one in ("OLD", "NEW"))
    words = "sandbox_search_text({0}id, {0}instance_id, {0}owner_id, {0}launch)"
    noted = f"FROM noted GROUP BY {PLACE}"
    whole = {
        ("count_sandbox", "insert"): f"{count} SELECT {PLACE}, count(*) {noted}",
        ("count_sandbox", "delete"): f"{count} SELECT {PLACE}, -count(*) {noted}",
        ("search_sandbox", "insert"): f"{search} SELECT id, {words.format('')} FROM noted",  # noqa: S608
        ("search_sandbox", "delete"): f"{forget} (SELECT id FROM noted)",  # noqa: S608
    }
    for (name, verb), statement in whole.items():
        row = "NEW" if verb == "insert" else "OLD"
        _create_trigger(
            f"{name}_{verb}",
            statement,
            f"AFTER {verb.upper()} ON sandboxes REFERENCING {row} TABLE AS noted"
            " FOR EACH STATEMENT",
        )
    # An update of many rows seldom moves one to another count, so these look at each row.
    for name, statement, columns in (
        (
            "count_sandbox_update",
            f"{count} VALUES {taken}, -1), {added}, 1)",
            ("provider", "region", "state"),
        ),
        (
            "search_sandbox_update",
            f"UPDATE sandbox_search SET text = {words.format('NEW.')} WHERE sandbox_id = NEW.id",  # noqa: S608
            ("owner_id", "instance_id", "launch"),
        ),
    ):
        moved = " OR ".join(f"OLD.{one} IS DISTINCT FROM NEW.{one}" for one in columns)
        _create_trigger(name, statement, f"AFTER UPDATE ON sandboxes FOR EACH ROW WHEN ({moved})")


def _create_trigger(name: str, statement: str, event: str) -> None:
    op.execute(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql"
        f" AS $$ BEGIN {statement}; RETURN NULL; END $$"
    )
    op.execute(f"CREATE TRIGGER {name} {event} EXECUTE FUNCTION {name}()")


def _make_search_text() -> None:
    """Create the function of a row's text; PostgreSQL cannot read JSON with a NUL in it."""
    op.execute(
        r"""
        CREATE FUNCTION sandbox_search_text(id text, instance_id text, owner_id text, launch text)
        RETURNS text LANGUAGE sql AS $$
        SELECT concat_ws(E'\n\n', '', id, coalesce(instance_id, ''), owner_id,
          CASE WHEN launch NOT LIKE '{%' OR strpos(launch, '\u0000') > 0 THEN ''
          WHEN json_typeof(launch::json -> 'metadata') IS DISTINCT FROM 'object' THEN ''
          ELSE (SELECT string_agg(key || E'\n\n' || value, E'\n\n')
                FROM json_each_text(launch::json -> 'metadata')) END) $$
        """
    )


def _index_search_on_postgresql() -> None:
    """Index the texts by trigrams if the extension is there, or this user may create it."""
    connection = op.get_bind()
    try:
        with connection.begin_nested():
            connection.execute(sa.text("CREATE EXTENSION IF NOT EXISTS pg_trgm"))
            connection.execute(
                sa.text(
                    "CREATE INDEX ix_sandbox_search_text ON sandbox_search"
                    " USING gin (text gin_trgm_ops)"
                )
            )
    except DBAPIError:
        # The server has no such extension, or forbids it: the keeper says so when it starts.
        return

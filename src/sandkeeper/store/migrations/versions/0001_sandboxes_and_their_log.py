"""Sandboxes, the event log, webhook deliveries, stored answers, facts, leaks and samples."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_DUE = sa.text("next_check_at IS NOT NULL")


def _instant(name: str, *, nullable: bool = True) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=nullable)


def _number(name: str) -> sa.Column[int]:
    kind = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    return sa.Column(name, kind, primary_key=True, autoincrement=True)


def upgrade() -> None:
    """Make every table of the first version."""
    _create_sandboxes()
    _create_log()
    _create_small_tables()


def _create_sandboxes() -> None:
    op.create_table(
        "sandboxes",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("owner_kind", sa.String, nullable=False),
        sa.Column("owner_id", sa.String, nullable=False),
        sa.Column("provider", sa.String, nullable=False),
        sa.Column("region", sa.String),
        sa.Column("state", sa.String, nullable=False),
        _instant("state_since", nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("launch", sa.Text, nullable=False),
        sa.Column("policy", sa.Text, nullable=False),
        sa.Column("instance_id", sa.String),
        sa.Column("run_id", sa.String),
        _instant("run_started_at"),
        sa.Column("url", sa.Text),
        sa.Column("ready", sa.Boolean, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("actor", sa.String, nullable=False),
        _instant("created_at", nullable=False),
        _instant("updated_at", nullable=False),
        *(_instant(name) for name in ("expires_at", "end_at", "end_as_of", "last_active_at")),
        sa.Column("last_active_class", sa.String),
        sa.Column("last_active_source", sa.String),
        sa.Column("passive_count", sa.BigInteger, nullable=False),
        _instant("passive_at"),
        sa.Column("passive_source", sa.String),
        *(_instant(name) for name in ("observed_at", "state_as_of", "acted_at", "edge_at")),
        sa.Column("edge_seen", sa.String),
        sa.Column("edge_id", sa.String),
        _instant("last_webhook_at"),
        _instant("paused_by_scheduler_at"),
        sa.Column("recreated", sa.Boolean, nullable=False),
        sa.Column("recreation_reason", sa.Text),
        sa.Column("claim_kind", sa.String),
        sa.Column("claim_holder", sa.String),
        _instant("claim_until"),
        _instant("next_check_at"),
        sa.UniqueConstraint("owner_kind", "owner_id", name="uq_sandboxes_owner"),
        sa.UniqueConstraint("instance_id", name="uq_sandboxes_instance_id"),
    )
    op.create_index(
        "ix_sandboxes_due", "sandboxes", ["next_check_at"], sqlite_where=_DUE, postgresql_where=_DUE
    )
    op.create_index("ix_sandboxes_state", "sandboxes", ["state", "id"])
    op.create_index("ix_sandboxes_created_at", "sandboxes", ["created_at", "id"])
    op.create_index("ix_sandboxes_updated_at", "sandboxes", ["updated_at", "id"])


def _create_log() -> None:
    op.create_table(
        "events",
        _number("seq"),
        sa.Column("sandbox_id", sa.String, nullable=False),
        sa.Column("owner_kind", sa.String, nullable=False),
        sa.Column("owner_id", sa.String, nullable=False),
        sa.Column("type", sa.String, nullable=False),
        _instant("at", nullable=False),
        _instant("recorded_at", nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.String, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_sandbox_id", "events", ["sandbox_id", "seq"])
    op.create_index("ix_events_recorded_at", "events", ["recorded_at"])
    op.create_table(
        "deliveries",
        _number("number"),
        sa.Column("delivery_id", sa.String),
        sa.Column("event_id", sa.String),
        sa.Column("type", sa.String),
        sa.Column("instance_id", sa.String),
        _instant("event_at"),
        _instant("received_at", nullable=False),
        sa.Column("outcome", sa.String, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_deliveries_received_at", "deliveries", ["received_at"])
    op.create_table(
        "seen_events",
        sa.Column("event_id", sa.String, primary_key=True),
        _instant("seen_at", nullable=False),
    )
    op.create_index("ix_seen_events_seen_at", "seen_events", ["seen_at"])


def _create_small_tables() -> None:
    op.create_table(
        "answers",
        sa.Column("scope", sa.String, primary_key=True),
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("fingerprint", sa.String, nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("body", sa.Text),
        _instant("started_at", nullable=False),
        _instant("held_until", nullable=False),
    )
    op.create_index("ix_answers_started_at", "answers", ["started_at"])
    op.create_table(
        "facts",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
        _instant("updated_at", nullable=False),
    )
    op.create_table(
        "leaks",
        sa.Column("instance_id", sa.String, primary_key=True),
        sa.Column("provider", sa.String, nullable=False),
        sa.Column("region", sa.String),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("owner", sa.String),
        sa.Column("metadata", sa.Text, nullable=False),
        _instant("first_seen_at", nullable=False),
        _instant("last_seen_at", nullable=False),
        sa.Column("sightings", sa.Integer, nullable=False),
        _instant("removed_at"),
    )
    op.create_index("ix_leaks_last_seen_at", "leaks", ["last_seen_at"])
    op.create_table(
        "samples",
        _number("number"),
        sa.Column("kind", sa.String, nullable=False),
        _instant("at", nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_samples_kind", "samples", ["kind", "at"])


def downgrade() -> None:
    """Remove everything: there is no version before the first."""
    for table in (
        "samples",
        "leaks",
        "facts",
        "answers",
        "seen_events",
        "deliveries",
        "events",
        "sandboxes",
    ):
        op.drop_table(table)

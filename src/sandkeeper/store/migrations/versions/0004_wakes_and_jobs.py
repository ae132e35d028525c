"""Wakes that outlive a crash, and jobs with their rebuilds."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_OPEN = sa.text("finished_at IS NULL")
_UNPAID = sa.text("status IN ('confirmed', 'charged')")


def upgrade() -> None:
    """Make three tables, and give each sandbox a place for its last wake."""
    op.add_column("sandboxes", sa.Column("wake", sa.Text))
    _make_wakes()
    op.create_table(
        "jobs",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("stage_label", sa.Text, nullable=False),
        sa.Column("build_version", sa.String),
        sa.Column("debug_id", sa.String),
        sa.Column("error_message", sa.Text),
        sa.Column("pause_note", sa.Text),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_jobs_created_at", "jobs", ["created_at", "id"])
    op.create_table(
        "rebuilds",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("job_id", sa.String, nullable=False),
        sa.Column("actor", sa.String, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("wake_id", sa.String),
        sa.Column("error_code", sa.String),
        sa.Column("error", sa.Text),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.Column("due_at", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_rebuilds_job_id", "rebuilds", ["job_id", "created_at"])
    op.create_index(
        "uq_rebuilds_under_way",
        "rebuilds",
        ["job_id"],
        unique=True,
        sqlite_where=_UNPAID,
        postgresql_where=_UNPAID,
    )


def _make_wakes() -> None:
    op.create_table(
        "wakes",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("sandbox_id", sa.String, nullable=False),
        sa.Column("actor", sa.String, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("rung", sa.String),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("may_recreate", sa.Boolean, nullable=False),
        sa.Column("steps", sa.Text, nullable=False),
        sa.Column("receipt", sa.Text),
        sa.Column("error_code", sa.String),
        sa.Column("error", sa.Text),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.Column("due_at", sa.BigInteger, nullable=False),
        sa.Column("finished_at", sa.BigInteger),
    )
    op.create_index("ix_wakes_sandbox_id", "wakes", ["sandbox_id", "started_at"])
    op.create_index("ix_wakes_finished_at", "wakes", ["finished_at"])
    for name, column, unique in (
        ("uq_wakes_under_way", "sandbox_id", True),
        ("ix_wakes_due_at", "due_at", False),
    ):
        op.create_index(
            name,
            "wakes",
            [column],
            unique=unique,
            sqlite_where=_OPEN,
            postgresql_where=_OPEN,
        )


def downgrade() -> None:
    """Take them away; every sandbox and its log stay."""
    for name in ("rebuilds", "jobs", "wakes"):
        op.drop_table(name)
    op.drop_column("sandboxes", "wake")

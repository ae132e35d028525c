"""Sessions, leases, the sessions' counters and the warm pools."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def _instant(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=nullable)


def upgrade() -> None:
    """Add the lease's end to each sandbox, and four tables."""
    op.add_column("sandboxes", _instant("leased_until", nullable=True))
    op.create_table(
        "sessions",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("user_id", sa.String, nullable=False),
        sa.Column("task_id", sa.String, nullable=False),
        sa.Column("home", sa.String, nullable=False),
        sa.Column("folder", sa.Text, nullable=False),
        sa.Column("idle_timeout_s", sa.Float, nullable=False),
        _instant("created_at"),
        _instant("last_used_at"),
        _instant("idle_at"),
        sa.Column("uses", sa.Integer, nullable=False),
        sa.UniqueConstraint("kind", "user_id", "task_id", name="uq_sessions_key"),
    )
    op.create_index("ix_sessions_home", "sessions", ["home"])
    op.create_index("ix_sessions_idle_at", "sessions", ["idle_at", "id"])
    op.create_table(
        "leases",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("sandbox_id", sa.String, nullable=False),
        sa.Column("session_id", sa.String),
        sa.Column("holder", sa.String, nullable=False),
        _instant("taken_at"),
        _instant("until"),
    )
    op.create_index("ix_leases_sandbox_id", "leases", ["sandbox_id", "until"])
    op.create_index("ix_leases_session_id", "leases", ["session_id", "until"])
    op.create_index("ix_leases_until", "leases", ["until"])
    op.create_table(
        "session_counts",
        sa.Column("kind", sa.String, primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("value", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "pools",
        sa.Column("template", sa.String, primary_key=True),
        sa.Column("target", sa.Integer, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        _instant("retry_at", nullable=True),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("hits", sa.BigInteger, nullable=False),
        sa.Column("misses", sa.BigInteger, nullable=False),
        sa.Column("filler", sa.String),
        _instant("filled_until", nullable=True),
        _instant("updated_at"),
    )


def downgrade() -> None:
    """Take the tables and the column away; the sandboxes stay, as owned by their sessions."""
    for table in ("pools", "session_counts", "leases", "sessions"):
        op.drop_table(table)
    op.drop_column("sandboxes", "leased_until")

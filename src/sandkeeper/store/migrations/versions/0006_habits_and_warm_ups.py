"""The gaps that an idle timeout is learned from, what idling cost, and warm-ups."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_OPEN = sa.text("settled_at IS NULL")
_COLUMNS = ("gaps", "idle_pauses", "early_pauses", "idle_tail_ms", "warmed_at")


def upgrade() -> None:
    """Add five columns to each sandbox, and the table of warm-ups."""
    gaps = sa.Column("gaps", sa.Text, nullable=False, server_default="")
    op.add_column("sandboxes", gaps)
    for name in ("idle_pauses", "early_pauses"):
        count = sa.Column(name, sa.Integer, nullable=False, server_default="0")
        op.add_column("sandboxes", count)
    tail = sa.Column("idle_tail_ms", sa.BigInteger, nullable=False, server_default="0")
    op.add_column("sandboxes", tail)
    op.add_column("sandboxes", sa.Column("warmed_at", sa.BigInteger))
    op.create_table(
        "warmups",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("sandbox_id", sa.String, nullable=False),
        sa.Column("actor", sa.String, nullable=False),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.Column("outcome", sa.String),
        sa.Column("settled_at", sa.BigInteger),
    )
    op.create_index("ix_warmups_started_at", "warmups", ["started_at"])
    op.create_index("ix_warmups_sandbox_id", "warmups", ["sandbox_id", "started_at"])
    op.create_index(
        "uq_warmups_open",
        "warmups",
        ["sandbox_id"],
        unique=True,
        sqlite_where=_OPEN,
        postgresql_where=_OPEN,
    )


def downgrade() -> None:
    """Take them away; what was learned is forgotten, and every sandbox stays."""
    op.drop_table("warmups")
    for name in _COLUMNS:
        op.drop_column("sandboxes", name)

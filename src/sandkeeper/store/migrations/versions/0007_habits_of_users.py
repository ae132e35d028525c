"""What a user's next session begins to learn from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table of habits."""
    op.create_table(
        "habits",
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("gaps", sa.Text, nullable=False),
        sa.Column("last_active_at", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_habits_last_active_at", "habits", ["last_active_at"])


def downgrade() -> None:
    """Remove it: the next session of each user starts without history."""
    op.drop_table("habits")

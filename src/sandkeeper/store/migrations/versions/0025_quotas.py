"""What each tenant may have, and how many sandboxes it created in each hour."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

LIMITS = (
    "running",
    "kept",
    "creations_hour",
    "creations_day",
    "running_hours_month",
    "kept_bytes",
)


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "quotas",
        sa.Column("tenant", sa.String, primary_key=True),
        *(sa.Column(name, sa.BigInteger) for name in LIMITS),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "creations",
        sa.Column("tenant", sa.String, primary_key=True),
        sa.Column("hour", sa.BigInteger, primary_key=True),
        sa.Column("count", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_creations_hour", "creations", ["hour"])


def downgrade() -> None:
    """Remove them."""
    op.drop_table("creations")
    op.drop_table("quotas")

"""When each sandbox was in use, in a short text for each day."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "activity_days",
        sa.Column("day", sa.String, nullable=False),
        sa.Column("sandbox_id", sa.String, nullable=False),
        sa.Column("tenant", sa.String, nullable=False),
        sa.Column("template", sa.String, nullable=False),
        sa.Column("spans", sa.String, nullable=False),
        sa.PrimaryKeyConstraint("day", "sandbox_id", name="pk_activity_days"),
    )


def downgrade() -> None:
    """Remove it."""
    op.drop_table("activity_days")

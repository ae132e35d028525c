"""Monthly budgets and their notices."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "budgets",
        sa.Column("tenant", sa.String, nullable=False),
        sa.Column("nanos", sa.BigInteger, nullable=False),
        sa.Column("action", sa.String, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("tenant", name="pk_budgets"),
    )
    op.create_table(
        "budget_notices",
        sa.Column("tenant", sa.String, nullable=False),
        sa.Column("month", sa.String, nullable=False),
        sa.Column("share", sa.Integer, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("spent_nanos", sa.BigInteger, nullable=False),
        sa.Column("budget_nanos", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "month", "share", name="pk_budget_notices"),
    )


def downgrade() -> None:
    """Remove them."""
    op.drop_table("budget_notices")
    op.drop_table("budgets")

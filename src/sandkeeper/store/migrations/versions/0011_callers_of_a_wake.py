"""How long the callers of a wake wait for it, and whether one of them needs it to start over."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; the callers of wakes that are under way do not wait."""
    op.add_column("wakes", sa.Column("wanted_until", sa.BigInteger))
    op.add_column(
        "wakes", sa.Column("starts_over", sa.Boolean, nullable=False, server_default=sa.false())
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_column("wakes", "starts_over")
    op.drop_column("wakes", "wanted_until")

"""Since when a leak waits, paused, for its removal."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; a leak that was seen before is paused first, as any other."""
    op.add_column("leaks", sa.Column("paused_at", sa.BigInteger))


def downgrade() -> None:
    """Remove it."""
    op.drop_column("leaks", "paused_at")

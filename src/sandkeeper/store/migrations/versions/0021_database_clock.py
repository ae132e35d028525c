"""How far each replica finds the database's clock ahead of the replicas' time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the difference; without a jump it is nothing."""
    column = sa.Column("database_ahead_ms", sa.BigInteger, nullable=False, server_default="0")
    op.add_column("replicas", column)


def downgrade() -> None:
    """Drop the difference."""
    op.drop_column("replicas", "database_ahead_ms")

"""The replicas and their heartbeats, and which replica does what is under way."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

HOLDERS = (("wakes", "driver"), ("rebuilds", "driver"), ("answers", "holder"))


def upgrade() -> None:
    """Add the table and the columns; work without a name is continued when its lease ends."""
    op.create_table(
        "replicas",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("beats", sa.BigInteger, nullable=False),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.Column("beat_at", sa.BigInteger, nullable=False),
    )
    for table, column in HOLDERS:
        op.add_column(table, sa.Column(column, sa.String))


def downgrade() -> None:
    """Remove them."""
    for table, column in HOLDERS:
        op.drop_column(table, column)
    op.drop_table("replicas")

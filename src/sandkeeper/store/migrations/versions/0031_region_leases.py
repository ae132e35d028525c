"""Which replica compares the records of a region with the provider."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table. A replica of the version before takes no lease, and compares as it did."""
    op.create_table(
        "region_leases",
        sa.Column("region", sa.String, primary_key=True),
        sa.Column("term", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.String),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.Column("finished_at", sa.BigInteger),
    )


def downgrade() -> None:
    """Remove it."""
    op.drop_table("region_leases")

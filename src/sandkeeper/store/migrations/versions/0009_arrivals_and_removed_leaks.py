"""When a record's state was heard of by our own clock; by whom, and why, a leak was removed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; a record without an arrival believes the next answer of the provider."""
    op.add_column("sandboxes", sa.Column("state_received_at", sa.BigInteger))
    op.add_column("leaks", sa.Column("reason", sa.Text, nullable=False, server_default=""))
    op.add_column("leaks", sa.Column("removed_by", sa.String))


def downgrade() -> None:
    """Take them away."""
    op.drop_column("leaks", "removed_by")
    op.drop_column("leaks", "reason")
    op.drop_column("sandboxes", "state_received_at")

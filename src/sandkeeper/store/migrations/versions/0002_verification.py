"""Verification: when the provider last confirmed a record, and how an instance ended.

Every state of the seven is text, so that no enum has to be altered. An existing record counts as
verified when it was last written.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_NAMES = (
    "last_verified_at",
    "verification_failures",
    "unreachable_at",
    "killed_at",
    "killed_reason",
)


def upgrade() -> None:
    """Add the fields and fill ``last_verified_at`` from ``updated_at``."""
    op.add_column("sandboxes", sa.Column("last_verified_at", sa.BigInteger))
    op.add_column(
        "sandboxes",
        sa.Column("verification_failures", sa.Integer, nullable=False, server_default="0"),
    )
    op.add_column("sandboxes", sa.Column("unreachable_at", sa.BigInteger))
    op.add_column("sandboxes", sa.Column("killed_at", sa.BigInteger))
    op.add_column("sandboxes", sa.Column("killed_reason", sa.String))
    op.execute("UPDATE sandboxes SET last_verified_at = updated_at")


def downgrade() -> None:
    """Take the fields away; every other column and row stays."""
    for name in reversed(_NAMES):
        op.drop_column("sandboxes", name)

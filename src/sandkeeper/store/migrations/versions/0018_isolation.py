"""What isolates each sandbox, as its provider told."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; of earlier instances it is not known."""
    op.add_column("sandboxes", sa.Column("isolation", sa.String))


def downgrade() -> None:
    """Remove it."""
    op.drop_column("sandboxes", "isolation")

"""What the last check before a pause found running inside a sandbox."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; nothing was seen before the first check."""
    op.add_column("sandboxes", sa.Column("work", sa.Text))


def downgrade() -> None:
    """Remove it."""
    op.drop_column("sandboxes", "work")

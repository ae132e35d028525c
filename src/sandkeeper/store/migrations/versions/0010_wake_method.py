"""What a wake did is called its method, in the column and inside stored receipts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Rename the column, and the key inside the receipts that are stored."""
    op.execute("ALTER TABLE wakes RENAME COLUMN rung TO method")
    _rename_key("rung", "method")


def downgrade() -> None:
    """Name both as before."""
    op.execute("ALTER TABLE wakes RENAME COLUMN method TO rung")
    _rename_key("method", "rung")


def _rename_key(old: str, new: str) -> None:
    for table, column in (("sandboxes", "wake"), ("wakes", "receipt")):
        stored = sa.column(column, sa.Text)
        op.execute(
            sa.update(sa.table(table, stored))
            .where(stored.like(f'%"{old}":%'))
            .values({column: sa.func.replace(stored, f'"{old}":', f'"{new}":')})
        )

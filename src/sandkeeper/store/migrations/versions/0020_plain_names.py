"""The newest event of a sandbox and the history of a user's gaps, under the names of the code."""

from __future__ import annotations

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

COLUMNS = ("at", "seen", "id")


def upgrade() -> None:
    """Rename the columns and the table."""
    for name in COLUMNS:
        op.execute(f"ALTER TABLE sandboxes RENAME COLUMN edge_{name} TO last_event_{name}")
    op.drop_index("ix_habits_last_active_at", "habits")
    op.rename_table("habits", "usage_history")
    op.create_index("ix_usage_history_last_active_at", "usage_history", ["last_active_at"])


def downgrade() -> None:
    """Name them as before."""
    op.drop_index("ix_usage_history_last_active_at", "usage_history")
    op.rename_table("usage_history", "habits")
    op.create_index("ix_habits_last_active_at", "habits", ["last_active_at"])
    for name in COLUMNS:
        op.execute(f"ALTER TABLE sandboxes RENAME COLUMN last_event_{name} TO edge_{name}")

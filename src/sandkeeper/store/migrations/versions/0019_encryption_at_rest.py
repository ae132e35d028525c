"""Encrypted environment variables, and the data keys that encrypt them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the keys and the columns; the keeper encrypts what is there after its start."""
    op.create_table(
        "data_keys",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("id", sa.String, nullable=False),
        sa.Column("wrapped", sa.Text, nullable=False),
        sa.Column("master_key", sa.String, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("active_at", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("id", name="uq_data_keys_id"),
    )
    op.add_column("sandboxes", sa.Column("env", sa.Text))
    op.add_column("file_packs", sa.Column("data_key", sa.String))
    op.create_index("ix_file_packs_data_key", "file_packs", ["data_key"])


def downgrade() -> None:
    """Remove them: environment variables and encrypted files cannot be read any more."""
    op.drop_index("ix_file_packs_data_key", "file_packs")
    op.drop_column("file_packs", "data_key")
    op.drop_column("sandboxes", "env")
    op.drop_table("data_keys")

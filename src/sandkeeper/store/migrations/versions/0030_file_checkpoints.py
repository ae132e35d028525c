"""Why each version of the files was saved and how much changed, and versions with a name."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0023"
branch_labels = None
depends_on = None

COLUMNS = {"reason": sa.String, "actor": sa.String, "changed": sa.Integer, "removed": sa.Integer}


def upgrade() -> None:
    """Add the columns, which say nothing about earlier versions, and the table of names."""
    for name, kind in COLUMNS.items():
        op.add_column("file_versions", sa.Column(name, kind))
    op.create_table(
        "file_checkpoints",
        sa.Column("owner_kind", sa.String, primary_key=True),
        sa.Column("owner_id", sa.String, primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.String, nullable=False),
    )
    op.create_index(
        "ix_file_checkpoints_number", "file_checkpoints", ["owner_kind", "owner_id", "number"]
    )


def downgrade() -> None:
    """Remove them; versions with a name are pruned like all others from then on."""
    op.drop_table("file_checkpoints")
    for name in COLUMNS:
        op.drop_column("file_versions", name)

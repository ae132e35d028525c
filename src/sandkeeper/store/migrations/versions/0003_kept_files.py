"""Kept files: versions of each owner, packs of content, and which version needs which pack."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_OWNER = ("owner_kind", "owner_id")


def _key(name: str, kind: type[sa.String | sa.Integer] = sa.String) -> sa.Column[object]:
    return sa.Column(name, kind, primary_key=True, autoincrement=False)


def upgrade() -> None:
    """Make the four tables; no existing one changes."""
    op.create_table(
        "file_versions",
        *(_key(name) for name in _OWNER),
        _key("number", sa.Integer),
        sa.Column("manifest", sa.String, nullable=False),
        sa.Column("tree", sa.String, nullable=False),
        sa.Column("files", sa.Integer, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("source", sa.String, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("seen_at", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_file_versions_seen_at", "file_versions", ["seen_at"])
    op.create_table(
        "file_packs",
        _key("id"),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("used_at", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_file_packs_state", "file_packs", ["state", "used_at"])
    op.create_table(
        "file_blobs",
        _key("sha256"),
        sa.Column("pack", sa.String, nullable=False),
        sa.Column("start", sa.BigInteger, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_file_blobs_pack", "file_blobs", ["pack"])
    op.create_table(
        "file_uses", *(_key(name) for name in _OWNER), _key("number", sa.Integer), _key("pack")
    )
    op.create_index("ix_file_uses_pack", "file_uses", ["pack"])


def downgrade() -> None:
    """Take the tables away; the contents stay in their folder or bucket until it is cleared."""
    for table in ("file_uses", "file_blobs", "file_packs", "file_versions"):
        op.drop_table(table)

"""Share links, own domains and the last requests of previews."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from sandkeeper.store.types import UtcMillis

revision = "0029"
down_revision = "0034"
branch_labels = None
depends_on = None

SEQUENCE = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Add the three tables."""
    op.create_table(
        "preview_links",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("owner_kind", sa.String, nullable=False),
        sa.Column("owner_id", sa.String, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("port", sa.Integer),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("uses_max", sa.Integer),
        sa.Column("uses", sa.Integer, nullable=False),
        sa.Column("created_at", UtcMillis, nullable=False),
        sa.Column("created_by", sa.String, nullable=False),
        sa.Column("expires_at", UtcMillis, nullable=False),
        sa.Column("revoked_at", UtcMillis),
        sa.UniqueConstraint("digest", name="uq_preview_links_digest"),
    )
    op.create_index("ix_preview_links_owner", "preview_links", ["owner_kind", "owner_id"])
    op.create_index("ix_preview_links_expires_at", "preview_links", ["expires_at"])
    op.create_table(
        "preview_domains",
        sa.Column("host", sa.String, primary_key=True),
        sa.Column("owner_kind", sa.String, nullable=False),
        sa.Column("owner_id", sa.String, nullable=False),
        sa.Column("port", sa.Integer),
        sa.Column("created_at", UtcMillis, nullable=False),
        sa.Column("created_by", sa.String, nullable=False),
    )
    op.create_table(
        "preview_requests",
        sa.Column("number", SEQUENCE, primary_key=True, autoincrement=True),
        sa.Column("sandbox_id", sa.String, nullable=False),
        sa.Column("at", UtcMillis, nullable=False),
        sa.Column("method", sa.String, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("took_ms", sa.Integer, nullable=False),
        sa.Column("received", sa.BigInteger, nullable=False),
        sa.Column("sent", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("who", sa.String, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_preview_requests_sandbox", "preview_requests", ["sandbox_id", "number"])
    op.create_index("ix_preview_requests_at", "preview_requests", ["at"])


def downgrade() -> None:
    """Remove them."""
    for table in ("preview_requests", "preview_domains", "preview_links"):
        op.drop_table(table)

"""Named API keys, and the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add both tables, and the name of the holder to logins."""
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("scope", sa.String, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("created_by", sa.String, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("revoked_at", sa.BigInteger),
        sa.UniqueConstraint("digest", name="uq_api_keys_digest"),
    )
    op.create_table(
        "audit",
        sa.Column(
            "number",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.String, nullable=False),
        sa.Column("action", sa.String, nullable=False),
        sa.Column("subject", sa.String, nullable=False),
        sa.Column("address", sa.String, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    with op.batch_alter_table("tokens") as tokens:
        tokens.add_column(sa.Column("holder", sa.String, nullable=False, server_default=""))


def downgrade() -> None:
    """Take them away: named keys are no longer good."""
    with op.batch_alter_table("tokens") as tokens:
        tokens.drop_column("holder")
    op.drop_table("audit")
    op.drop_table("api_keys")

"""Logins and client tokens, so that one can be listed and revoked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_REVOKED = sa.text("revoked_at IS NOT NULL")


def upgrade() -> None:
    """Add the table of tokens."""
    op.create_table(
        "tokens",
        sa.Column(
            "number",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("id", sa.String, nullable=False),
        sa.Column("use", sa.String, nullable=False),
        sa.Column("role", sa.String, nullable=False),
        sa.Column("owner_kind", sa.String),
        sa.Column("owner_id", sa.String),
        sa.Column("issued_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.Column("revoked_at", sa.BigInteger),
        sa.UniqueConstraint("id", name="uq_tokens_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_tokens_use", "tokens", ["use", "number"])
    op.create_index("ix_tokens_expires_at", "tokens", ["expires_at"])
    op.create_index(
        "ix_tokens_revoked",
        "tokens",
        ["expires_at"],
        sqlite_where=_REVOKED,
        postgresql_where=_REVOKED,
    )


def downgrade() -> None:
    """Take it away: what was revoked is good again until it expires."""
    op.drop_table("tokens")

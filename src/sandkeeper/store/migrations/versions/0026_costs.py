"""The size of each instance, and for how long sandboxes ran and slept, by day."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0031"
branch_labels = None
depends_on = None

_AMOUNTS = ("running_ms", "paused_ms", "idle_ms", "unused_ms", "timeout_ms", "kept_mib_ms")


def upgrade() -> None:
    """Add the columns and the tables; the counting begins with the kept part of the log."""
    op.add_column("sandboxes", sa.Column("vcpus", sa.Integer))
    op.add_column("sandboxes", sa.Column("memory_mb", sa.Integer))
    op.create_table(
        "meters",
        sa.Column("sandbox_id", sa.String),
        sa.Column("owner_kind", sa.String, nullable=False),
        sa.Column("owner_id", sa.String, nullable=False),
        *_names("tenant", "template", "provider", "region"),
        *_sizes(),
        sa.Column("phase", sa.String, nullable=False),
        sa.Column("since", sa.BigInteger, nullable=False),
        sa.Column("counted_to", sa.BigInteger, nullable=False),
        sa.Column("run_started_at", sa.BigInteger),
        sa.Column("timeout_at", sa.BigInteger),
        sa.Column("kept_mib", sa.BigInteger, nullable=False),
        sa.Column("earlier", sa.String, nullable=False),
        sa.Column("earlier_since", sa.BigInteger),
        sa.PrimaryKeyConstraint("sandbox_id", name="pk_meters"),
    )
    op.create_index("ix_meters_phase", "meters", ["phase", "counted_to"])
    shared = ("tenant", "template", "provider", "region")
    days = ("day", *shared, "owner_kind")
    op.create_table(
        "usage_days",
        *_names(*days),
        *_sizes(),
        *_amounts(),
        sa.PrimaryKeyConstraint(*days, "vcpus", "memory_mb", name="pk_usage_days"),
    )
    details = ("day", "sandbox_id", "owner_kind", "owner_id", *shared)
    op.create_table(
        "usage_details",
        *_names(*details),
        *_sizes(),
        *_amounts(),
        sa.PrimaryKeyConstraint(*details, "vcpus", "memory_mb", name="pk_usage_details"),
    )


def downgrade() -> None:
    """Remove them."""
    op.drop_table("usage_details")
    op.drop_table("usage_days")
    op.drop_index("ix_meters_phase", "meters")
    op.drop_table("meters")
    op.drop_column("sandboxes", "memory_mb")
    op.drop_column("sandboxes", "vcpus")


def _names(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.String, nullable=False) for name in names]


def _sizes() -> list[sa.Column[int]]:
    return [sa.Column(name, sa.Integer, nullable=False) for name in ("vcpus", "memory_mb")]


def _amounts() -> list[sa.Column[int]]:
    return [
        sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text("0"))
        for name in _AMOUNTS
    ]

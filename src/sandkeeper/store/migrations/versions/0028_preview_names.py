"""The names of previews in host names, where the owner's id is none.

A replica of the version before writes none; its rows get theirs when a newer one saves them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from sandkeeper.domain.gateway.addresses import find_preview_name, is_named_by_id
from sandkeeper.domain.owner import Owner, OwnerKind

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

PAGE = 1000


def upgrade() -> None:
    """Add the column, and give every owner whose id is no name its own."""
    op.add_column("sandboxes", sa.Column("preview_name", sa.String))
    box = sa.table("sandboxes", *map(sa.column, ("id", "owner_kind", "owner_id", "preview_name")))
    connection = op.get_bind()
    after = ""
    while True:
        page = connection.execute(
            sa.select(box.c.id, box.c.owner_kind, box.c.owner_id)
            .where(box.c.id > after)
            .order_by(box.c.id)
            .limit(PAGE)
        ).all()
        if not page:
            break
        after = page[-1].id
        owners = {row.id: Owner(OwnerKind(row.owner_kind), row.owner_id) for row in page}
        named = [
            {"row": sandbox_id, "name": find_preview_name(owner)}
            for sandbox_id, owner in owners.items()
            if not is_named_by_id(owner)
        ]
        if named:
            statement = sa.update(box).where(box.c.id == sa.bindparam("row"))
            connection.execute(statement.values(preview_name=sa.bindparam("name")), named)
    where = sa.text("preview_name IS NOT NULL")
    op.create_index(
        "ix_sandboxes_preview_name",
        "sandboxes",
        ["preview_name"],
        sqlite_where=where,
        postgresql_where=where,
    )


def downgrade() -> None:
    """Remove it."""
    op.drop_index("ix_sandboxes_preview_name", "sandboxes")
    op.drop_column("sandboxes", "preview_name")

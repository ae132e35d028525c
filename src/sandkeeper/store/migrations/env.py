"""Alembic's entry: migrates the connection that ``store.schema`` hands over."""

from __future__ import annotations

from alembic import context

from sandkeeper.store.tables.sandboxes import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()

"""Alembic's entry: runs on the connection `migrations.upgrade` hands over."""

from __future__ import annotations

from alembic import context

from valkyrie.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
context.run_migrations()

"""Runs that stop by themselves, how long runs worked, and how their agents ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def _words() -> sa.types.TypeEngine[str]:
    """Text in the order of its characters, whatever the database's collation."""
    if op.get_bind().dialect.name != "postgresql":
        return sa.Text()
    return sa.Text(collation="C")


def upgrade() -> None:
    for column in (
        sa.Column("abort_after", sa.Integer()),
        sa.Column("errors_before", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("stop_reason", _words()),
        sa.Column("worked_s", sa.Float(), nullable=False, server_default="0"),
        sa.Column("working_since", sa.Float()),
        sa.Column("exit_codes", sa.JSON()),
    ):
        op.add_column("run", column)
    # Of what was before only start and end are known.
    op.execute(
        "UPDATE run SET worked_s = finished_at - started_at "
        "WHERE started_at IS NOT NULL AND finished_at > started_at"
    )
    op.execute("UPDATE run SET working_since = started_at WHERE finished_at IS NULL")


def downgrade() -> None:
    for name in ("exit_codes", "working_since", "worked_s", "stop_reason", "errors_before", "abort_after"):
        op.drop_column("run", name)

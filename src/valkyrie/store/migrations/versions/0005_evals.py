"""Evals: runs that only the executor beside them works on, and trials that follow one another."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def _words() -> sa.types.TypeEngine[str]:
    """Text in the order of its characters, whatever the database's collation."""
    if op.get_bind().dialect.name != "postgresql":
        return sa.Text()
    return sa.Text(collation="C")


def upgrade() -> None:
    op.add_column("run", sa.Column("bound", _words()))
    op.add_column("run", sa.Column("in_turn", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    op.drop_column("run", "in_turn")
    op.drop_column("run", "bound")

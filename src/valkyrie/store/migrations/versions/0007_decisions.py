"""Jobs that stop when they are decided, trials that are skipped for it, and families of tasks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def _words() -> sa.types.TypeEngine[str]:
    """Text in the order of its characters, whatever the database's collation."""
    if op.get_bind().dialect.name != "postgresql":
        return sa.Text()
    return sa.Text(collation="C")


def upgrade() -> None:
    op.add_column("run", sa.Column("n_skipped", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("trial", sa.Column("family", _words()))
    for name in ("stop_rule", "decision"):
        op.add_column("job", sa.Column(name, sa.JSON()))


def downgrade() -> None:
    for name in ("decision", "stop_rule"):
        op.drop_column("job", name)
    op.drop_column("trial", "family")
    op.drop_column("run", "n_skipped")

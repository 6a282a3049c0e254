"""Who was served last, which key a run was started with, and how many trials at once a key allows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_key", sa.Column("max_concurrency", sa.Integer()))
    op.add_column("run", sa.Column("key_id", sa.Text()))
    op.add_column("run", sa.Column("leased_at", sa.Float()))


def downgrade() -> None:
    op.drop_column("run", "leased_at")
    op.drop_column("run", "key_id")
    op.drop_column("api_key", "max_concurrency")

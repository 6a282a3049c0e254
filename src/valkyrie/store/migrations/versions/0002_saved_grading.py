"""Grading can go on from what an earlier attempt saved."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trial", sa.Column("saved", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("trial", "saved")

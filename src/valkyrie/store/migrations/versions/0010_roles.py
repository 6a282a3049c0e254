"""Roles of API keys, and who did what."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_key", sa.Column("role", sa.Text(), nullable=False, server_default="member"))
    # Keys made before there were roles could do everything; none loses what it is used for.
    op.execute("UPDATE api_key SET role = 'admin'")
    words = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "action",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("org_id", sa.Text(), nullable=False),
        sa.Column("person", words, nullable=True),
        sa.Column("key_id", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("subject", words, nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("action_by_org", "action", ["org_id", "id"])


def downgrade() -> None:
    op.drop_index("action_by_org", "action")
    op.drop_table("action")
    op.drop_column("api_key", "role")

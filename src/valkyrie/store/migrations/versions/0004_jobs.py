"""Jobs: several runs started together; and the tokens their agents used."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TOKENS = ("input_tokens", "cached_tokens", "output_tokens")


def _words() -> sa.types.TypeEngine[str]:
    """Text in the order of its characters, whatever the database's collation."""
    if op.get_bind().dialect.name != "postgresql":
        return sa.Text()
    return sa.Text(collation="C")


def added() -> dict[str, list[sa.Column[Any]]]:
    """The columns that are new in tables that were there."""
    return {
        "run": [
            *(sa.Column(name, sa.BigInteger(), nullable=False, server_default="0") for name in TOKENS),
            sa.Column("job_id", _words()),
            sa.Column("job_position", sa.Integer()),
        ],
        "trial": [sa.Column("usage", sa.JSON(none_as_null=True))],
        "attempt": [sa.Column("usage", sa.JSON(none_as_null=True))],
    }


def upgrade() -> None:
    op.create_table(
        "job",
        sa.Column("id", _words(), primary_key=True),
        sa.Column("org_id", sa.Text(), nullable=False, server_default="default"),
        sa.Column("name", _words(), nullable=False),
        sa.Column("started_by", _words()),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("concurrency", sa.Integer(), nullable=False),
        sa.Column("ends_at", sa.Float()),
        sa.Column("about", sa.JSON(), nullable=False),
        sa.Column("arguments", sa.JSON(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False, server_default="0"),
    )
    op.create_index("job_by_org", "job", ["org_id", "created_at", "id"])
    op.create_index("job_by_org_name", "job", ["org_id", "name", "created_at", "id"])
    op.create_index("job_by_id", "job", ["org_id", "id"])
    for table, columns in added().items():
        for column in columns:
            op.add_column(table, column)
    op.create_index("run_by_job", "run", ["job_id", "job_position"])


def downgrade() -> None:
    op.drop_index("run_by_job", "run")
    for table, columns in added().items():
        for column in reversed(columns):
            op.drop_column(table, column.name)
    for name in ("job_by_id", "job_by_org_name", "job_by_org"):
        op.drop_index(name, "job")
    op.drop_table("job")

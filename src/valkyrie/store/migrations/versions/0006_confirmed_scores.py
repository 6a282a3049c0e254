"""Scores that were seen in a fresh sandbox, the evidence behind them, and runs graded again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def _words() -> sa.types.TypeEngine[str]:
    """Text in the order of its characters, whatever the database's collation."""
    if op.get_bind().dialect.name != "postgresql":
        return sa.Text()
    return sa.Text(collation="C")


def upgrade() -> None:
    op.add_column("run", sa.Column("score_confirmed", sa.Float()))
    for name, kind in (
        ("n_confirmed", sa.Integer()),
        ("confirmed_sum", sa.Float()),
        ("n_verified", sa.Integer()),
        ("n_open", sa.Integer()),
        ("grading", sa.Integer()),
    ):
        op.add_column("run", sa.Column(name, kind, nullable=False, server_default="0"))
    for table in ("trial", "attempt"):
        op.add_column(table, sa.Column("confirmed", sa.Boolean()))
        op.add_column(table, sa.Column("score_confirmed", sa.Float()))
        op.add_column(table, sa.Column("evidence", sa.JSON()))
    op.add_column("attempt", sa.Column("passed", sa.Boolean()))
    op.add_column("attempt", sa.Column("grading", sa.Integer(), nullable=False, server_default="0"))
    op.create_table(
        "regrade",
        sa.Column(
            "run_id", _words(), sa.ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, nullable=False
        ),
        sa.Column("number", sa.Integer(), primary_key=True, nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("started_by", _words()),
        sa.Column("arguments", sa.JSON(), nullable=False),
        sa.Column("final_score", sa.Float()),
        sa.Column("score_graded", sa.Float()),
        sa.Column("score_confirmed", sa.Float()),
        sa.Column("final_evaluation", sa.JSON()),
        sa.Column("finished_at", sa.Float()),
    )


def downgrade() -> None:
    op.drop_table("regrade")
    for name in ("grading", "passed"):
        op.drop_column("attempt", name)
    for table in ("attempt", "trial"):
        for name in ("evidence", "score_confirmed", "confirmed"):
            op.drop_column(table, name)
    for name in ("grading", "n_open", "n_verified", "confirmed_sum", "n_confirmed", "score_confirmed"):
        op.drop_column("run", name)

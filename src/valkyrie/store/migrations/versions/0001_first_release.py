"""The first released schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "executor",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("heartbeat_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "run",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("benchmark", sa.Text(), nullable=False),
        sa.Column("dataset", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=True),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("started_by", sa.Text(), nullable=True),
        sa.Column("concurrency", sa.Integer(), nullable=False),
        sa.Column("fraction", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("finished_at", sa.Float(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("arguments", sa.JSON(), nullable=False),
        sa.Column("agent_frozen", sa.JSON(), nullable=False),
        sa.Column("benchmark_source", sa.JSON(), nullable=False),
        sa.Column("enforcement", sa.JSON(), nullable=False),
        sa.Column("final_score", sa.Float(), nullable=True),
        sa.Column("score_graded", sa.Float(), nullable=True),
        sa.Column("final_evaluation", sa.JSON(), nullable=True),
        sa.Column("n_pending", sa.Integer(), server_default="0", nullable=False),
        sa.Column("n_building", sa.Integer(), server_default="0", nullable=False),
        sa.Column("n_in_progress", sa.Integer(), server_default="0", nullable=False),
        sa.Column("n_evaluating", sa.Integer(), server_default="0", nullable=False),
        sa.Column("n_finished", sa.Integer(), server_default="0", nullable=False),
        sa.Column("n_error", sa.Integer(), server_default="0", nullable=False),
        sa.Column("n_stopped", sa.Integer(), server_default="0", nullable=False),
        sa.Column("e_agent", sa.Integer(), server_default="0", nullable=False),
        sa.Column("e_benchmark", sa.Integer(), server_default="0", nullable=False),
        sa.Column("e_infrastructure", sa.Integer(), server_default="0", nullable=False),
        sa.Column("e_user", sa.Integer(), server_default="0", nullable=False),
        sa.Column("e_internal", sa.Integer(), server_default="0", nullable=False),
        sa.Column("n_passed", sa.Integer(), server_default="0", nullable=False),
        sa.Column("n_partial", sa.Integer(), server_default="0", nullable=False),
        sa.Column("score_sum", sa.Float(), server_default="0", nullable=False),
        sa.Column("version", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("run_by_state", "run", ["state"], unique=False)
    op.create_index("run_by_time", "run", ["created_at", "id"], unique=False)
    op.create_table(
        "trial",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("k", sa.Integer(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("executor_id", sa.Text(), nullable=True),
        sa.Column("epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("not_before", sa.Float(), nullable=True),
        sa.Column("cpus", sa.Float(), nullable=True),
        sa.Column("memory_mb", sa.Integer(), nullable=True),
        sa.Column("score", sa.Float(), nullable=True),
        sa.Column("passed", sa.Boolean(), nullable=True),
        sa.Column("category", sa.Text(), nullable=True),
        sa.Column("cause", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("exit_reason", sa.Text(), nullable=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("timing", sa.JSON(), nullable=True),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("finished_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("run_id", "task_id", "k", name="trial_once"),
    )
    op.create_index("trial_queue", "trial", ["run_id", "state", "position"], unique=False)
    op.create_table(
        "attempt",
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("executor_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("category", sa.Text(), nullable=True),
        sa.Column("cause", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("exit_reason", sa.Text(), nullable=True),
        sa.Column("score", sa.Float(), nullable=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("timing", sa.JSON(), nullable=True),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("finished_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["trial_id"], ["trial.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("trial_id", "number"),
    )


def downgrade() -> None:
    op.drop_table("attempt")
    op.drop_index("trial_queue", table_name="trial")
    op.drop_table("trial")
    op.drop_index("run_by_time", table_name="run")
    op.drop_index("run_by_state", table_name="run")
    op.drop_table("run")
    op.drop_table("executor")

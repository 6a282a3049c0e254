"""Organisations, keys, secrets at rest, hooks, costs, priorities, and what changed since a version."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

WORDS = {
    "run": (
        "id",
        "agent",
        "model",
        "benchmark",
        "dataset",
        "label",
        "provider",
        "started_by",
        "error",
        "note",
    ),
    "trial": ("run_id", "task_id", "cause", "message"),
    "attempt": ("cause", "message"),
    "executor": ("host",),
}
LISTED_BY = ("state", "agent", "benchmark", "dataset", "model", "label", "started_by")


def added() -> dict[str, list[sa.Column[Any]]]:
    """The columns that are new in tables that were there."""
    return {
        "run": [
            sa.Column("org_id", sa.Text(), nullable=False, server_default="default"),
            sa.Column("priority", sa.Integer(), nullable=False, server_default="3"),
            sa.Column("max_cost", sa.Float(), nullable=True),
            sa.Column("passes", sa.Integer(), nullable=False, server_default="1"),
            sa.Column("endings", sa.Integer(), nullable=False, server_default="0"),
            sa.Column("notify", sa.JSON(), nullable=True),
            sa.Column("place", sa.JSON(), nullable=True),
            sa.Column("n_costed", sa.Integer(), nullable=False, server_default="0"),
            sa.Column("cost_sum", sa.Float(), nullable=False, server_default="0"),
        ],
        "trial": [
            sa.Column("cost", sa.Float(), nullable=True),
            sa.Column("version", sa.Integer(), nullable=False, server_default="0"),
        ],
        "attempt": [
            sa.Column("cost", sa.Float(), nullable=True),
            sa.Column("passage", sa.Integer(), nullable=False, server_default="1"),
        ],
        "executor": [sa.Column("home", sa.Text(), nullable=False, server_default="")],
    }


def upgrade() -> None:
    _order_text()
    _create_tables()
    for table, columns in added().items():
        for column in columns:
            op.add_column(table, column)
    op.execute("UPDATE run SET endings = 1 WHERE state IN ('FINISHED', 'STOPPED', 'ERROR')")
    op.drop_index("run_by_time", "run")
    op.create_index("run_by_org", "run", ["org_id", "created_at", "id"])
    for name in LISTED_BY:
        op.create_index(f"run_by_org_{name}", "run", ["org_id", name, "created_at", "id"])
    op.create_index("run_by_id", "run", ["org_id", "id"])
    op.create_index("trial_changes", "trial", ["run_id", "version"])
    held = sa.text("executor_id IS NOT NULL")
    op.create_index("trial_held", "trial", ["executor_id"], sqlite_where=held, postgresql_where=held)
    org = sa.table(
        "org", *(sa.column(name) for name in ("id", "name", "created_at")), sa.column("settings", sa.JSON)
    )
    op.bulk_insert(org, [{"id": "default", "name": "default", "created_at": time.time(), "settings": {}}])


def _order_text() -> None:
    """By its characters, whatever the database's collation; SQLite knows no other order."""
    if op.get_bind().dialect.name != "postgresql":
        return
    for table, columns in WORDS.items():
        for column in columns:
            op.alter_column(table, column, type_=sa.Text(collation="C"))


def _create_tables() -> None:
    words = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "org",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", words, nullable=False),
        sa.Column("tenant", words, nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
        sa.UniqueConstraint("tenant"),
    )
    op.create_table(
        "api_key",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("org_id", sa.Text(), nullable=False),
        sa.Column("name", words, nullable=False),
        sa.Column("person", words, nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=True),
        sa.Column("last_used_at", sa.Float(), nullable=True),
        sa.Column("revoked_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["org_id"], ["org.id"], ondelete="CASCADE"),
        sa.UniqueConstraint("hash"),
    )
    op.create_table(
        "secret",
        sa.Column("org_id", sa.Text(), nullable=False),
        sa.Column("name", words, nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("created_by", words, nullable=True),
        sa.PrimaryKeyConstraint("org_id", "name"),
        sa.ForeignKeyConstraint(["org_id"], ["org.id"], ondelete="CASCADE"),
    )
    op.create_table(
        "handover",
        sa.Column("run_id", words, nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("run_id"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], ondelete="CASCADE"),
    )
    op.create_table(
        "hook",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", words, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("trigger", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("detail", words, nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("executor_id", sa.Text(), nullable=True),
        sa.Column("not_before", sa.Float(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("finished_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], ondelete="CASCADE"),
        sa.UniqueConstraint("run_id", "kind", "trigger", name="hook_once"),
    )
    op.create_index("hook_queue", "hook", ["state", "not_before"])


def downgrade() -> None:
    op.drop_index("trial_held", "trial")
    op.drop_index("trial_changes", "trial")
    for index in ("run_by_id", "run_by_org", *(f"run_by_org_{name}" for name in LISTED_BY)):
        op.drop_index(index, "run")
    op.create_index("run_by_time", "run", ["created_at", "id"])
    for table, columns in added().items():
        for column in columns:
            op.drop_column(table, column.name)
    for table in ("hook", "handover", "secret", "api_key", "org"):
        op.drop_table(table)

"""The tables. Names and meanings are those of the house (docs/concepts/words)."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

from valkyrie.nouns import Category, TrialState

REVISION = "0002"
"""The migration this program's schema stands at."""

metadata = MetaData()

STATE_COUNTERS = {state: f"n_{state.value.lower()}" for state in TrialState}
ERROR_COUNTERS = {category: f"e_{category.value}" for category in Category}

run = Table(
    "run",
    metadata,
    Column("id", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("model", Text),
    Column("benchmark", Text, nullable=False),
    Column("dataset", Text, nullable=False),
    Column("label", Text),
    Column("provider", Text, nullable=False),
    Column("started_by", Text),
    Column("concurrency", Integer, nullable=False),
    Column("fraction", Boolean, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("started_at", Float),
    Column("finished_at", Float),
    Column("error", Text),
    Column("note", Text),
    Column("arguments", JSON, nullable=False),
    Column("agent_frozen", JSON, nullable=False),
    Column("benchmark_source", JSON, nullable=False),
    Column("enforcement", JSON, nullable=False),
    Column("final_score", Float),
    Column("score_graded", Float),
    Column("final_evaluation", JSON),
    # Counters change in the same transaction as the trials they count, so lists never count trials.
    *(Column(name, Integer, nullable=False, server_default="0") for name in STATE_COUNTERS.values()),
    *(Column(name, Integer, nullable=False, server_default="0") for name in ERROR_COUNTERS.values()),
    Column("n_passed", Integer, nullable=False, server_default="0"),
    Column("n_partial", Integer, nullable=False, server_default="0"),
    Column("score_sum", Float, nullable=False, server_default="0"),
    Column("version", Integer, nullable=False, server_default="0"),
    Index("run_by_time", "created_at", "id"),
    Index("run_by_state", "state"),
)

trial = Table(
    "trial",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", Text, ForeignKey("run.id", ondelete="CASCADE"), nullable=False),
    Column("position", Integer, nullable=False),
    Column("task_id", Text, nullable=False),
    Column("k", Integer, nullable=False),
    Column("digest", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("executor_id", Text),
    Column("epoch", Integer, nullable=False, server_default="0"),
    Column("not_before", Float),
    Column("cpus", Float),
    Column("memory_mb", Integer),
    Column("score", Float),
    Column("passed", Boolean),
    Column("category", Text),
    Column("cause", Text),
    Column("message", Text),
    Column("exit_code", Integer),
    Column("exit_reason", Text),
    Column("result", JSON),
    Column("timing", JSON),
    Column("started_at", Float),
    Column("finished_at", Float),
    # From what grading can go on without running the agent again; null once the trial is graded.
    Column("saved", JSON(none_as_null=True)),
    UniqueConstraint("run_id", "task_id", "k", name="trial_once"),
    Index("trial_queue", "run_id", "state", "position"),
)

attempt = Table(
    "attempt",
    metadata,
    Column("trial_id", Integer, ForeignKey("trial.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("executor_id", Text, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("phase", Text, nullable=False),
    Column("outcome", Text),
    Column("category", Text),
    Column("cause", Text),
    Column("message", Text),
    Column("exit_code", Integer),
    Column("exit_reason", Text),
    Column("score", Float),
    Column("result", JSON),
    Column("timing", JSON),
    Column("started_at", Float, nullable=False),
    Column("finished_at", Float),
)

executor = Table(
    "executor",
    metadata,
    Column("id", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("heartbeat_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("ended_at", Float),
)

alembic_version = Table("alembic_version", metadata, Column("version_num", Text, primary_key=True))

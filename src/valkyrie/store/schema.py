"""The tables. Names and meanings are those of the house (docs/concepts/words)."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.types import TypeEngine

from valkyrie.nouns import DEFAULT_ORG, DEFAULT_PRIORITY, Category, Role, TrialState

REVISION = "0011"
"""The migration this program's schema stands at."""

metadata = MetaData()

STATE_COUNTERS = {state: f"n_{state.value.lower()}" for state in TrialState}
ERROR_COUNTERS = {category: f"e_{category.value}" for category in Category}
TOKEN_COUNTERS = ("input_tokens", "cached_tokens", "output_tokens")
LISTED_BY = ("state", "agent", "benchmark", "dataset", "model", "label", "started_by")


class Words(TypeDecorator[str]):
    """Text of people and programs, made such that every database can keep it: no NUL, no half character.

    In the order of its characters, whatever the database's collation.
    """

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[str]:
        return Text(collation="C") if dialect.name == "postgresql" else Text()

    def process_bind_param(self, value: str | None, dialect: object) -> str | None:  # noqa: ARG002
        if value is None or (value.isascii() and "\0" not in value):
            return value
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


RunId = Text().with_variant(Text(collation="C"), "postgresql")
"""A run's id, in the same order: runs are found by its beginning, and locked in its order."""


org = Table(
    "org",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Words, nullable=False, unique=True),
    Column("tenant", Words, unique=True),  # whom the hosted identity service knows it as
    Column("created_at", Float, nullable=False),
    Column("settings", JSON, nullable=False),  # bucket, region, log group, role
    Column("sealed", LargeBinary),  # credentials entered once
)

api_key = Table(
    "api_key",
    metadata,
    Column("id", Text, primary_key=True),
    Column("org_id", Text, ForeignKey("org.id", ondelete="CASCADE"), nullable=False),
    Column("name", Words, nullable=False),
    Column("person", Words, nullable=False),
    Column("role", Text, nullable=False, server_default=Role.MEMBER.value),
    Column("hash", Text, nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),
    Column("last_used_at", Float),
    Column("revoked_at", Float),
    Column("max_concurrency", Integer),  # of all runs started with it together; null: no limit
)

action = Table(
    "action",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    # No foreign keys: what was done stays known when who did it, or what it was done to, is gone.
    Column("org_id", Text, nullable=False),
    Column("person", Words),
    Column("key_id", Text),
    Column("name", Text, nullable=False),  # the operation, such as runs_start
    Column("subject", Words),  # the run, job, agent, secret or key it was done to
    Column("outcome", Text),  # done or refused; none while it is under way, or where that was interrupted
    Index("action_by_org", "org_id", "id"),
)

secret = Table(
    "secret",
    metadata,
    Column("org_id", Text, ForeignKey("org.id", ondelete="CASCADE"), primary_key=True),
    Column("name", Words, primary_key=True),
    Column("sealed", LargeBinary, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("created_by", Words),
)

job = Table(
    "job",
    metadata,
    Column("id", RunId, primary_key=True),
    Column("org_id", Text, nullable=False, server_default=DEFAULT_ORG),
    Column("name", Words, nullable=False),
    Column("started_by", Words),
    Column("created_at", Float, nullable=False),
    Column("concurrency", Integer, nullable=False),  # of all its runs together
    Column("ends_at", Float),  # nothing of it begins after this
    Column("about", JSON, nullable=False),  # what people noted
    Column("arguments", JSON, nullable=False),  # what it was asked with, so that it can grow
    Column("stop_rule", JSON(none_as_null=True)),  # when what it asks is decided: error rate, margin, seed
    Column("decision", JSON(none_as_null=True)),  # what was decided by that rule, pair by pair
    Column("version", Integer, nullable=False, server_default="0"),
    Index("job_by_org", "org_id", "created_at", "id"),
    Index("job_by_org_name", "org_id", "name", "created_at", "id"),
    Index("job_by_id", "org_id", "id"),
)

run = Table(
    "run",
    metadata,
    Column("id", RunId, primary_key=True),
    # No foreign key: SQLite cannot add one to a table that is there without losing what refers to it.
    Column("org_id", Text, nullable=False, server_default=DEFAULT_ORG),
    Column("state", Text, nullable=False),
    Column("agent", Words, nullable=False),
    Column("model", Words),
    Column("benchmark", Words, nullable=False),
    Column("dataset", Words, nullable=False),
    Column("label", Words),
    Column("provider", Words, nullable=False),
    Column("started_by", Words),
    Column("key_id", Text),  # the API key it was started with
    Column("concurrency", Integer, nullable=False),
    Column("fraction", Boolean, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("started_at", Float),
    Column("finished_at", Float),
    Column("leased_at", Float),  # when one of its trials was last begun
    Column("error", Words),
    Column("note", Words),
    Column("priority", Integer, nullable=False, server_default=str(DEFAULT_PRIORITY)),
    Column("max_cost", Float),
    # After how many trials that all ended in errors it stops by itself (0, null: never); errors of earlier
    # passes do not count. Why it did.
    Column("abort_after", Integer),
    Column("errors_before", Integer, nullable=False, server_default="0"),
    Column("stop_reason", Words),
    # Seconds of its earlier passes, and since when the present one works.
    Column("worked_s", Float, nullable=False, server_default="0"),
    Column("working_since", Float),
    # When it ended: how many agents ended with each exit code but 0.
    Column("exit_codes", JSON(none_as_null=True)),
    # How often the run was set going (start, resume, retry), and how often it came to an end.
    Column("passes", Integer, nullable=False, server_default="1"),
    Column("endings", Integer, nullable=False, server_default="0"),
    # Whom to tell, and where artifacts and logs are kept besides this machine's folder.
    Column("notify", JSON(none_as_null=True)),
    Column("place", JSON(none_as_null=True)),
    Column("arguments", JSON, nullable=False),
    Column("agent_frozen", JSON, nullable=False),
    Column("benchmark_source", JSON, nullable=False),
    Column("enforcement", JSON, nullable=False),
    Column("final_score", Float),
    Column("score_graded", Float),
    Column("score_confirmed", Float),
    Column("final_evaluation", JSON),
    # Counters change in the same transaction as the trials they count, so lists never count trials.
    *(Column(name, Integer, nullable=False, server_default="0") for name in STATE_COUNTERS.values()),
    *(Column(name, Integer, nullable=False, server_default="0") for name in ERROR_COUNTERS.values()),
    Column("n_passed", Integer, nullable=False, server_default="0"),
    Column("n_partial", Integer, nullable=False, server_default="0"),
    Column("score_sum", Float, nullable=False, server_default="0"),
    Column("n_confirmed", Integer, nullable=False, server_default="0"),  # passes seen in a fresh sandbox
    Column("confirmed_sum", Float, nullable=False, server_default="0"),
    Column("n_verified", Integer, nullable=False, server_default="0"),  # of which confirmed_sum is known
    Column("n_open", Integer, nullable=False, server_default="0"),  # graded, and open to tampering
    # Which grading its scores are of: 0 is the one its own trials made, others are of the table `regrade`.
    Column("grading", Integer, nullable=False, server_default="0"),
    Column("n_costed", Integer, nullable=False, server_default="0"),
    Column("cost_sum", Float, nullable=False, server_default="0"),
    *(Column(name, BigInteger, nullable=False, server_default="0") for name in TOKEN_COUNTERS),
    Column("version", Integer, nullable=False, server_default="0"),
    Column("job_id", RunId),
    Column("job_position", Integer),
    # Only an executor that says this word works on it; null: any.
    Column("bound", Words),
    # Trials of one task run one after another.
    Column("in_turn", Boolean, nullable=False, server_default=false()),
    Index("run_by_job", "job_id", "job_position"),
    # A list is one stretch of an index, whichever one thing it is narrowed to.
    Index("run_by_org", "org_id", "created_at", "id"),
    *(Index(f"run_by_org_{name}", "org_id", name, "created_at", "id") for name in LISTED_BY),
    Index("run_by_id", "org_id", "id"),
    Index("run_by_state", "state"),
)

trial = Table(
    "trial",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", RunId, ForeignKey("run.id", ondelete="CASCADE"), nullable=False),
    Column("position", Integer, nullable=False),
    Column("task_id", Words, nullable=False),
    Column("k", Integer, nullable=False),
    Column("digest", Text, nullable=False),
    Column("family", Words),  # tasks of one family resemble each other
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
    Column("cause", Words),
    Column("message", Words),
    Column("exit_code", Integer),
    Column("exit_reason", Text),
    Column("result", JSON),
    Column("timing", JSON),
    Column("cost", Float),
    Column("usage", JSON(none_as_null=True)),  # tokens of the last attempt
    # The run's version when this trial last changed: what changed since a version is found by it.
    Column("version", Integer, nullable=False, server_default="0"),
    Column("started_at", Float),
    Column("finished_at", Float),
    Column("confirmed", Boolean),
    Column("score_confirmed", Float),
    Column("evidence", JSON(none_as_null=True)),  # how it was verified: see nouns.Grade
    # From what grading can go on without running the agent again; null once the trial is graded.
    Column("saved", JSON(none_as_null=True)),
    UniqueConstraint("run_id", "task_id", "k", name="trial_once"),
    Index("trial_queue", "run_id", "state", "position"),
    Index("trial_order", "run_id", "position"),
    Index("trial_changes", "run_id", "version"),
    Index(
        "trial_held",
        "executor_id",
        sqlite_where=text("executor_id IS NOT NULL"),
        postgresql_where=text("executor_id IS NOT NULL"),
    ),
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
    Column("cause", Words),
    Column("message", Words),
    Column("exit_code", Integer),
    Column("exit_reason", Text),
    Column("score", Float),
    Column("result", JSON),
    Column("timing", JSON),
    Column("cost", Float),
    Column("usage", JSON(none_as_null=True)),
    Column("passage", Integer, nullable=False, server_default="1"),  # the run's pass it belongs to
    Column("passed", Boolean),
    Column("confirmed", Boolean),
    Column("score_confirmed", Float),
    Column("evidence", JSON(none_as_null=True)),
    Column("grading", Integer, nullable=False, server_default="0"),  # the regrade it belongs to
    Column("started_at", Float, nullable=False),
    Column("finished_at", Float),
)

regrade = Table(
    "regrade",
    metadata,
    Column("run_id", RunId, ForeignKey("run.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),  # from 1; 0 is what the run's own trials found
    Column("created_at", Float, nullable=False),
    Column("started_by", Words),
    Column("arguments", JSON, nullable=False),  # the tests or the judge that were used instead
    Column("final_score", Float),
    Column("score_graded", Float),
    Column("score_confirmed", Float),
    Column("final_evaluation", JSON),
    Column("finished_at", Float),
)

executor = Table(
    "executor",
    metadata,
    Column("id", Text, primary_key=True),
    Column("host", Words, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("heartbeat_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("ended_at", Float),
    # The data folder it holds the lock of: an earlier executor of the same one is dead.
    Column("home", Text, nullable=False, server_default=""),
)

handover = Table(
    "handover",
    metadata,
    Column("run_id", RunId, ForeignKey("run.id", ondelete="CASCADE"), primary_key=True),
    Column("sealed", LargeBinary, nullable=False),  # what executors are handed with the run
)

hook = Table(
    "hook",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", RunId, ForeignKey("run.id", ondelete="CASCADE"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("trigger", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("detail", Words),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("executor_id", Text),
    Column("not_before", Float),
    Column("created_at", Float, nullable=False),
    Column("finished_at", Float),
    UniqueConstraint("run_id", "kind", "trigger", name="hook_once"),
    Index("hook_queue", "state", "not_before"),
)

alembic_version = Table("alembic_version", metadata, Column("version_num", Text, primary_key=True))

"""The tables, the database's clock, and statements for many rows at once."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
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
    bindparam,
    column,
    false,
    func,
    insert,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.types import TypeEngine

from valkyrie.domain import DEFAULT_ORG, DEFAULT_PRIORITY, Category, Role, TrialState
from valkyrie.errors import UsageError

metadata = MetaData()

STATE_COUNTERS = {state: f"n_{state.value.lower()}" for state in TrialState}
ERROR_COUNTERS = {category: f"e_{category.value}" for category in Category}
TOKEN_COUNTERS = ("input_tokens", "cached_tokens", "output_tokens")
LISTED_BY = ("state", "agent", "benchmark", "dataset", "model", "label", "started_by")


class StoredText(TypeDecorator[str]):
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
    Column("name", StoredText, nullable=False, unique=True),
    Column("tenant", StoredText, unique=True),  # whom the hosted identity service knows it as
    Column("created_at", Float, nullable=False),
    Column("settings", JSON, nullable=False),  # bucket, region, log group, role
    Column("sealed", LargeBinary),  # credentials entered once
)

api_key = Table(
    "api_key",
    metadata,
    Column("id", Text, primary_key=True),
    Column("org_id", Text, ForeignKey("org.id", ondelete="CASCADE"), nullable=False),
    Column("name", StoredText, nullable=False),
    Column("person", StoredText, nullable=False),
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
    Column("person", StoredText),
    Column("key_id", Text),
    Column("name", Text, nullable=False),  # the operation, such as runs_start
    Column("subject", StoredText),  # the run, job, agent, secret or key it was done to
    Column("outcome", Text),  # done or refused; none while it is under way, or where that was interrupted
    Index("action_by_org", "org_id", "id"),
)

secret = Table(
    "secret",
    metadata,
    Column("org_id", Text, ForeignKey("org.id", ondelete="CASCADE"), primary_key=True),
    Column("name", StoredText, primary_key=True),
    Column("sealed", LargeBinary, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("created_by", StoredText),
)

job = Table(
    "job",
    metadata,
    Column("id", RunId, primary_key=True),
    Column("org_id", Text, nullable=False, server_default=DEFAULT_ORG),
    Column("name", StoredText, nullable=False),
    Column("started_by", StoredText),
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
    Column("agent", StoredText, nullable=False),
    Column("model", StoredText),
    Column("benchmark", StoredText, nullable=False),
    Column("dataset", StoredText, nullable=False),
    Column("label", StoredText),
    Column("provider", StoredText, nullable=False),
    Column("started_by", StoredText),
    Column("key_id", Text),  # the API key it was started with
    Column("concurrency", Integer, nullable=False),
    Column("fraction", Boolean, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("started_at", Float),
    Column("finished_at", Float),
    Column("leased_at", Float),  # when one of its trials was last begun
    Column("error", StoredText),
    Column("note", StoredText),
    Column("priority", Integer, nullable=False, server_default=str(DEFAULT_PRIORITY)),
    Column("max_cost", Float),
    # After how many trials that all ended in errors it stops by itself (0, null: never); errors of earlier
    # passes do not count. Why it did.
    Column("abort_after", Integer),
    Column("errors_before", Integer, nullable=False, server_default="0"),
    Column("stop_reason", StoredText),
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
    Column("bound", StoredText),
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
    Column("task_id", StoredText, nullable=False),
    Column("k", Integer, nullable=False),
    Column("digest", Text, nullable=False),
    Column("family", StoredText),  # tasks of one family resemble each other
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
    Column("cause", StoredText),
    Column("message", StoredText),
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
    Column("evidence", JSON(none_as_null=True)),  # how it was verified: see domain.Grade
    # From what grading can go on without running the agent again; null once the trial is graded.
    Column("saved", JSON(none_as_null=True)),
    UniqueConstraint("run_id", "task_id", "k", name="trial_once"),
    Index("trial_queue", "run_id", "state", "position"),
    Index("trial_order", "run_id", "position"),
    Index("trial_changes", "run_id", "version"),
)
HELD = text("executor_id IS NOT NULL")
# `PostgresDatabase` gives it the same condition: that loads PostgreSQL's dialect, which SQLite does not need.
trial_held = Index("trial_held", trial.c.executor_id, sqlite_where=HELD)

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
    Column("cause", StoredText),
    Column("message", StoredText),
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
    Column("started_by", StoredText),
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
    Column("host", StoredText, nullable=False),
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
    Column("detail", StoredText),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("executor_id", Text),
    Column("not_before", Float),
    Column("created_at", Float, nullable=False),
    Column("finished_at", Float),
    UniqueConstraint("run_id", "kind", "trigger", name="hook_once"),
    Index("hook_queue", "state", "not_before"),
)

alembic_version = Table("alembic_version", metadata, Column("version_num", Text, primary_key=True))


# Whose clock counts: executors on several hosts share the database's, whatever theirs say.

CLOCK = literal_column("extract(epoch FROM clock_timestamp())::float8", Float)
"""PostgreSQL's clock, inside a statement."""
_NOW = select(CLOCK)
_MEASURED_FOR_S = 30.0
_NOISE_S = 0.1
"""What asking for the time may take: clocks nearer to each other than this are taken to agree."""
_KEY = "clock_skew"


def now(connection: Connection) -> float:
    """The store's clock: PostgreSQL's own; on SQLite, whose users share a machine, this machine's."""
    if connection.dialect.name != "postgresql":
        return time.time()
    return float(connection.execute(_NOW).scalar_one())


def skew(connection: Connection) -> float:
    """Return how many seconds the store's clock is ahead of this machine's; measured now and then."""
    if connection.dialect.name != "postgresql":
        return 0.0
    measured: tuple[float, float] | None = connection.info.get(_KEY)
    if measured is None or time.monotonic() - measured[0] > _MEASURED_FOR_S:
        ahead = now(connection) - time.time()
        measured = (time.monotonic(), ahead if abs(ahead) > _NOISE_S else 0.0)
        connection.info[_KEY] = measured
    return measured[1]


# Cursors of lists: the time and the id of the last row.


def cursor_after(row: Any) -> str:
    """Return where a list that is ordered by time and id goes on after this row."""
    return base64.urlsafe_b64encode(json.dumps([row.created_at, row.id]).encode()).decode()


def read_cursor(cursor: str) -> tuple[float, str]:
    """Return the time and id of the row that a list ended with."""
    try:
        at, row_id = json.loads(base64.urlsafe_b64decode(cursor))
        at, row_id = float(at), str(row_id)
        if not (row_id.isascii() and row_id.isprintable()):
            raise ValueError(row_id)
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(f"{cursor[:80]!r} is not a cursor this list gave.") from error
    return at, row_id


# Statements that the two databases spell differently.


def insert_or(connection: Connection, table: Table) -> Any:
    """Return an insert that can say what becomes of a row that is there: `on_conflict_…`."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    return sqlite.insert(table)


Given = Mapping[str, ColumnElement[Any]]
"""What a row brings, by name."""
Types = Mapping[str, TypeEngine[Any]]


class ForEach:
    """A statement for each of many rows: one after the other on SQLite, all in one on PostgreSQL.

    There a chain of statements would leave the server waiting for the next, with every lock held, when this
    process is suspended in the middle of it, and none of the server's timeouts would end that.
    """

    def __init__(self, types: Types, made: Callable[[Given], Any], each: Any = None) -> None:
        self._types = types
        self._made = made
        if each is None:
            each = made({name: bindparam(name, type_=type_) for name, type_ in types.items()})
        self._each = each

    @classmethod
    def insert(cls, table: Table, *columns: str) -> ForEach:
        types = {name: table.c[name].type for name in columns}
        return cls(
            types,
            lambda given: insert(table).from_select(list(types), select(*given.values())),
            insert(table),
        )

    @cached_property
    def _all(self) -> Any:
        return self._made(_unnested(self._types))

    def execute(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> int:
        """Do it; how many rows it found."""
        if connection.dialect.name != "postgresql":
            return connection.execute(self._each, list(rows)).rowcount
        arrays = {name: [row[name] for row in rows] for name in self._types}
        return connection.execute(self._all, arrays).rowcount


def _unnested(types: Types) -> Given:
    """A row's values as columns of a table that is made of arrays."""
    from sqlalchemy.dialects.postgresql import ARRAY

    arrays = [bindparam(name, type_=ARRAY(type_, dimensions=1)) for name, type_ in types.items()]
    columns = [column(name, type_) for name, type_ in types.items()]
    given = func.unnest(*arrays).table_valued(*columns).render_derived(name="given")
    return {name: given.c[name] for name in types}

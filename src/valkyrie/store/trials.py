"""Trials of a run and their attempts, read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import ColumnElement, Connection, Row, and_, func, null, or_, select

from valkyrie.domain import COUNTED_AS_ZERO, Outcome, TrialState, ended_by_agent, worst_score
from valkyrie.errors import UnknownError
from valkyrie.store.schema import attempt, trial

if TYPE_CHECKING:
    from valkyrie.store.rows import AttemptRow, TrialRow, ViewedTrialRow

AT_ONCE = 500
LARGEST = 2**31 - 1
"""What columns of whole numbers hold; a number beyond it is in none of them."""


@dataclass(frozen=True, slots=True)
class TrialQuery:
    """Which trials of a run, in which order."""

    states: Sequence[str] = ()
    search: str | None = None
    sort: str = "position"
    descending: bool = False
    limit: int = 50
    offset: int = 0
    after: int | None = None
    """Only trials behind this position, in the order of positions."""
    detail: str = "trial"
    """`scores`: only what scores are compared by; `trial`: all but the result; `result`: all."""
    failed: bool = False
    """Only trials that ended without a pass."""


_SORTS = {
    "position": trial.c.position,
    "task_id": trial.c.task_id,
    "started_at": trial.c.started_at,
    "duration": trial.c.finished_at - trial.c.started_at,
    "status": trial.c.state,
    "score": trial.c.score,
}


_VIEWED = (
    *("task_id", "k", "state", "attempts", "score", "passed", "category", "cause", "message", "exit_code"),
    *("exit_reason", "not_before", "started_at", "finished_at", "timing", "digest", "usage", "cost"),
    *("confirmed", "score_confirmed", "evidence", "position", "family"),
)
"""In the order of `views.TrialView`, whose last field is the result."""
_SCORES = (
    *("task_id", "k", "state", "score", "passed", "category", "confirmed", "score_confirmed", "digest"),
    *("position", "family"),
)


def _columns(detail: str) -> list[ColumnElement[Any]]:
    """Return what is read of a trial: documents take longer to read than all the rest."""
    if detail == "scores":
        is_open = trial.c.evidence["open_to_tampering"].as_boolean().label("open_to_tampering")
        return [*(trial.c[name] for name in _SCORES), is_open]
    result = trial.c.result if detail == "result" else null().label("result")
    return [*(trial.c[name] for name in _VIEWED), result]


def trials(connection: Connection, run_id: str, query: TrialQuery) -> tuple[Sequence[ViewedTrialRow], int]:
    """Trials that match, and how many match in all; behind a position, how many there are here."""
    wanted = [trial.c.run_id == run_id]
    if query.states:
        wanted.append(trial.c.state.in_(list(query.states)))
    if query.search:
        wanted.append(trial.c.task_id.contains(query.search, autoescape=True))
    if query.failed:
        wanted.append(or_(trial.c.state == TrialState.ERROR.value, _no_pass()))
    columns = _columns(query.detail)
    if query.after is not None:
        behind = select(*columns).where(*wanted, trial.c.position > min(query.after, LARGEST))
        found = connection.execute(behind.order_by(trial.c.position).limit(min(query.limit, LARGEST))).all()
        return cast("Sequence[ViewedTrialRow]", found), len(found)
    total = connection.execute(select(func.count()).select_from(trial).where(*wanted)).scalar() or 0
    # Databases differ in where they put what is not there.
    key = _SORTS[query.sort]
    order = key.desc().nulls_last() if query.descending else key.asc().nulls_first()
    if query.sort == "position":  # always there; an index knows its order
        order = key.desc() if query.descending else key.asc()
    rows = connection.execute(
        select(*columns)
        .where(*wanted)
        .order_by(order, trial.c.position)
        .limit(min(query.limit, LARGEST))
        .offset(min(query.offset, LARGEST))
    ).all()
    return cast("Sequence[ViewedTrialRow]", rows), total


def _no_pass() -> ColumnElement[bool]:
    """Graded, and no pass; where a benchmark knows no passes, with no more than nothing."""
    unsaid = and_(trial.c.passed.is_(None), trial.c.score <= 0)
    return and_(trial.c.state == TrialState.FINISHED.value, or_(trial.c.passed.is_(False), unsaid))


def trials_since(connection: Connection, run_id: str, version: int) -> Sequence[Row[Any]]:
    """Trials that changed after the run had this version, oldest change first; without results."""
    columns: list[ColumnElement[Any]] = [*_columns("trial"), trial.c.version]
    return connection.execute(
        select(*columns)
        .where(trial.c.run_id == run_id, trial.c.version > min(version, LARGEST))
        .order_by(trial.c.version, trial.c.position)
    ).all()


_PROGRESS = ("task_id", "k", "position", "attempts", "state", "started_at")


def progress_since(connection: Connection, run_id: str, version: int) -> Iterator[Row[Any]]:
    """Yield how far the trials are that changed after the run had this version, in their order."""
    statement = (
        select(*(trial.c[name] for name in _PROGRESS))
        .where(trial.c.run_id == run_id, trial.c.version > min(version, LARGEST))
        .order_by(trial.c.position)
    )
    with connection.execute(statement.execution_options(yield_per=AT_ONCE)) as found:
        yield from found


def one_trial(connection: Connection, run_id: str, task_id: str, k: int) -> TrialRow:
    row = connection.execute(
        select(trial).where(
            trial.c.run_id == run_id, trial.c.task_id == task_id, trial.c.k == min(k, LARGEST)
        )
    ).one_or_none()
    if row is None:
        raise UnknownError(
            f"Run {run_id[:8]} has no trial {k} of task {task_id!r}. "
            f"`valk run tasks {run_id[:8]}` lists them."
        )
    return cast("TrialRow", row)


def each_result(connection: Connection, run_id: str) -> Iterator[TrialRow]:
    """Yield every trial of a run with its result, in order, without holding them all."""
    statement = select(trial).where(trial.c.run_id == run_id).order_by(trial.c.position)
    with connection.execute(statement.execution_options(yield_per=AT_ONCE)) as found:
        yield from cast("Iterator[TrialRow]", found)


def results_behind(
    connection: Connection, run_id: str, after: int, limit: int = AT_ONCE
) -> Sequence[ViewedTrialRow]:
    """Return the next trials of a run behind a position, with what the results file says of each."""
    wanted: list[ColumnElement[Any]] = [trial.c[name] for name in (*_VIEWED, "result")]
    behind = select(*wanted).where(trial.c.run_id == run_id, trial.c.position > after)
    rows = connection.execute(behind.order_by(trial.c.position).limit(limit)).all()
    return cast("Sequence[ViewedTrialRow]", rows)


def results_of_tasks(connection: Connection, run_id: str, task_ids: Sequence[str]) -> Sequence[TrialRow]:
    """Return all trials of these tasks with their results, in order."""
    found: list[TrialRow] = []
    for start in range(0, len(task_ids), AT_ONCE):
        some = task_ids[start : start + AT_ONCE]
        statement = select(trial).where(trial.c.run_id == run_id, trial.c.task_id.in_(some))
        found += cast("Iterator[TrialRow]", connection.execute(statement.order_by(trial.c.position)))
    return found


def ended_by_task(connection: Connection, run_id: str) -> dict[str, int]:
    """Return how many trials of each task have a grade or an error."""
    ended = [TrialState.FINISHED.value, TrialState.ERROR.value]
    found = connection.execute(
        select(trial.c.task_id, func.count())
        .where(trial.c.run_id == run_id, trial.c.state.in_(ended))
        .group_by(trial.c.task_id)
    )
    return {task_id: int(number) for task_id, number in found}


def count_by_task(connection: Connection, run_id: str) -> dict[str, int]:
    """Return how many trials each task has, whatever has become of them."""
    counted = select(trial.c.task_id, func.count()).where(trial.c.run_id == run_id).group_by(trial.c.task_id)
    return {task_id: int(number) for task_id, number in connection.execute(counted)}


_GRADE = (
    *("task_id", "state", "score", "passed", "result", "category", "cause"),
    *("confirmed", "score_confirmed", "evidence"),
)


def each_grade(connection: Connection, run_id: str) -> Iterator[Any]:
    """Yield what the final score is computed from, of every trial, in order."""
    statement = (
        select(*(trial.c[name] for name in _GRADE)).where(trial.c.run_id == run_id).order_by(trial.c.position)
    )
    with connection.execute(statement.execution_options(yield_per=AT_ONCE)) as found:
        yield from found


def scores(connection: Connection, run_id: str) -> dict[str, list[float | None]]:
    """Return what every trial counts, by task; None: it has no grade, and its agent was not the cause.

    Those that ended by the agent's doing have the worst score. Those that were not needed are left out.
    """
    rows = connection.execute(
        select(trial.c.task_id, trial.c.state, trial.c.category, trial.c.score)
        .where(trial.c.run_id == run_id, trial.c.state != TrialState.SKIPPED.value)
        .order_by(trial.c.position)
    ).all()
    worst = worst_score(row.score for row in rows if row.state == TrialState.FINISHED)
    found: dict[str, list[float | None]] = {}
    for row in rows:
        graded = row.score if row.state == TrialState.FINISHED else None
        score = worst if ended_by_agent(row.state, row.category) else graded
        found.setdefault(row.task_id, []).append(score)
    return found


def families(connection: Connection, run_id: str) -> dict[str, str]:
    """Return the family of each task of a run that has one."""
    rows = select(trial.c.task_id, trial.c.family).where(
        trial.c.run_id == run_id, trial.c.family.is_not(None)
    )
    return {row.task_id: row.family for row in connection.execute(rows)}


def attempts(connection: Connection, trial_id: int) -> Sequence[AttemptRow]:
    rows = select(attempt).where(attempt.c.trial_id == trial_id).order_by(attempt.c.number)
    return cast("Sequence[AttemptRow]", connection.execute(rows).all())


def errors(connection: Connection, run_id: str) -> Sequence[Any]:
    """Trials that stand in ERROR, that failed and wait to be tried again, or whose cause made them a 0."""
    waiting = and_(trial.c.state == TrialState.PENDING.value, trial.c.category.is_not(None))
    zeroed = and_(trial.c.state == TrialState.FINISHED.value, trial.c.cause.in_(COUNTED_AS_ZERO))
    return connection.execute(
        select(trial.c.task_id, trial.c.k, trial.c.state, trial.c.category, trial.c.cause, trial.c.message)
        .where(trial.c.run_id == run_id, or_(trial.c.state == TrialState.ERROR.value, waiting, zeroed))
        .order_by(trial.c.position)
    ).all()


# How often a trial failed the same way, over all passes of its run.


def passes_failed(connection: Connection, run_id: str) -> dict[tuple[str, int], int]:
    """(task id, k) → in how many passes of the run it failed as it fails now; only of those that do.

    A pass is a start, resume or retry; alike means the same category and cause.
    """
    rows = connection.execute(
        select(trial.c.task_id, trial.c.k, func.count(attempt.c.passage.distinct()).label("passes"))
        .join(attempt, attempt.c.trial_id == trial.c.id)
        .where(
            trial.c.run_id == run_id,
            attempt.c.outcome == Outcome.FAILED.value,
            attempt.c.category == trial.c.category,
            attempt.c.cause == trial.c.cause,
        )
        .group_by(trial.c.id, trial.c.task_id, trial.c.k)
    )
    return {(row.task_id, row.k): row.passes for row in rows}

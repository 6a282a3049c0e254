"""A run's trials and their attempts, read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, func, or_, select

from valkyrie.errors import UnknownError
from valkyrie.nouns import COUNTED_AS_ZERO, TrialState, ended_by_agent, worst_score
from valkyrie.store.schema import attempt, trial

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


_SORTS = {
    "position": trial.c.position,
    "task_id": trial.c.task_id,
    "started_at": trial.c.started_at,
    "duration": trial.c.finished_at - trial.c.started_at,
    "status": trial.c.state,
}


def trials(connection: Connection, run_id: str, query: TrialQuery) -> tuple[Sequence[Row[Any]], int]:
    """Trials that match, and how many match in all; behind a position, how many there are here."""
    wanted = [trial.c.run_id == run_id]
    if query.states:
        wanted.append(trial.c.state.in_(list(query.states)))
    if query.search:
        wanted.append(trial.c.task_id.contains(query.search, autoescape=True))
    columns = [column for column in trial.c if column.name != "result"]
    if query.after is not None:
        behind = select(*columns).where(*wanted, trial.c.position > min(query.after, LARGEST))
        found = connection.execute(behind.order_by(trial.c.position).limit(min(query.limit, LARGEST))).all()
        return found, len(found)
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
    return rows, total


def trials_since(connection: Connection, run_id: str, version: int) -> Sequence[Row[Any]]:
    """Trials that changed after the run had this version, oldest change first; without results."""
    return connection.execute(
        select(*(column for column in trial.c if column.name != "result"))
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


def one_trial(connection: Connection, run_id: str, task_id: str, k: int) -> Row[Any]:
    """One trial's row, result included."""
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
    return row


def each_result(connection: Connection, run_id: str) -> Iterator[Row[Any]]:
    """Every trial of a run with its result, in order, without holding them all."""
    statement = select(trial).where(trial.c.run_id == run_id).order_by(trial.c.position)
    with connection.execute(statement.execution_options(yield_per=AT_ONCE)) as found:
        yield from found


def results_of_tasks(connection: Connection, run_id: str, task_ids: Sequence[str]) -> Sequence[Row[Any]]:
    """All trials of these tasks with their results, in order."""
    found: list[Row[Any]] = []
    for start in range(0, len(task_ids), AT_ONCE):
        some = task_ids[start : start + AT_ONCE]
        statement = select(trial).where(trial.c.run_id == run_id, trial.c.task_id.in_(some))
        found += connection.execute(statement.order_by(trial.c.position))
    return found


def ended_by_task(connection: Connection, run_id: str) -> dict[str, int]:
    """How many trials of each task have a grade or an error."""
    ended = [TrialState.FINISHED.value, TrialState.ERROR.value]
    found = connection.execute(
        select(trial.c.task_id, func.count())
        .where(trial.c.run_id == run_id, trial.c.state.in_(ended))
        .group_by(trial.c.task_id)
    )
    return {task_id: int(number) for task_id, number in found}


def count_by_task(connection: Connection, run_id: str) -> dict[str, int]:
    """How many trials each task has, whatever has become of them."""
    counted = select(trial.c.task_id, func.count()).where(trial.c.run_id == run_id).group_by(trial.c.task_id)
    return {task_id: int(number) for task_id, number in connection.execute(counted)}


_GRADE = (
    *("task_id", "state", "score", "passed", "result", "category", "cause"),
    *("confirmed", "score_confirmed", "evidence"),
)


def each_grade(connection: Connection, run_id: str) -> Iterator[Any]:
    """What the final score is computed from, of every trial, in order."""
    statement = (
        select(*(trial.c[name] for name in _GRADE)).where(trial.c.run_id == run_id).order_by(trial.c.position)
    )
    with connection.execute(statement.execution_options(yield_per=AT_ONCE)) as found:
        yield from found


def scores(connection: Connection, run_id: str) -> dict[str, list[float | None]]:
    """What every trial counts, by task; None: it has no grade, and its agent was not the cause.

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


def attempts(connection: Connection, trial_id: int) -> Sequence[Row[Any]]:
    """Every attempt of a trial, oldest first."""
    return connection.execute(
        select(attempt).where(attempt.c.trial_id == trial_id).order_by(attempt.c.number)
    ).all()


def errors(connection: Connection, run_id: str) -> Sequence[Any]:
    """Trials that stand in ERROR, that failed and wait to be tried again, or whose cause made them a 0."""
    waiting = and_(trial.c.state == TrialState.PENDING.value, trial.c.category.is_not(None))
    zeroed = and_(trial.c.state == TrialState.FINISHED.value, trial.c.cause.in_(COUNTED_AS_ZERO))
    return connection.execute(
        select(trial.c.task_id, trial.c.k, trial.c.state, trial.c.category, trial.c.cause, trial.c.message)
        .where(trial.c.run_id == run_id, or_(trial.c.state == TrialState.ERROR.value, waiting, zeroed))
        .order_by(trial.c.position)
    ).all()

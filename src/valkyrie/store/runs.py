"""Runs and trials as rows: made, read, listed, stopped, reset, scored, forgotten. No SQL anywhere else."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, asc, delete, desc, func, insert, or_, select, update

from valkyrie.errors import UsageError, UserError
from valkyrie.nouns import Category, Json, Outcome, RunState, TrialState
from valkyrie.store.counters import count
from valkyrie.store.leases import ACTIVE_STATES, give_back
from valkyrie.store.schema import ERROR_COUNTERS, STATE_COUNTERS, attempt, executor, run, trial


@dataclass(frozen=True, slots=True)
class NewTrial:
    """One planned trial."""

    task_id: str
    k: int
    digest: str
    cpus: float | None
    memory_mb: int | None


def create(connection: Connection, values: Json, trials: Sequence[NewTrial]) -> None:
    """Store a run and all its trials, or nothing."""
    connection.execute(
        insert(run).values(state=RunState.IN_PROGRESS.value, n_pending=len(trials), version=1, **values)
    )
    connection.execute(
        insert(trial),
        [
            {
                "run_id": values["id"],
                "position": position,
                "task_id": one.task_id,
                "k": one.k,
                "digest": one.digest,
                "state": TrialState.PENDING.value,
                "cpus": one.cpus,
                "memory_mb": one.memory_mb,
            }
            for position, one in enumerate(trials)
        ],
    )


def resolve(connection: Connection, ref: str) -> str:
    """The id of the run that `ref` names: an id, or a unique prefix of one."""
    ref = ref.strip().lower()
    if not ref or any(character not in "0123456789abcdef-" for character in ref):
        raise UsageError(f"{ref!r} is not a run id. `valk run list` shows them.")
    found = connection.execute(
        select(run.c.id, run.c.agent, run.c.benchmark, run.c.created_at)
        .where(run.c.id >= ref, run.c.id < ref + "g")
        .order_by(desc(run.c.created_at))
        .limit(11)
    ).all()
    if not found:
        raise UsageError(f"No run {ref!r}. `valk run list` shows them.")
    if len(found) > 1:
        lines = "".join(f"\n  {row.id}  {row.agent} on {row.benchmark}" for row in found[:10])
        more = "\n  …" if len(found) > 10 else ""
        raise UsageError(f"{ref!r} is the beginning of several run ids; give more of it:{lines}{more}")
    return str(found[0].id)


def get(connection: Connection, run_id: str) -> Row[Any]:
    """One run's row."""
    row = connection.execute(select(run).where(run.c.id == run_id)).one_or_none()
    if row is None:
        raise UsageError(f"No run {run_id!r}. `valk run list` shows them.")
    return row


def known_ids(connection: Connection) -> set[str]:
    """Ids of all runs there are."""
    return set(connection.execute(select(run.c.id)).scalars())


def version(connection: Connection, run_id: str) -> int | None:
    """Grows with every change of the run; None when it is gone."""
    return connection.execute(select(run.c.version).where(run.c.id == run_id)).scalar()


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Which runs, in which order, from where on."""

    equal: dict[str, str]
    newest_first: bool = True
    limit: int = 50
    cursor: str | None = None


def page(connection: Connection, query: RunQuery) -> tuple[Sequence[Row[Any]], int, str | None]:
    """Runs that match (keyset pages), how many match in all, and the next cursor."""
    wanted = [run.c[name] == value for name, value in query.equal.items()]
    total = connection.execute(select(func.count()).select_from(run).where(*wanted)).scalar() or 0
    direction = desc if query.newest_first else asc
    statement = select(run).where(*wanted).order_by(direction(run.c.created_at), direction(run.c.id))
    if query.cursor:
        statement = statement.where(_after(query))
    rows = connection.execute(statement.limit(query.limit + 1)).all()
    if len(rows) <= query.limit:
        return rows, total, None
    last = rows[query.limit - 1]
    return (
        rows[: query.limit],
        total,
        base64.urlsafe_b64encode(json.dumps([last.created_at, last.id]).encode()).decode(),
    )


def _after(query: RunQuery) -> Any:
    try:
        at, run_id = json.loads(base64.urlsafe_b64decode(query.cursor or ""))
        at, run_id = float(at), str(run_id)
    except ValueError as error:
        raise UsageError(f"{query.cursor!r} is not a cursor this list gave.") from error
    if query.newest_first:
        return or_(run.c.created_at < at, and_(run.c.created_at == at, run.c.id < run_id))
    return or_(run.c.created_at > at, and_(run.c.created_at == at, run.c.id > run_id))


@dataclass(frozen=True, slots=True)
class TrialQuery:
    """Which trials of a run, in which order."""

    states: Sequence[str] = ()
    search: str | None = None
    sort: str = "position"
    descending: bool = False
    limit: int = 50
    offset: int = 0


_SORTS = {
    "position": trial.c.position,
    "task_id": trial.c.task_id,
    "started_at": trial.c.started_at,
    "duration": trial.c.finished_at - trial.c.started_at,
    "status": trial.c.state,
}


def trials(connection: Connection, run_id: str, query: TrialQuery) -> tuple[Sequence[Row[Any]], int]:
    """Trials that match, and how many match in all."""
    wanted = [trial.c.run_id == run_id]
    if query.states:
        wanted.append(trial.c.state.in_(list(query.states)))
    if query.search:
        wanted.append(trial.c.task_id.contains(query.search, autoescape=True))
    total = connection.execute(select(func.count()).select_from(trial).where(*wanted)).scalar() or 0
    direction = desc if query.descending else asc
    rows = connection.execute(
        select(*(column for column in trial.c if column.name != "result"))
        .where(*wanted)
        .order_by(direction(_SORTS[query.sort]), trial.c.position)
        .limit(query.limit)
        .offset(query.offset)
    ).all()
    return rows, total


def one_trial(connection: Connection, run_id: str, task_id: str, k: int) -> Row[Any]:
    """One trial's row, result included."""
    row = connection.execute(
        select(trial).where(trial.c.run_id == run_id, trial.c.task_id == task_id, trial.c.k == k)
    ).one_or_none()
    if row is None:
        raise UsageError(
            f"Run {run_id[:8]} has no trial {k} of task {task_id!r}. "
            f"`valk run tasks {run_id[:8]}` lists them."
        )
    return row


def each_result(connection: Connection, run_id: str) -> Iterator[Row[Any]]:
    """Every trial of a run with its result, in order, without holding them all."""
    statement = select(trial).where(trial.c.run_id == run_id).order_by(trial.c.position)
    yield from connection.execution_options(yield_per=500).execute(statement)


def each_grade(connection: Connection, run_id: str) -> Iterator[Any]:
    """What the final score is computed from, of every trial, in order."""
    statement = (
        select(trial.c.task_id, trial.c.state, trial.c.score, trial.c.passed, trial.c.result)
        .where(trial.c.run_id == run_id)
        .order_by(trial.c.position)
    )
    yield from connection.execution_options(yield_per=500).execute(statement)


def scores(connection: Connection, run_id: str) -> Sequence[Any]:
    """(task id, score) of every graded trial."""
    return connection.execute(
        select(trial.c.task_id, trial.c.score).where(
            trial.c.run_id == run_id, trial.c.state == TrialState.FINISHED.value
        )
    ).all()


def attempts(connection: Connection, trial_id: int) -> Sequence[Row[Any]]:
    """Every attempt of a trial, oldest first."""
    return connection.execute(
        select(attempt).where(attempt.c.trial_id == trial_id).order_by(attempt.c.number)
    ).all()


def errors(connection: Connection, run_id: str) -> Sequence[Any]:
    """Trials that stand in ERROR, and those that failed and wait to be tried again."""
    waiting = and_(trial.c.state == TrialState.PENDING.value, trial.c.category.is_not(None))
    return connection.execute(
        select(trial.c.task_id, trial.c.k, trial.c.state, trial.c.category, trial.c.cause, trial.c.message)
        .where(trial.c.run_id == run_id, or_(trial.c.state == TrialState.ERROR.value, waiting))
        .order_by(trial.c.position)
    ).all()


def _of_tasks(run_id: str, states: Sequence[str], task_ids: Sequence[str] | None) -> Select[Any]:
    statement = select(
        trial.c.id, trial.c.run_id, trial.c.task_id, trial.c.state, trial.c.attempts, trial.c.category
    ).where(trial.c.run_id == run_id, trial.c.state.in_(states))
    return statement.where(trial.c.task_id.in_(list(task_ids))) if task_ids is not None else statement


def check_tasks(connection: Connection, run_id: str, task_ids: Sequence[str]) -> None:
    """Refuse ids the run has no trial of."""
    known = set(
        connection.execute(
            select(trial.c.task_id).where(trial.c.run_id == run_id, trial.c.task_id.in_(list(task_ids)))
        ).scalars()
    )
    unknown = [task_id for task_id in task_ids if task_id not in known]
    if unknown:
        raise UsageError(f"Run {run_id[:8]} has no task {', '.join(map(repr, unknown[:5]))}.")


def stop(
    connection: Connection, run_id: str, now: float, *, force: bool, task_ids: Sequence[str] | None
) -> None:
    """Pending trials become STOPPED, with `force` active ones too; the run follows when nothing is left."""
    row = get(connection, run_id)
    if RunState(row.state).terminal:
        raise UserError(f"Run {run_id[:8]} is {row.state} already; there is nothing to stop.")
    states = [TrialState.PENDING.value, *(ACTIVE_STATES if force else [])]
    held = connection.execute(_of_tasks(run_id, states, task_ids)).all()
    if held:
        give_back(connection, held, now, Outcome.STOPPED, TrialState.STOPPED)
    if task_ids is None:
        connection.execute(
            update(run)
            .where(run.c.id == run_id)
            .values(state=RunState.STOPPING.value, version=run.c.version + 1, note=None)
        )


def reopen(
    connection: Connection,
    run_id: str,
    *,
    errors_too: bool,
    category: str | None = None,
    task_ids: Sequence[str] | None = None,
    concurrency: int | None = None,
    from_scratch: bool = False,
) -> int:
    """STOPPED trials (and ERROR ones) become PENDING; how many. The run is open again.

    What their grading saved is kept, unless they are to begin `from_scratch`.
    """
    fresh = {"saved": None} if from_scratch else {}
    states = [TrialState.STOPPED.value, *([TrialState.ERROR.value] if errors_too else [])]
    rows = [
        row
        for row in connection.execute(_of_tasks(run_id, states, task_ids)).all()
        if category is None or row.category == category
    ]
    deltas: dict[str, float] = defaultdict(float)
    for row in rows:
        deltas[STATE_COUNTERS[TrialState(row.state)]] -= 1
        deltas["n_pending"] += 1
        if row.state == TrialState.ERROR and row.category:
            deltas[ERROR_COUNTERS[Category(row.category)]] -= 1
    for start in range(0, len(rows), 500):
        connection.execute(
            update(trial)
            .where(trial.c.id.in_([row.id for row in rows[start : start + 500]]))
            .values(
                state=TrialState.PENDING.value,
                failures=0,
                not_before=None,
                category=None,
                cause=None,
                message=None,
                finished_at=None,
                epoch=trial.c.epoch + 1,
                **fresh,
            )
        )
    count(connection, {run_id: deltas})
    values: Json = {"state": RunState.IN_PROGRESS.value, "finished_at": None, "error": None, "note": None}
    if concurrency:
        values["concurrency"] = concurrency
    connection.execute(update(run).where(run.c.id == run_id).values(**values))
    return len(rows)


def set_values(connection: Connection, run_id: str, **values: Any) -> None:
    """Change a run's own columns."""
    connection.execute(update(run).where(run.c.id == run_id).values(version=run.c.version + 1, **values))


def conclude(
    connection: Connection,
    run_id: str,
    now: float,
    *,
    final: Json | None,
    graded: float | None,
    error: str | None,
) -> bool:
    """The last trial ended: write the score and the run's last state; whether the run has ended.

    Nothing happens if it was reopened, or deleted.
    """
    row = connection.execute(select(run).where(run.c.id == run_id)).one_or_none()
    if row is None or RunState(row.state).terminal:
        return True
    if row.n_pending + row.n_building + row.n_in_progress + row.n_evaluating:
        return False
    state = RunState.STOPPED if row.n_stopped else RunState.FINISHED
    if error:
        state = RunState.ERROR
    set_values(
        connection,
        run_id,
        state=state.value,
        finished_at=now,
        error=error,
        note=None,
        final_evaluation=final,
        final_score=final["final_score"] if final else None,
        score_graded=graded,
    )
    return True


def forget(connection: Connection, run_id: str) -> None:
    """Delete an ended run's rows."""
    row = get(connection, run_id)
    if not RunState(row.state).terminal:
        raise UserError(
            f"Run {run_id[:8]} is {row.state}. `valk run stop {run_id[:8]} --force` ends it first."
        )
    connection.execute(delete(run).where(run.c.id == run_id))


def any_ready(connection: Connection) -> bool:
    """Whether a run could go on now without a person (a run that waits says so in its note)."""
    return bool(
        connection.execute(
            select(run.c.id)
            .where(
                run.c.state.in_([RunState.IN_PROGRESS.value, RunState.STOPPING.value]), run.c.note.is_(None)
            )
            .limit(1)
        ).scalar()
    )


def register_executor(connection: Connection, values: Json) -> None:
    """An executor begins."""
    connection.execute(insert(executor).values(**values))


def heartbeat(connection: Connection, executor_id: str, now: float, lease_s: float) -> None:
    """An executor lives."""
    connection.execute(
        update(executor)
        .where(executor.c.id == executor_id)
        .values(heartbeat_at=now, expires_at=now + lease_s)
    )


def end_executor(connection: Connection, executor_id: str, now: float) -> None:
    """An executor ends in order."""
    connection.execute(
        update(executor).where(executor.c.id == executor_id).values(ended_at=now, expires_at=now)
    )

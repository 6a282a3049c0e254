"""Runs as rows: made, stopped, reset, scored, forgotten; and in one place all one can ask of runs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from valkyrie.domain import Category, Json, Outcome, RunState, TrialState, ended_by_agent
from valkyrie.errors import UnknownError, UserError
from valkyrie.store import executors
from valkyrie.store.counters import announce, count, lock_runs
from valkyrie.store.executors import ACTIVE_STATES, AT_ONCE, give_back
from valkyrie.store.leases import OPEN_RUNS
from valkyrie.store.run_queries import RunQuery as RunQuery
from valkyrie.store.run_queries import page as page
from valkyrie.store.run_queries import queue as queue
from valkyrie.store.run_queries import resolve as resolve
from valkyrie.store.schema import ERROR_COUNTERS, STATE_COUNTERS, ForEach, regrade, run, trial
from valkyrie.store.trials import TrialQuery as TrialQuery
from valkyrie.store.trials import attempts as attempts
from valkyrie.store.trials import count_by_task as count_by_task
from valkyrie.store.trials import each_grade as each_grade
from valkyrie.store.trials import each_result as each_result
from valkyrie.store.trials import ended_by_task as ended_by_task
from valkyrie.store.trials import errors as errors
from valkyrie.store.trials import families as families
from valkyrie.store.trials import one_trial as one_trial
from valkyrie.store.trials import progress_since as progress_since
from valkyrie.store.trials import results_behind as results_behind
from valkyrie.store.trials import results_of_tasks as results_of_tasks
from valkyrie.store.trials import scores as scores
from valkyrie.store.trials import trials as trials
from valkyrie.store.trials import trials_since as trials_since
from valkyrie.text import did_you_mean


@dataclass(frozen=True, slots=True)
class NewTrial:
    """One planned trial."""

    task_id: str
    k: int
    digest: str
    cpus: float | None
    memory_mb: int | None
    family: str | None = None


_PLAN = ForEach.insert(
    trial,
    *(
        trial.c[name]
        for name in (
            *("run_id", "position", "task_id", "k", "digest", "family"),
            *("state", "cpus", "memory_mb", "version"),
        )
    ),
)


def create(connection: Connection, values: Json, planned: Sequence[NewTrial]) -> None:
    """Store a run and all its trials, or nothing."""
    connection.execute(
        insert(run).values(state=RunState.IN_PROGRESS.value, n_pending=len(planned), version=1, **values)
    )
    _insert(connection, values["id"], planned, 0, 0)
    announce(connection)


def _insert(connection: Connection, run_id: str, new: Sequence[NewTrial], first: int, version: int) -> None:
    rows = [
        {
            "run_id": run_id,
            "position": position,
            "task_id": one.task_id,
            "k": one.k,
            "digest": one.digest,
            "family": one.family,
            "state": TrialState.PENDING.value,
            "cpus": one.cpus,
            "memory_mb": one.memory_mb,
            "version": version,
        }
        for position, one in enumerate(new, first)
    ]
    # In parts: a database does not wait long for someone who is busy in the middle of a transaction.
    for start in range(0, len(rows), AT_ONCE):
        _PLAN.execute(connection, rows[start : start + AT_ONCE])


def planned(connection: Connection, run_id: str) -> dict[tuple[str, int], str]:
    """(task id, k) → digest of every trial a run has."""
    rows = select(trial.c.task_id, trial.c.k, trial.c.digest).where(trial.c.run_id == run_id)
    return {(row.task_id, row.k): row.digest for row in connection.execute(rows)}


def extend(connection: Connection, run_id: str, more: Sequence[NewTrial]) -> int:
    """Add trials the run does not have yet; how many. What it has stays as it is."""
    lock_runs(connection, [run_id])
    known = planned(connection, run_id)
    new = [one for one in more if (one.task_id, one.k) not in known]
    if not new:
        return 0
    last = connection.execute(select(func.max(trial.c.position)).where(trial.c.run_id == run_id)).scalar()
    version = count(connection, {run_id: {"n_pending": len(new)}}).get(run_id, 0)
    _insert(connection, run_id, new, 0 if last is None else last + 1, version)
    return len(new)


def get(connection: Connection, run_id: str) -> Row[Any]:
    """One run's row."""
    row = connection.execute(select(run).where(run.c.id == run_id)).one_or_none()
    if row is None:
        raise UnknownError(f"No run {run_id!r}. `valk run list` shows them.")
    return row


def locked(connection: Connection, run_id: str) -> Row[Any]:
    """One run's row, nobody else's to change until this transaction ends."""
    lock_runs(connection, [run_id])
    return get(connection, run_id)


def known_ids(connection: Connection) -> set[str]:
    """Ids of all runs there are."""
    return set(connection.execute(select(run.c.id)).scalars())


def version(connection: Connection, run_id: str) -> int | None:
    """Grows with every change of the run; None when it is gone."""
    return connection.execute(select(run.c.version).where(run.c.id == run_id)).scalar()


def _of_tasks(
    connection: Connection, run_id: str, states: Sequence[str], task_ids: Sequence[str] | None
) -> list[Any]:
    """The run's trials in these states; of these tasks only, if any are named."""
    found = connection.execute(
        select(trial.c.id, trial.c.run_id, trial.c.task_id, trial.c.state, trial.c.category).where(
            trial.c.run_id == run_id, trial.c.state.in_(states)
        )
    )
    wanted = None if task_ids is None else set(task_ids)
    return [row for row in found if wanted is None or row.task_id in wanted]


def check_tasks(connection: Connection, run_id: str, task_ids: Collection[str]) -> None:
    """Refuse ids the run has no trial of."""
    known = set(connection.execute(select(trial.c.task_id).where(trial.c.run_id == run_id)).scalars())
    unknown = [task_id for task_id in task_ids if task_id not in known]
    if unknown:
        near = did_you_mean(unknown[0], known) if len(unknown) == 1 else ""
        hint = near or f" `valk run tasks {run_id[:8]}` lists them."
        raise UnknownError(f"Run {run_id[:8]} has no task {', '.join(map(repr, unknown[:5]))}.{hint}")


def stop(
    connection: Connection, run_id: str, now: float, *, force: bool, task_ids: Sequence[str] | None
) -> None:
    """Pending trials become STOPPED, with `force` active ones too; the run follows when nothing is left."""
    row = locked(connection, run_id)
    if RunState(row.state).terminal:
        raise UserError(f"Run {run_id[:8]} is {row.state} already; there is nothing to stop.")
    states = [TrialState.PENDING.value, *(ACTIVE_STATES if force else [])]
    held = _of_tasks(connection, run_id, states, task_ids)
    give_back(connection, held, now, Outcome.STOPPED, TrialState.STOPPED)
    if task_ids is None:
        free = {} if row.bound is None or executors.lives_at(connection, row.bound) else {"bound": None}
        set_values(connection, run_id, state=RunState.STOPPING.value, note=None, **free)


def reopen(
    connection: Connection,
    run_id: str,
    *,
    errors_too: bool,
    category: str | None = None,
    task_ids: Sequence[str] | None = None,
    concurrency: int | None = None,
    from_scratch: bool = False,
    bound: str | None = None,
) -> int:
    """STOPPED trials (and ERROR ones) become PENDING; how many. The run is open again, for executors that
    say `bound`.

    An end by the agent's doing counts, and is tried again only for who names its category or its task: a
    second try would be another measurement than the one planned.

    What their grading saved is kept, unless they are to begin `from_scratch`. While kept work is graded
    again that goes on, and nothing else is reopened.
    """
    before = locked(connection, run_id)
    grading = before.grading
    fresh = {"saved": None} if from_scratch else {}
    states = [TrialState.STOPPED.value, *([TrialState.ERROR.value] if errors_too else [])]
    rows = [
        row
        for row in _of_tasks(connection, run_id, states, [] if regrading(connection, run_id) else task_ids)
        if row.category == category
        or (category is None and (task_ids is not None or not ended_by_agent(row.state, row.category)))
    ]
    if rows and grading:
        raise UserError(
            f"Run {run_id[:8]} shows grading {grading}; agents run again on grading 0 only: "
            f"`valk run regrade {run_id[:8]} --use 0` first."
        )
    deltas: dict[str, float] = defaultdict(float)
    for row in rows:
        deltas[STATE_COUNTERS[TrialState(row.state)]] -= 1
        deltas["n_pending"] += 1
        if row.state == TrialState.ERROR and row.category:
            deltas[ERROR_COUNTERS[Category(row.category)]] -= 1
    version = count(connection, {run_id: deltas}).get(run_id, 0)
    for start in range(0, len(rows), AT_ONCE):
        connection.execute(
            update(trial)
            .where(trial.c.id.in_([row.id for row in rows[start : start + AT_ONCE]]))
            .values(
                state=TrialState.PENDING.value,
                failures=0,
                not_before=None,
                category=None,
                cause=None,
                message=None,
                evidence=None,
                finished_at=None,
                epoch=trial.c.epoch + 1,
                version=version,
                **fresh,
            )
        )
    values: Json = {
        "state": RunState.IN_PROGRESS.value,
        "finished_at": None,
        "error": None,
        "note": None,
        "bound": bound,
        "passes": run.c.passes + 1,
        "stop_reason": None,
        "exit_codes": None,
        **_interrupted(connection, before),
        "errors_before": _errors_before(before, int(deltas[STATE_COUNTERS[TrialState.ERROR]])),
    }
    if concurrency:
        values["concurrency"] = concurrency
    connection.execute(update(run).where(run.c.id == run_id).values(**values))
    return len(rows)


def _interrupted(connection: Connection, row: Any) -> Json:
    """Return the columns of a run whose executor is gone: it worked until its last trial began or ended."""
    if row.working_since is None or executors.living(connection):
        return {}
    last = connection.execute(select(func.max(trial.c.finished_at)).where(trial.c.run_id == row.id)).scalar()
    return worked(row, max(row.leased_at or 0.0, last or 0.0))


def _errors_before(row: Any, reopened: int) -> int:
    """Return how many errors do not count when a run that goes on is looked at to stop by itself.

    Those of one that was stopped do not; one that lost its executor is where it was.
    """
    left = int(row.n_error) + reopened
    return left if row.state != RunState.IN_PROGRESS else min(left, int(row.errors_before))


def regrading(connection: Connection, run_id: str) -> bool:
    """Return whether kept work of the run is being graded again."""
    found = select(regrade.c.number).where(
        regrade.c.run_id == run_id, regrade.c.number > 0, regrade.c.finished_at.is_(None)
    )
    return connection.execute(found.limit(1)).scalar() is not None


def set_values(connection: Connection, run_id: str, **values: Any) -> None:
    """Change a run's own columns."""
    connection.execute(update(run).where(run.c.id == run_id).values(version=run.c.version + 1, **values))
    announce(connection)


def conclude(
    connection: Connection,
    run_id: str,
    now: float,
    *,
    final: Json | None,
    graded: float | None,
    error: str | None,
    confirmed: float | None = None,
) -> bool:
    """The last trial ended: write the score and the run's last state; whether the run has ended.

    Nothing happens if it was reopened, or deleted.
    """
    lock_runs(connection, [run_id])
    row = connection.execute(select(run).where(run.c.id == run_id)).one_or_none()
    if row is None or RunState(row.state).terminal:
        return True
    if row.n_pending + row.n_building + row.n_in_progress + row.n_evaluating:
        return False
    state = RunState.STOPPED if row.n_stopped else RunState.FINISHED
    if error:
        state = RunState.ERROR
    if final and not row.n_finished + row.e_agent:
        final = {**final, "final_score": None, "properties": {}, "score_low": None, "score_high": None}
        graded = confirmed = None
    set_values(
        connection,
        run_id,
        state=state.value,
        finished_at=now,
        error=error,
        note=cost_note(row) or row.stop_reason,
        endings=row.endings + 1,
        exit_codes=exit_codes(connection, run_id) or None,
        **worked(row, now),
        final_evaluation=final,
        final_score=_finite(final["final_score"]) if final else None,
        score_graded=_finite(graded),
        score_confirmed=_finite(confirmed),
    )
    return True


def worked(row: Any, until: float) -> Json:
    """Return the columns of a run that does not work any more: how long it did, in all its passes."""
    since = row.working_since
    return {"working_since": None, "worked_s": row.worked_s + (max(0.0, until - since) if since else 0.0)}


def exit_codes(connection: Connection, run_id: str) -> dict[str, int]:
    """Return how many agents of a run ended by themselves with each exit code but 0."""
    codes = (
        select(trial.c.exit_code, func.count().label("times"))
        .where(
            trial.c.run_id == run_id,
            trial.c.state.in_([TrialState.FINISHED.value, TrialState.ERROR.value]),
            trial.c.exit_code != 0,
            trial.c.exit_reason.is_(None),
        )
        .group_by(trial.c.exit_code)
        .order_by(trial.c.exit_code)
    )
    return {str(row.exit_code): int(row.times) for row in connection.execute(codes)}


def _finite(score: float | None) -> float | None:
    """Return what is no number is no score."""
    return score if score is not None and math.isfinite(score) else None


def cost_note(row: Any) -> str | None:
    """Return what is to be said of a run whose agents reported more than it may cost."""
    if row.max_cost is None or row.cost_sum < row.max_cost or not row.n_stopped + row.n_pending:
        return None
    return (
        f"stopped: agents reported ${row.cost_sum:.2f} of --max-cost ${row.max_cost:.2f}; "
        f"`valk run update {row.id[:8]} --max-cost N`, then `valk run resume {row.id[:8]}` goes on"
    )


def forget(connection: Connection, run_id: str) -> None:
    """Delete an ended run's rows."""
    row = locked(connection, run_id)
    if not RunState(row.state).terminal:
        raise UserError(
            f"Run {run_id[:8]} is {row.state}. `valk run stop {run_id[:8]} --force` ends it first."
        )
    connection.execute(delete(run).where(run.c.id == run_id))
    announce(connection)


def any_ready(connection: Connection) -> bool:
    """Return whether a run could go on now without a person (a run that waits says so in its note)."""
    return bool(
        connection.execute(
            select(run.c.id)
            .where(run.c.state.in_(OPEN_RUNS), run.c.note.is_(None), run.c.bound.is_(None))
            .limit(1)
        ).scalar()
    )

"""Who works on which trial: leases taken, given back, and recovered from the dead."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, exists, func, or_, select, update

from valkyrie.domain import ABORT_SHARE, Outcome, RunState, TrialState
from valkyrie.store.counters import count, lock_jobs
from valkyrie.store.executors import abandon as abandon
from valkyrie.store.executors import give_back as give_back
from valkyrie.store.executors import give_back_unknown as give_back_unknown
from valkyrie.store.executors import recover as recover
from valkyrie.store.executors import require_all
from valkyrie.store.executors import still_ours as still_ours
from valkyrie.store.fair_shares import Leased as Leased
from valkyrie.store.fair_shares import Room as Room
from valkyrie.store.fair_shares import Tick as Tick
from valkyrie.store.fair_shares import TickResult as TickResult
from valkyrie.store.fair_shares import choose, in_hand, left_in, load_of, pools_of
from valkyrie.store.schema import CLOCK, ForEach, api_key, attempt, executor, job, regrade, run, skew, trial
from valkyrie.store.trials import LARGEST

OPEN_RUNS = [RunState.IN_PROGRESS.value, RunState.STOPPING.value]


_OPEN_COLUMNS = (
    run.c.id,
    run.c.state,
    run.c.concurrency,
    run.c.n_pending,
    run.c.n_skipped,
    run.c.priority,
    run.c.created_at,
    run.c.leased_at,
    run.c.org_id,
    run.c.started_by,
    run.c.passes,
    run.c.max_cost,
    run.c.cost_sum,
    run.c.abort_after,
    run.c.errors_before,
    run.c.n_finished,
    run.c.n_error,
    run.c.e_infrastructure,
    (run.c.n_building + run.c.n_in_progress + run.c.n_evaluating).label("active"),
    (run.c.n_stopped + run.c.n_finished + run.c.n_error).label("ended"),
    run.c.job_id,
    job.c.concurrency.label("pool"),
    run.c.key_id,
    api_key.c.max_concurrency.label("key_limit"),
    job.c.ends_at,
    job.c.stop_rule.is_not(None).label("ruled"),
    run.c.benchmark,
    run.c.dataset,
    run.c.in_turn,
    exists()
    .where(regrade.c.run_id == run.c.id, regrade.c.number > 0, regrade.c.finished_at.is_(None))
    .label("regrading"),
)
_OPEN = (
    select(*_OPEN_COLUMNS)
    .select_from(
        run.outerjoin(job, job.c.id == run.c.job_id).outerjoin(api_key, api_key.c.id == run.c.key_id)
    )
    .where(
        run.c.state.in_(OPEN_RUNS),
        run.c.bound.is_not_distinct_from(bindparam("bound", type_=run.c.bound.type)),
    )
)


_LOCKED = (
    _OPEN.where(
        or_(
            run.c.id.in_(bindparam("runs", expanding=True)),
            run.c.job_id.in_(bindparam("jobs", expanding=True)),
            run.c.key_id.in_(bindparam("keys", expanding=True)),
        ),
        ~exists().where(executor.c.id == bindparam("executor"), executor.c.expires_at <= CLOCK),
    )
    .order_by(run.c.id)
    .with_for_update(key_share=True, of=run)
)
"""Of several executors one at a time counts what a run has in hand; none whose own lease has run out."""


_READY = (
    select(
        trial.c.id,
        trial.c.task_id,
        trial.c.k,
        trial.c.digest,
        trial.c.attempts,
        trial.c.failures,
        trial.c.epoch,
        trial.c.cpus,
        trial.c.memory_mb,
        trial.c.saved,
    )
    .where(
        trial.c.run_id == bindparam("run"),
        trial.c.state == TrialState.PENDING.value,
        or_(trial.c.not_before.is_(None), trial.c.not_before <= bindparam("now")),
        trial.c.position < bindparam("before"),
    )
    .order_by(trial.c.position)
    .limit(bindparam("most"))
)
_earlier = trial.alias("earlier")
_IN_TURN = _READY.where(
    ~exists().where(
        _earlier.c.run_id == trial.c.run_id,
        _earlier.c.task_id == trial.c.task_id,
        _earlier.c.k < trial.c.k,
        _earlier.c.state.not_in([state.value for state in TrialState if state.terminal]),
    )
)
"""The same where a task's trials follow one another: only those before which nothing is left to do."""


_FIRST_OPEN = select(func.min(trial.c.position)).where(
    trial.c.run_id == bindparam("run"),
    trial.c.state.in_([state.value for state in TrialState if not state.terminal]),
)


_NEXT_RETRY = select(func.min(trial.c.not_before)).where(
    trial.c.run_id == bindparam("run"),
    trial.c.state == TrialState.PENDING.value,
    trial.c.not_before > bindparam("now"),  # one that is due already waits for room, not for a time
)


_TAKE = ForEach(
    {
        "b_id": trial.c.id.type,
        "b_executor": trial.c.executor_id.type,
        "b_epoch": trial.c.epoch.type,
        "b_number": trial.c.attempts.type,
        "b_now": trial.c.started_at.type,
        "b_version": trial.c.version.type,
    },
    lambda given: (
        update(trial)
        .where(trial.c.id == given["b_id"], trial.c.state == TrialState.PENDING.value)
        .values(
            state=TrialState.BUILDING.value,
            executor_id=given["b_executor"],
            epoch=given["b_epoch"],
            attempts=given["b_number"],
            not_before=None,
            started_at=given["b_now"],
            finished_at=None,
            version=given["b_version"],
        )
    ),
)
_SERVED = (
    update(run)
    .where(run.c.id.in_(bindparam("b_runs", expanding=True)))
    .values(
        started_at=func.coalesce(run.c.started_at, bindparam("b_now")),
        working_since=func.coalesce(run.c.working_since, bindparam("b_now")),
        leased_at=bindparam("b_now"),
    )
)
_BEGIN = ForEach.insert(
    attempt,
    attempt.c.trial_id,
    attempt.c.number,
    attempt.c.executor_id,
    attempt.c.epoch,
    attempt.c.phase,
    attempt.c.started_at,
    attempt.c.passage,
    attempt.c.grading,
)


def lease(connection: Connection, tick: Tick) -> TickResult:
    """Take as many pending trials as runs' concurrency and the host's room allow, fairly among runs."""
    ready: dict[str, Sequence[Any]] = {}
    retries: list[str] = []
    skewed = skew(connection)
    due = tick.now + skewed
    runs = connection.execute(_OPEN, {"bound": tick.bound}).all()
    stopped: set[str] = set()
    wanted = _locked(connection, _with_siblings(runs, tick, due), tick)
    pools = pools_of(wanted, tick)
    before = _in_step(connection, wanted)
    for row in sorted(wanted, key=serving_order):
        if _is_over(row, due):
            if _is_hopeless(row):
                abort(connection, row)
            _stop_pending(connection, row.id, tick.now)
            stopped.add(row.id)
        elif (slots := min(_slots(row, tick), left_in(pools[row.id]))) > 0:
            query = _IN_TURN if row.in_turn else _READY
            asked = {"run": row.id, "now": due, "most": slots, "before": before.get(row.id, LARGEST)}
            found = connection.execute(query, asked).all()
            if found:
                ready[row.id] = found
            if len(found) < min(slots, row.n_pending):
                retries.append(row.id)
    # Runs that cannot begin anything more count, too: they are in their person's hand.
    now_open = {row.id: row for row in (*runs, *wanted)}
    leased = choose(ready, tick, pools, load_of(now_open.values(), tick))
    if leased:
        _take(connection, leased, tick, {row.id: row.passes for row in wanted})
    waits = [connection.execute(_NEXT_RETRY, {"run": run_id, "now": due}).scalar() for run_id in retries]
    wake_at = min((at - skewed for at in waits if at is not None), default=None)
    done = {row.id for row in runs if _is_done(row, tick, stopped)}
    ended = [row.id for row in runs if row.id in done and _may_conclude(row, runs, done)]
    ruled = sorted({row.job_id for row in runs if row.ruled})
    return TickResult(leased, ended, [row.id for row in sorted(runs, key=serving_order)], wake_at, ruled)


def _in_step(connection: Connection, rows: Sequence[Any]) -> dict[str, int]:
    """Return the position up to which runs may begin trials whose job stops when it is decided.

    Only tasks that ended on both sides decide anything. A run that is ahead of the slowest one of its job on
    the same tasks by all that runs at once waits for it: its trials may turn out not to be needed.
    """
    first: dict[tuple[str, str, str], int] = {}
    of_run = {row.id: (row.job_id, row.benchmark, row.dataset) for row in rows if row.ruled and row.pool}
    for row in rows:
        if row.id in of_run and row.state == RunState.IN_PROGRESS and not row.regrading:
            position = connection.execute(_FIRST_OPEN, {"run": row.id}).scalar()
            if position is not None:
                first[of_run[row.id]] = min(position, first.get(of_run[row.id], LARGEST))
    return {row.id: first[of_run[row.id]] + row.pool for row in rows if of_run.get(row.id) in first}


def serving_order(row: Any) -> tuple[int, float, str]:
    """Order runs by priority, and equals by age."""
    return row.priority, row.created_at, row.id


def _locked(connection: Connection, rows: Sequence[Any], tick: Tick) -> Sequence[Any]:
    """These runs as they are now, and stay until this transaction ends; on SQLite they do anyway."""
    if not rows or connection.dialect.name == "sqlite":
        return rows
    # With job and key: a run that was just added to them shares their pools as well.
    jobs = sorted({row.job_id for row in rows if row.job_id})
    lock_jobs(connection, jobs)
    names = {
        "runs": [row.id for row in rows],
        "jobs": jobs,
        "keys": sorted({row.key_id for row in rows if row.key_limit is not None}),
        "executor": tick.executor_id,
        "bound": tick.bound,
    }
    return connection.execute(_LOCKED, names).all()


def _with_siblings(rows: Sequence[Any], tick: Tick, now: float) -> list[Any]:
    """Runs of which something may begin or is to be stopped, and all that share a pool with them."""
    found = [row for row in rows if _is_over(row, now) or _slots(row, tick)]
    while True:
        ids = {row.id for row in found}
        jobs = {row.job_id for row in found if row.job_id}
        keys = {row.key_id for row in found if row.key_limit is not None}
        wider = [row for row in rows if row.id in ids or row.job_id in jobs or row.key_id in keys]
        if len(wider) == len(found):
            return wider
        found = wider


def _is_over(row: Any, now: float) -> bool:
    """Nothing more of it may begin: it was stopped, has cost what it may, its job's time is over, or all that
    ended so far failed.

    Grading kept work again runs no agent: none of these ends it.
    """
    spent = row.max_cost is not None and row.cost_sum >= row.max_cost
    late = row.ends_at is not None and row.ends_at <= now
    limited = (spent or late or _is_hopeless(row)) and not row.regrading
    return bool(row.n_pending) and (row.state == RunState.STOPPING or limited)


def _is_hopeless(row: Any) -> bool:
    """Return whether so many trials ended in errors, and none otherwise, that the others will, too.

    Failures of the infrastructure are none of these: they go away. Each error was tried again as often as
    that may help before it ended its trial.
    """
    if not row.abort_after or row.n_finished or row.e_infrastructure or row.state != RunState.IN_PROGRESS:
        return False
    planned = row.n_pending + row.active + row.ended
    return bool(row.n_error - row.errors_before >= max(row.abort_after, math.ceil(ABORT_SHARE * planned)))


def abort(connection: Connection, row: Any) -> None:
    """Let a run stop by itself: nothing of it begins any more, and why is kept with it.

    In the transaction that sees it: whoever is killed before or after it leaves the same.
    """
    alike = (
        select(trial.c.category, trial.c.cause, func.count().label("times"))
        .where(trial.c.run_id == row.id, trial.c.state == TrialState.ERROR.value)
        .group_by(trial.c.category, trial.c.cause)
        .order_by(func.count().desc(), trial.c.category, trial.c.cause)
    )
    kinds = connection.execute(alike).all()
    most = kinds[0]
    which = "all" if len(kinds) == 1 else f"{most.times} of {row.n_error}"
    reason = (
        f"stopped by itself: the first {row.n_error} trials that ended all failed, {which} with "
        f"{most.category}/{most.cause}; `valk run errors {row.id[:8]}` says why, "
        f"`valk run resume {row.id[:8]}` goes on"
    )
    connection.execute(
        update(run)
        .where(run.c.id == row.id)
        .values(state=RunState.STOPPING.value, stop_reason=reason, version=run.c.version + 1)
    )


def _slots(row: Any, tick: Tick) -> int:
    """Return how many more of its trials may begin here."""
    if row.state != RunState.IN_PROGRESS or not row.n_pending or row.id not in tick.ready:
        return 0
    return max(0, int(row.concurrency) - in_hand(row, tick))


def _is_done(row: Any, tick: Tick, stopped: Collection[str]) -> bool:
    return (row.n_pending == 0 or row.id in stopped) and in_hand(row, tick) == 0


def _may_conclude(row: Any, rows: Sequence[Any], done: Collection[str]) -> bool:
    """Return whether nothing can change its score any more.

    Where a job stops when it is decided, a run whose trials have all ended waits for that: the decision may
    set its last ones aside.
    """
    if not row.ruled or row.n_skipped or row.regrading or row.state != RunState.IN_PROGRESS:
        return True
    return all(other.id in done for other in rows if other.job_id == row.job_id)


def _stop_pending(connection: Connection, run_id: str, now: float) -> None:
    """Stop what came back to the queue after the run was stopped: a retry, a trial of a dead executor."""
    held = connection.execute(
        select(trial.c.id, trial.c.run_id, trial.c.state, trial.c.attempts).where(
            trial.c.run_id == run_id, trial.c.state == TrialState.PENDING.value
        )
    ).all()
    give_back(connection, held, now, Outcome.STOPPED, TrialState.STOPPED)


def _take(connection: Connection, leased: Sequence[Leased], tick: Tick, passes: Mapping[str, int]) -> None:
    per_run = Counter(one.run_id for one in leased)
    deltas = {run_id: {"n_pending": -n, "n_building": n} for run_id, n in per_run.items()}
    versions = count(connection, deltas)
    taken = _TAKE.execute(
        connection,
        [
            {
                "b_id": one.trial_id,
                "b_executor": tick.executor_id,
                "b_epoch": one.epoch,
                "b_number": one.number,
                "b_now": tick.now,
                "b_version": versions[one.run_id],
            }
            for one in leased
        ],
    )
    require_all(taken, len(leased))
    _BEGIN.execute(
        connection,
        [
            {
                "trial_id": one.trial_id,
                "number": one.number,
                "executor_id": tick.executor_id,
                "epoch": one.epoch,
                "phase": TrialState.BUILDING.value,
                "started_at": tick.now,
                "passage": passes[one.run_id],
                "grading": one.grading,
            }
            for one in leased
        ],
    )
    connection.execute(_SERVED, {"b_runs": list(per_run), "b_now": tick.now})


def data_version(connection: Connection) -> int:
    """A number that differs when another connection may have written in between.

    PostgreSQL has none: there it differs twice a second.
    """
    if connection.dialect.name != "sqlite":
        return int(time.monotonic() * 2)
    return int(connection.exec_driver_sql("PRAGMA data_version").scalar() or 0)


def state_of(connection: Connection, leased: Leased) -> TrialState | None:
    """The phase a leased trial is in; None when it is no longer ours."""
    found = connection.execute(
        select(trial.c.state).where(trial.c.id == leased.trial_id, trial.c.epoch == leased.epoch)
    ).scalar()
    return TrialState(found) if found else None

"""Whether a store's books are right: counters equal what they count, and every lease has a holder."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator

from sqlalchemy import Connection, Integer, and_, case, cast, func, or_, select, text

from valkyrie.nouns import Category, TrialState
from valkyrie.store import clock
from valkyrie.store.returning import ACTIVE_STATES
from valkyrie.store.schema import ERROR_COUNTERS, STATE_COUNTERS, attempt, executor, run, trial


def wrong_counters(connection: Connection) -> Iterator[str]:
    """Counters of runs that are not what is counted over their trials."""
    counted = _counted(connection)
    names = [*STATE_COUNTERS.values(), *ERROR_COUNTERS.values(), *_SUMS, "n_costed", "cost_sum"]
    for row in connection.execute(select(run.c.id, *(run.c[name] for name in names))):
        for name in names:
            kept, found = getattr(row, name), counted[row.id][name]
            if not math.isclose(kept, found, rel_tol=1e-9, abs_tol=1e-6):
                yield f"run {row.id}: {name} is {kept:g}, but {found:g} are there"


_SUMS = {
    "n_passed": func.sum(case((trial.c.passed, 1), else_=0)),
    "n_partial": func.sum(cast(and_(trial.c.score.is_not(None), trial.c.score.not_in([0.0, 1.0])), Integer)),
    "score_sum": func.sum(trial.c.score),
    "n_confirmed": func.sum(case((and_(trial.c.passed, trial.c.confirmed), 1), else_=0)),
    "confirmed_sum": func.sum(trial.c.score_confirmed),
    "n_verified": func.sum(case((or_(trial.c.score_confirmed.is_not(None), trial.c.score == 0), 1), else_=0)),
    "n_open": func.sum(case((trial.c.evidence["open_to_tampering"].as_boolean(), 1), else_=0)),
}


def _counted(connection: Connection) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    states = select(
        trial.c.run_id, trial.c.state, func.count().label("n"), func.sum(trial.c.cost).label("cost")
    )
    for row in connection.execute(states.group_by(trial.c.run_id, trial.c.state)):
        found[row.run_id][STATE_COUNTERS[TrialState(row.state)]] += row.n
        found[row.run_id]["cost_sum"] += row.cost or 0.0
    errors = select(trial.c.run_id, trial.c.category, func.count().label("n")).where(
        trial.c.state == TrialState.ERROR.value, trial.c.category.is_not(None)
    )
    for row in connection.execute(errors.group_by(trial.c.run_id, trial.c.category)):
        found[row.run_id][ERROR_COUNTERS[Category(row.category)]] += row.n
    sums = select(trial.c.run_id, *(value.label(name) for name, value in _SUMS.items())).where(
        trial.c.state == TrialState.FINISHED.value
    )
    for row in connection.execute(sums.group_by(trial.c.run_id)):
        for name in _SUMS:
            found[row.run_id][name] = float(getattr(row, name) or 0)
    costed = select(trial.c.run_id, func.count(attempt.c.cost).label("n")).join(
        attempt, attempt.c.trial_id == trial.c.id
    )
    for row in connection.execute(costed.group_by(trial.c.run_id)):
        found[row.run_id]["n_costed"] = row.n
    return found


def orphaned_leases(connection: Connection) -> Iterator[str]:
    """Trials that are worked on by nobody, and others that somebody holds."""
    active = trial.c.state.in_(ACTIVE_STATES)
    rows = connection.execute(
        select(trial.c.run_id, trial.c.task_id, trial.c.k, trial.c.state, trial.c.executor_id)
        .add_columns(executor.c.ended_at, executor.c.expires_at)
        .outerjoin(executor, executor.c.id == trial.c.executor_id)
        .where(or_(active, trial.c.executor_id.is_not(None)))
        .order_by(trial.c.run_id, trial.c.position)
    )
    now = clock.now(connection)
    for row in rows:
        what = f"trial {row.task_id}/{row.k} of run {row.run_id} is {row.state}"
        if row.executor_id is None:
            yield f"{what}, but no executor holds it"
        elif row.state not in ACTIVE_STATES:
            yield f"{what}, but executor {row.executor_id} holds it"
        elif row.expires_at is None or row.ended_at is not None or row.expires_at <= now:
            gone = f"executor {row.executor_id}, which is gone"
            yield f"{what} in the hands of {gone}; the next one to start takes it back"


def open_attempts(connection: Connection) -> Iterator[str]:
    """Trials that are worked on without an attempt, and attempts that never ended of others."""
    unended = (
        select(attempt.c.trial_id, func.count().label("n"))
        .where(attempt.c.outcome.is_(None))
        .group_by(attempt.c.trial_id)
        .subquery()
    )
    wanted = case((trial.c.state.in_(ACTIVE_STATES), 1), else_=0)
    rows = connection.execute(
        select(
            trial.c.run_id,
            trial.c.task_id,
            trial.c.k,
            trial.c.state,
            func.coalesce(unended.c.n, 0).label("n"),
        )
        .outerjoin(unended, unended.c.trial_id == trial.c.id)
        .where(func.coalesce(unended.c.n, 0) != wanted)
        .order_by(trial.c.run_id, trial.c.position)
    )
    for row in rows:
        what = f"trial {row.task_id}/{row.k} of run {row.run_id} is {row.state}"
        yield f"{what}, with {row.n} attempts under way"


def damaged_file(connection: Connection) -> Iterator[str]:
    """What SQLite itself finds wrong with the file."""
    if connection.dialect.name != "sqlite":
        return
    for statement in ("PRAGMA quick_check(20)", "PRAGMA foreign_key_check"):
        for row in connection.execute(text(statement)):
            if row[0] != "ok":
                yield f"the file is damaged: {' '.join(map(str, row))}"


Look = Callable[[Connection], Iterator[str]]
LOOKS: tuple[Look, ...] = (damaged_file, wrong_counters, orphaned_leases, open_attempts)

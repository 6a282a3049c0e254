"""Look after a database: where its schema stands, bring it up, check its counters and leases."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Integer, and_, case, cast, func, or_, select, text

from valkyrie.domain import Category, TrialState
from valkyrie.errors import UserError
from valkyrie.store import REVISION, executors, migrations, schema
from valkyrie.store.database import Database, at, parse
from valkyrie.store.executors import ACTIVE_STATES
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
    now = schema.now(connection)
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
    """Yield what SQLite itself finds wrong with the file."""
    if connection.dialect.name != "sqlite":
        return
    for statement in ("PRAGMA quick_check(20)", "PRAGMA foreign_key_check"):
        for row in connection.execute(text(statement)):
            if row[0] != "ok":
                yield f"the file is damaged: {' '.join(map(str, row))}"


Look = Callable[[Connection], Iterator[str]]
LOOKS: tuple[Look, ...] = (damaged_file, wrong_counters, orphaned_leases, open_attempts)


# Looking after a database: where its schema stands, bringing it up, and whether the books are right.

MOST_TOLD = 20
"""Of the same kind of problem."""


@dataclass(frozen=True, slots=True)
class SchemaStanding:
    """Where a database is, and where its schema stands."""

    kind: str
    place: str
    revision: str | None
    """None when nothing is there yet."""
    needed: str = REVISION

    @property
    def current(self) -> bool:
        return self.revision == self.needed

    @property
    def newer(self) -> bool:
        """A later program wrote it: this one cannot upgrade it."""
        return self.revision is not None and self.revision > self.needed


def standing(address: Path | str) -> SchemaStanding:
    """Return how it is, without changing it."""
    with _opened(address) as database:
        return _standing(database)


def steps(address: Path | str) -> list[str]:
    """Return what `upgrade` would do."""
    found = standing(address)
    if found.current:
        return []
    if found.revision is None:
        return [f"make schema {found.needed} in {found.place}"]
    migrations.check_known(found.revision, found.place)
    copy = [f"copy {found.place} to {found.place}.{found.revision}.….bak"] if found.kind == "sqlite" else []
    ahead = migrations.steps(found.revision)
    return copy + [f"migrate to schema {name}: {what.rstrip('.')}" for name, what in ahead]


def upgrade(address: Path | str) -> list[str]:
    """Make or migrate the schema; what was done."""
    with _opened(address) as database:
        return database.bring_up(automatic=False)


def problems(address: Path | str) -> list[str]:
    """Return what is wrong with a database; nothing, if all is well."""
    with _opened(address) as database:
        found = _standing(database)
        if found.revision is None:
            return [f"{found.place} has no schema yet; `valkyrie db upgrade` makes it"]
        migrations.check_known(found.revision, found.place)
        if not found.current:
            return [
                f"the schema is {found.revision}, this program needs {found.needed}: `valkyrie db upgrade`"
            ]
        with database.reading() as connection:
            told = [f"the schema differs: {one}" for one in migrations.differences(connection)]
            return told + [line for look in LOOKS for line in _some(look, connection)]


@dataclass(frozen=True, slots=True)
class Compacted:
    """What compacting a database gave back."""

    place: str
    before: int
    """Bytes that could be given back."""
    after: int

    @property
    def given_back(self) -> int:
        return max(0, self.before - self.after)


def compact(address: Path | str) -> Compacted:
    """Give the disk back what deleted runs left in the database; a file only while no executor is at work."""
    with _opened(address) as database:
        found = _standing(database)
        if not found.current:
            raise UserError(
                f"{found.place} has schema {found.revision or 'none'}, this program needs {found.needed}: "
                "`valkyrie db upgrade` first."
            )
        if found.kind == "sqlite":
            with database.reading() as connection:
                living = executors.living(connection)
            if living:
                raise UserError(
                    f"An executor is at work on {found.place} (pid {living[0].pid}), and would have to "
                    "wait for minutes. `valkyrie db compact` again when its runs have ended."
                )
        before = database.reclaimable()
        database.compact()
        return Compacted(found.place, before, database.reclaimable())


def _some(look: Callable[[Connection], Iterator[str]], connection: Connection) -> list[str]:
    found = list(look(connection))
    more = len(found) - MOST_TOLD
    return [*found[:MOST_TOLD], *([f"… and {more} more of these"] if more > 0 else [])]


def _standing(database: Database) -> SchemaStanding:
    return SchemaStanding(database.address.kind, database.address.place, database.revision())


@contextmanager
def _opened(address: Path | str) -> Iterator[Database]:
    """The database as it is, let go of at the end."""
    database = at(parse(address))
    try:
        with database.explained():
            yield database
    finally:
        database.close()

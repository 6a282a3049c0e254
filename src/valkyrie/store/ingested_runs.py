"""Runs that ended elsewhere, stored whole: the run, its trials, one attempt each, and all counters."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import IntegrityError

from valkyrie.domain import Category, Json, Outcome, RunState, TrialState
from valkyrie.store import runs
from valkyrie.store.counters import add_grade, announce
from valkyrie.store.schema import ERROR_COUNTERS, STATE_COUNTERS, TOKEN_COUNTERS, ForEach, attempt, run, trial
from valkyrie.store.trials import AT_ONCE

EXECUTOR = "ingest"
"""Whom attempts are noted as made by: none of our executors."""


class StoredMeanwhileError(Exception):
    """Another one stored a run of this id at the same time."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """What is stored of a run already."""

    arguments: Json
    label: str | None
    version: int


@dataclass(frozen=True, slots=True)
class EndedTrial:
    """One trial as it ended: graded, or with a category of error."""

    task_id: str
    k: int
    digest: str
    started_at: float
    finished_at: float
    phase: TrialState = TrialState.EVALUATING
    """The last one it reached."""
    score: float | None = None
    passed: bool | None = None
    category: Category | None = None
    """None: it was graded."""
    cause: str | None = None
    message: str | None = None
    result: Json | None = None
    timing: Mapping[str, float] = field(default_factory=dict)
    cost: float | None = None
    usage: Json | None = None
    confirmed: bool | None = None
    """The score was seen in a fresh sandbox; None: not known, as of most that ran elsewhere."""
    score_confirmed: float | None = None
    evidence: Json | None = None
    family: str | None = None
    """The family its task belongs to."""
    exit_code: int | None = None
    """The agent's."""
    exit_reason: str | None = None

    @property
    def state(self) -> TrialState:
        return TrialState.FINISHED if self.category is None else TrialState.ERROR


_FOUND = (
    *("score", "passed", "confirmed", "score_confirmed", "evidence", "cause", "message", "result"),
    *("cost", "usage", "exit_code", "exit_reason", "started_at", "finished_at"),
)
_TRIALS = ForEach.insert(
    trial,
    *("run_id", "position", "task_id", "k", "digest", "state", "attempts", "failures", "family", "version"),
    *(*_FOUND, "category", "timing"),
)
_ATTEMPTS = ForEach.insert(
    attempt,
    *("trial_id", "number", "executor_id", "epoch", "phase", "outcome", *_FOUND, "category", "timing"),
)


def known(connection: Connection, ids: Sequence[str], org_id: str) -> dict[str, StoredRun]:
    """Those of these runs that are stored, by id."""
    columns = (run.c.id, run.c.arguments, run.c.label, run.c.version)
    found: dict[str, StoredRun] = {}
    for start in range(0, len(ids), AT_ONCE):
        some = list(ids[start : start + AT_ONCE])
        rows = select(*columns).where(run.c.id.in_(some), run.c.org_id == org_id)
        found |= {
            row.id: StoredRun(row.arguments, row.label, row.version) for row in connection.execute(rows)
        }
    return found


def store_ended(
    connection: Connection, values: Json, trials: Sequence[EndedTrial], *, replace: bool = False
) -> None:
    """Store a run that has ended, or nothing; `replace`: over the one of this id, whose label it inherits.

    Its version goes on from there, so that whoever watched the one before sees this one as a change.
    """
    version = 1
    if replace and (before := known(connection, [values["id"]], values["org_id"]).get(values["id"])):
        version = before.version + 1
        values = {**values, "label": values["label"] or before.label}
        runs.forget(connection, values["id"])
    columns = {"version": version, "passes": 1, "endings": 1, **values, **_counted(trials)}
    try:
        connection.execute(insert(run).values(state=RunState.FINISHED.value, **columns))
    except IntegrityError as error:
        raise StoredMeanwhileError(values["id"]) from error
    rows = [_trial_row(values["id"], position, one, version) for position, one in enumerate(trials)]
    for start in range(0, len(rows), AT_ONCE):
        _TRIALS.execute(connection, rows[start : start + AT_ONCE])
    ids = {
        (row.task_id, row.k): row.id
        for row in connection.execute(
            select(trial.c.id, trial.c.task_id, trial.c.k).where(trial.c.run_id == values["id"])
        )
    }
    attempts = [_attempt_row(ids[one.task_id, one.k], one) for one in trials]
    for start in range(0, len(attempts), AT_ONCE):
        _ATTEMPTS.execute(connection, attempts[start : start + AT_ONCE])
    announce(connection)


def _counted(trials: Sequence[EndedTrial]) -> dict[str, float]:
    """The run's counters, as if each trial had been counted when it ended."""
    counters: dict[str, float] = defaultdict(float)
    for one in trials:
        for name, value in (("score", one.score), ("cost", one.cost)):
            if value is not None and not math.isfinite(value):
                raise ValueError(f"the {name} of {one.task_id} is {value}, not a finite number")
        counters[STATE_COUNTERS[one.state]] += 1
        if one.category is None:
            add_grade(counters, one, +1)
        else:
            counters[ERROR_COUNTERS[one.category]] += 1
        if one.cost is not None:
            counters["n_costed"] += 1
            counters["cost_sum"] += one.cost
        for name in TOKEN_COUNTERS:
            counters[name] += (one.usage or {}).get(name, 0)
    return dict(counters)


def _found(one: EndedTrial) -> Json:
    category = one.category.value if one.category else None
    return {name: getattr(one, name) for name in _FOUND} | {"category": category, "timing": dict(one.timing)}


def _trial_row(run_id: str, position: int, one: EndedTrial, version: int) -> Json:
    return {
        "run_id": run_id,
        "position": position,
        "task_id": one.task_id,
        "k": one.k,
        "digest": one.digest,
        "family": one.family,
        "state": one.state.value,
        "attempts": 1,
        "failures": 0 if one.category is None else 1,
        "version": version,
        **_found(one),
    }


def _attempt_row(trial_id: int, one: EndedTrial) -> Json:
    return {
        "trial_id": trial_id,
        "number": 1,
        "executor_id": EXECUTOR,
        "epoch": 0,
        "phase": one.phase.value,
        "outcome": (Outcome.GRADED if one.category is None else Outcome.FAILED).value,
        **_found(one),
    }

"""What happens to a leased trial: phases and endings, many to a transaction. Stale leases are refused."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    and_,
    bindparam,
    case,
    func,
    not_,
    null,
    select,
    update,
)

from valkyrie.nouns import Category, ExitReason, Json, Outcome, TrialState
from valkyrie.store.clock import skew
from valkyrie.store.counters import add_grade, count, lock_runs, spending
from valkyrie.store.hooks import plan_progress_of
from valkyrie.store.leases import Leased
from valkyrie.store.returning import require_all
from valkyrie.store.rows import ForEach, Given, Types
from valkyrie.store.schema import ERROR_COUNTERS, STATE_COUNTERS, attempt, trial


@dataclass(frozen=True, slots=True)
class Advance:
    """The trial enters its next phase."""

    leased: Leased
    before: TrialState
    after: TrialState


@dataclass(frozen=True, slots=True)
class Save:
    """Grading got so far that a later attempt can go on from here."""

    leased: Leased
    saved: Json


@dataclass(frozen=True, slots=True)
class Finish:
    """The attempt ended; `after` is where that leaves the trial (PENDING: it will be tried again)."""

    leased: Leased
    before: TrialState
    after: TrialState
    outcome: Outcome
    at: float
    category: Category | None = None
    cause: str | None = None
    message: str | None = None
    exit_code: int | None = None
    exit_reason: ExitReason | None = None
    score: float | None = None
    passed: bool | None = None
    result: Json | None = None
    confirmed: bool | None = None
    score_confirmed: float | None = None
    evidence: Json | None = None
    """How the score was verified (`nouns.Grade`)."""
    timing: Mapping[str, float] = field(default_factory=dict)
    cost: float | None = None
    """US dollars, as the agent reported them."""
    usage: Json | None = None
    """Tokens, as the agent's log says."""
    told: bool = False
    """Someone wants to be told how far the run has come."""
    not_before: float | None = None


def _ours(given: Given) -> ColumnElement[bool]:
    """The trial as its lease left it.

    The state before is looked at too: what was committed just before the connection broke is not counted
    twice when it is written again.
    """
    return and_(
        trial.c.id == given["b_id"], trial.c.epoch == given["b_epoch"], trial.c.state == given["b_before"]
    )


_LEASE: Types = {
    "b_id": trial.c.id.type,
    "b_epoch": trial.c.epoch.type,
    "b_before": trial.c.state.type,
    "b_state": trial.c.state.type,
    "b_version": trial.c.version.type,
}
_ENTER = ForEach(
    _LEASE,
    lambda given: (
        update(trial).where(_ours(given)).values(state=given["b_state"], version=given["b_version"])
    ),
)


_SAVE = (
    update(trial)
    .where(trial.c.id == bindparam("b_id"), trial.c.epoch == bindparam("b_epoch"))
    .values(saved=bindparam("b_saved"))
)


def _unused(given: Mapping[str, ColumnElement[Any]]) -> ColumnElement[bool]:
    return and_(not_(given["b_used"]), trial.c.saved.is_not(None))


_FOUND = (
    *("score", "passed", "confirmed", "score_confirmed", "evidence", "category", "cause", "message"),
    *("exit_code", "exit_reason", "result", "timing", "usage"),
)
"""What an attempt ends with; its trial keeps that of the last one."""
_OF_TRIAL = (*_FOUND, "failures", "not_before", "finished_at")
_OF_ATTEMPT = (*_FOUND, "cost", "phase", "outcome", "finished_at")
_END_TRIAL = ForEach(
    {
        **_LEASE,
        "b_costed": Boolean(),
        "b_cost": trial.c.cost.type,
        "b_graded": Boolean(),
        "b_used": Boolean(),
        **{f"b_{name}": trial.c[name].type for name in _OF_TRIAL},
    },
    lambda given: (
        update(trial)
        .where(_ours(given))
        .values(
            state=given["b_state"],
            version=given["b_version"],
            executor_id=None,
            cost=case(
                (given["b_costed"], func.coalesce(trial.c.cost, 0.0) + given["b_cost"]), else_=trial.c.cost
            ),
            saved=case((given["b_graded"], null()), else_=trial.c.saved),
            **{name: given[f"b_{name}"] for name in _OF_TRIAL}
            # Grading that went on from what was saved ran no agent: what the agent used stays.
            | {"usage": case((_unused(given), trial.c.usage), else_=given["b_usage"])},
        )
    ),
)


_END_ATTEMPT = ForEach(
    {
        "b_id": attempt.c.trial_id.type,
        "b_number": attempt.c.number.type,
        **{f"b_{name}": attempt.c[name].type for name in _OF_ATTEMPT},
    },
    lambda given: (
        update(attempt)
        .where(attempt.c.trial_id == given["b_id"], attempt.c.number == given["b_number"])
        .values({name: given[f"b_{name}"] for name in _OF_ATTEMPT})
    ),
)


Change = Advance | Save | Finish


def record(connection: Connection, changes: Sequence[Change]) -> None:
    """Write a group of phase changes, savings and endings; StaleLeaseError refuses the group."""
    advances = [one for one in changes if isinstance(one, Advance)]
    savings = [one for one in changes if isinstance(one, Save)]
    endings = [one for one in changes if isinstance(one, Finish)]
    if savings:
        lock_runs(connection, (one.leased.run_id for one in changes))
    versions = count(connection, _deltas(changes))
    if advances:
        rows = [_advance_row(one, versions) for one in advances]
        require_all(_ENTER.execute(connection, rows), len(rows))
    for one in savings:
        values = {"b_id": one.leased.trial_id, "b_epoch": one.leased.epoch, "b_saved": one.saved}
        require_all(connection.execute(_SAVE, values).rowcount, 1)
    if endings:
        ahead = skew(connection) if any(one.not_before for one in endings) else 0.0
        rows = [_ending_row(one, versions, ahead) for one in endings]
        require_all(_END_TRIAL.execute(connection, rows), len(rows))
        _END_ATTEMPT.execute(connection, rows)
        if told := {one.leased.run_id for one in endings if one.told}:
            plan_progress_of(connection, told, max(one.at for one in endings))


def is_written(connection: Connection, change: Change) -> bool:
    """Whether a change that is refused now was written before: its commit's answer got lost."""
    leased = change.leased
    if isinstance(change, Finish):
        statement = select(attempt.c.number).where(
            attempt.c.trial_id == leased.trial_id,
            attempt.c.number == leased.number,
            attempt.c.epoch == leased.epoch,
            attempt.c.outcome == change.outcome.value,
            attempt.c.finished_at == change.at,
        )
    else:
        statement = select(trial.c.id).where(trial.c.id == leased.trial_id, trial.c.epoch == leased.epoch)
        if isinstance(change, Advance):
            statement = statement.where(trial.c.state == change.after.value)
    return connection.execute(statement).scalar() is not None


def _advance_row(one: Advance, versions: Mapping[str, int]) -> dict[str, Any]:
    return {
        "b_id": one.leased.trial_id,
        "b_epoch": one.leased.epoch,
        "b_before": one.before.value,
        "b_state": one.after.value,
        "b_version": versions.get(one.leased.run_id, 0),
    }


def _ending_row(one: Finish, versions: Mapping[str, int], ahead: float) -> dict[str, Any]:
    retried = one.after is TrialState.PENDING
    return {
        "b_id": one.leased.trial_id,
        "b_epoch": one.leased.epoch,
        "b_number": one.leased.number,
        "b_before": one.before.value,
        "b_state": one.after.value,
        "b_version": versions.get(one.leased.run_id, 0),
        "b_cost": one.cost,
        "b_costed": one.cost is not None,
        "b_failures": one.leased.failures + (1 if one.outcome is Outcome.FAILED else 0),
        "b_not_before": one.not_before + ahead if one.not_before else None,
        "b_finished_at": one.at,
        "b_graded": one.outcome is Outcome.GRADED,
        "b_phase": one.before.value,
        "b_outcome": one.outcome.value,
        "b_category": one.category.value if one.category else None,
        "b_cause": one.cause,
        "b_message": one.message,
        "b_exit_code": one.exit_code,
        "b_exit_reason": one.exit_reason.value if one.exit_reason else None,
        "b_score": None if retried else one.score,
        "b_passed": None if retried else one.passed,
        "b_result": None if retried else one.result,
        "b_confirmed": None if retried else one.confirmed,
        "b_score_confirmed": None if retried else one.score_confirmed,
        "b_evidence": one.evidence,
        "b_timing": dict(one.timing),
        "b_usage": one.usage,
        "b_used": one.usage is not None,
    }


def _deltas(changes: Iterable[Change]) -> dict[str, dict[str, float]]:
    runs: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for one in changes:
        if isinstance(one, Save):
            continue
        deltas = runs[one.leased.run_id]
        deltas[STATE_COUNTERS[one.before]] -= 1
        deltas[STATE_COUNTERS[one.after]] += 1
        if isinstance(one, Finish):
            _check_finite(one)
            for name, value in spending(one.cost, one.usage).items():
                deltas[name] += value
            if one.after is TrialState.FINISHED:
                add_grade(deltas, one, +1)
            elif one.after is TrialState.ERROR and one.category:
                deltas[ERROR_COUNTERS[one.category]] += 1
    return runs


def _check_finite(one: Finish) -> None:
    """One that is not would spoil its run's sums for ever."""
    for name, value in (("score", one.score), ("score", one.score_confirmed), ("cost", one.cost)):
        if value is not None and not math.isfinite(value):
            raise ValueError(f"the {name} is {value}, not a finite number")

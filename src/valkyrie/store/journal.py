"""What happens to a leased trial: phases and endings, many to a transaction. Stale leases are refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, bindparam, case, null, update

from valkyrie.nouns import Category, ExitReason, Json, Outcome, TrialState
from valkyrie.store.counters import add_score, count
from valkyrie.store.leases import Leased, require_all
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
    timing: Mapping[str, float] = field(default_factory=dict)
    not_before: float | None = None


_ENTER = (
    update(trial)
    .where(trial.c.id == bindparam("b_id"), trial.c.epoch == bindparam("b_epoch"))
    .values(state=bindparam("b_state"))
)


_SAVE = (
    update(trial)
    .where(trial.c.id == bindparam("b_id"), trial.c.epoch == bindparam("b_epoch"))
    .values(saved=bindparam("b_saved"))
)


_END_TRIAL = (
    update(trial)
    .where(trial.c.id == bindparam("b_id"), trial.c.epoch == bindparam("b_epoch"))
    .values(
        state=bindparam("b_state"),
        executor_id=None,
        failures=bindparam("b_failures"),
        not_before=bindparam("b_not_before"),
        finished_at=bindparam("b_at"),
        saved=case((bindparam("b_graded"), null()), else_=trial.c.saved),
        **{
            name: bindparam(f"b_{name}")
            for name in (
                "score",
                "passed",
                "category",
                "cause",
                "message",
                "exit_code",
                "exit_reason",
                "result",
                "timing",
            )
        },
    )
)


_END_ATTEMPT = (
    update(attempt)
    .where(attempt.c.trial_id == bindparam("b_id"), attempt.c.number == bindparam("b_number"))
    .values(
        finished_at=bindparam("b_at"),
        **{
            name: bindparam(f"b_{name}")
            for name in (
                "phase",
                "outcome",
                "category",
                "cause",
                "message",
                "exit_code",
                "exit_reason",
                "score",
                "result",
                "timing",
            )
        },
    )
)


Change = Advance | Save | Finish


def record(connection: Connection, changes: Sequence[Change]) -> None:
    """Write a group of phase changes, savings and endings; StaleLeaseError refuses the group."""
    advances = [one for one in changes if isinstance(one, Advance)]
    savings = [one for one in changes if isinstance(one, Save)]
    endings = [one for one in changes if isinstance(one, Finish)]
    if advances:
        done = connection.execute(
            _ENTER,
            [
                {"b_id": one.leased.trial_id, "b_epoch": one.leased.epoch, "b_state": one.after.value}
                for one in advances
            ],
        )
        require_all(done.rowcount, len(advances))
    for one in savings:
        values = {"b_id": one.leased.trial_id, "b_epoch": one.leased.epoch, "b_saved": one.saved}
        require_all(connection.execute(_SAVE, values).rowcount, 1)
    if endings:
        rows = [_ending_row(one) for one in endings]
        require_all(connection.execute(_END_TRIAL, rows).rowcount, len(endings))
        connection.execute(_END_ATTEMPT, rows)
    count(connection, _deltas(changes))


def _ending_row(one: Finish) -> dict[str, Any]:
    retried = one.after is TrialState.PENDING
    return {
        "b_id": one.leased.trial_id,
        "b_epoch": one.leased.epoch,
        "b_number": one.leased.number,
        "b_state": one.after.value,
        "b_failures": one.leased.failures + (1 if one.outcome is Outcome.FAILED else 0),
        "b_not_before": one.not_before,
        "b_at": one.at,
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
        "b_timing": dict(one.timing),
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
            if one.after is TrialState.FINISHED:
                add_score(deltas, one.score, one.passed, +1)
            elif one.after is TrialState.ERROR and one.category:
                deltas[ERROR_COUNTERS[one.category]] += 1
    return runs

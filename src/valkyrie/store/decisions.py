"""Jobs that stop when what they ask is decided: their evidence, the decision, and the trials it skips."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, select, update

from valkyrie.nouns import Category, Json, Outcome, TrialState
from valkyrie.store import jobs
from valkyrie.store.counters import add_grade, count
from valkyrie.store.returning import ACTIVE_STATES, AT_ONCE, give_back
from valkyrie.store.schema import ERROR_COUNTERS, STATE_COUNTERS, trial

_GRADE = ("score", "passed", "confirmed", "score_confirmed", "evidence")
DECIDED = "decided"
"""The cause of a trial that was skipped."""


def evidence(connection: Connection, run_id: str) -> Sequence[Row[Any]]:
    """Return a run's trials in the order of its plan, with what they are worth."""
    columns = ("position", "task_id", "k", "family", "state", "category", "score", "cost")
    rows = select(*(trial.c[name] for name in columns)).where(trial.c.run_id == run_id)
    return connection.execute(rows.order_by(trial.c.position)).all()


@dataclass(frozen=True, slots=True)
class Skipped:
    """What a decision spared one run."""

    not_run: int
    """Trials that never began."""
    set_aside: int
    """Trials that had begun, or ended, and do not count."""


def store(connection: Connection, job_id: str, decision: Json) -> None:
    """Store what was decided of a job that is locked; in the transaction that skips its trials."""
    jobs.change(connection, job_id, decision=decision)


def skip(connection: Connection, run_id: str, position: int, message: str, now: float) -> Skipped:
    """Skip a run's trials from a position of its plan on; its job is locked.

    Those that ended are set aside too: they are the quick ones among them, on one side or both, and would
    bend the scores. Their attempts keep what they found.
    """
    names = ("id", "run_id", "state", "attempts", "category", *_GRADE)
    rows = connection.execute(
        select(*(trial.c[name] for name in names)).where(
            trial.c.run_id == run_id,
            trial.c.position >= position,
            trial.c.state != TrialState.SKIPPED.value,
        )
    ).all()
    open_states = (TrialState.PENDING.value, *ACTIVE_STATES)
    give_back(
        connection,
        [row for row in rows if row.state in open_states],
        now,
        Outcome.STOPPED,
        TrialState.SKIPPED,
    )
    deltas: dict[str, float] = defaultdict(float)
    for row in rows:
        if row.state in open_states:
            continue
        deltas[STATE_COUNTERS[TrialState(row.state)]] -= 1
        deltas[STATE_COUNTERS[TrialState.SKIPPED]] += 1
        if row.state == TrialState.FINISHED:
            add_grade(deltas, row, -1)
        elif row.state == TrialState.ERROR and row.category:
            deltas[ERROR_COUNTERS[Category(row.category)]] -= 1
    version = count(connection, {run_id: deltas}).get(run_id, 0)
    nothing = (*_GRADE, "result", "category", "saved")
    ids = [row.id for row in rows]
    for start in range(0, len(ids), AT_ONCE):
        connection.execute(
            update(trial)
            .where(trial.c.id.in_(ids[start : start + AT_ONCE]))
            .values(
                state=TrialState.SKIPPED.value,
                cause=DECIDED,
                message=message,
                not_before=None,
                version=version,
                **dict.fromkeys(nothing),
            )
        )
    not_run = sum(row.attempts == 0 for row in rows)
    return Skipped(not_run, len(rows) - not_run)

"""Counters of runs, changed with what they count; scores taken from them; totals of the server."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, bindparam, func, select, text, update
from sqlalchemy.sql.dml import ReturningUpdate

from valkyrie.domain import Category, Json, RunState, TrialState
from valkyrie.store.schema import ERROR_COUNTERS, STATE_COUNTERS, TOKEN_COUNTERS, job, run

if TYPE_CHECKING:
    from valkyrie.store.rows import RunRow

CHANNEL = "valkyrie_changes"
"""Where PostgreSQL tells other processes that something was committed."""


def count(connection: Connection, changes: Mapping[str, Mapping[str, float]]) -> dict[str, int]:
    """Add to the runs' counters; the version each run has with that (of those that are still there).

    Before the trials are written, and always in the same order: whoever has a run's row is the only one who
    changes its trials, two who change several runs never wait for each other, and no change appears under a
    version that was already seen.
    """
    versions: dict[str, int] = {}
    for run_id in sorted(changes):
        deltas = {name: n for name, n in changes[run_id].items() if n}
        values = {"b_run": run_id, **{f"b_{name}": n for name, n in deltas.items()}}
        version: int | None = connection.execute(_adding(tuple(sorted(deltas))), values).scalar()
        if version is not None:
            versions[run_id] = version
    if versions:
        announce(connection)
    return versions


@cache
def _adding(names: tuple[str, ...]) -> ReturningUpdate[Any]:
    """The statement that adds to these counters of one run, and counts its version on."""
    return (
        update(run)
        .where(run.c.id == bindparam("b_run"))
        .values(version=run.c.version + 1, **{name: run.c[name] + bindparam(f"b_{name}") for name in names})
        .returning(run.c.version)
    )


def lock_runs(connection: Connection, run_ids: Iterable[str]) -> None:
    """Be the only one who changes these runs and their trials, until this transaction ends.

    On SQLite every write transaction is the only one.
    """
    wanted = sorted(set(run_ids))
    if wanted and connection.dialect.name != "sqlite":
        connection.execute(
            select(run.c.id).where(run.c.id.in_(wanted)).order_by(run.c.id).with_for_update(key_share=True)
        )


def lock_jobs(connection: Connection, job_ids: Iterable[str]) -> None:
    """Be the only one who changes what these jobs are made of and what their runs share.

    Before any of their runs is locked, as everyone does.
    """
    wanted = sorted(set(job_ids))
    if wanted and connection.dialect.name != "sqlite":
        connection.execute(
            select(job.c.id).where(job.c.id.in_(wanted)).order_by(job.c.id).with_for_update(key_share=True)
        )


def announce(connection: Connection) -> None:
    """Let other processes know, once this is committed. SQLite's learn it from the file."""
    if connection.dialect.name == "postgresql":
        connection.execute(_ANNOUNCE)


_ANNOUNCE = text(f"SELECT pg_notify('{CHANNEL}', '')")


def add_grade(deltas: dict[str, float], graded: Any, sign: int) -> None:
    """Count one graded trial in (+1) or out (-1) of all that its run counts of grades.

    `graded` has the attributes score, passed, confirmed, score_confirmed and evidence.
    """
    add_score(deltas, graded.score, graded.passed, sign)
    known = known_confirmed(graded.score, graded.score_confirmed)
    add_confirmed(deltas, known, bool(graded.passed and graded.confirmed), sign)
    if (graded.evidence or {}).get("open_to_tampering"):
        deltas["n_open"] += sign


def known_confirmed(score: float | None, confirmed: float | None) -> float | None:
    """The score that was seen in a fresh sandbox; None: not known. A 0 needs no confirmation."""
    return 0.0 if confirmed is None and score == 0 else confirmed


def add_score(deltas: dict[str, float], score: float | None, passed: bool | None, sign: int) -> None:
    """Count one graded trial in (+1) or out (-1) of its run's running score."""
    if passed:
        deltas["n_passed"] += sign
    if score is not None:
        deltas["score_sum"] += sign * score
        if score not in (0.0, 1.0):
            deltas["n_partial"] += sign


def add_confirmed(deltas: dict[str, float], score: float | None, passed: bool | None, sign: int) -> None:
    """Count what was seen of one graded trial in a fresh sandbox in (+1) or out (-1)."""
    if passed:
        deltas["n_confirmed"] += sign
    if score is not None:
        deltas["confirmed_sum"] += sign * score
        deltas["n_verified"] += sign


def spending(cost: float | None, usage: Json | None) -> dict[str, float]:
    """Return what one attempt adds to its run's costs and tokens."""
    costs = {} if cost is None else {"n_costed": 1, "cost_sum": cost}
    return {**costs, **{name: (usage or {}).get(name, 0) for name in TOKEN_COUNTERS}}


# A run's scores and what they are taken over, from its row alone.


@dataclass(frozen=True, slots=True)
class RunScores:
    """The named numbers of docs/concepts/score."""

    final_score: float | None
    score_graded: float | None
    score_confirmed: float | None
    """None: not known, or nothing was graded yet."""
    score_low: float | None
    """If every ungraded trial had failed."""
    score_high: float | None
    """If every ungraded trial had passed."""
    graded: int
    zeroed: int
    """Trials without a grade that ended by the agent's doing: each counts 0."""
    planned: int
    confirmed: int
    """Passes that were seen in a fresh sandbox."""
    unconfirmed: int | None
    """Passes that were only seen in the sandbox the agent left; None: not known."""
    open_to_tampering: int
    """Graded trials whose tests ran in the sandbox the agent left, or beside its processes."""

    @property
    def counted(self) -> int:
        return self.graded + self.zeroed

    @property
    def ungraded(self) -> int:
        """Trials that say nothing about the agent: they failed for other reasons, or have not ended."""
        return self.planned - self.counted

    @property
    def coverage(self) -> float:
        return self.counted / self.planned if self.planned else 0.0


def state_counts(row: RunRow) -> dict[str, int]:
    """Return a run's trials by state; SKIPPED is there only where some are."""
    counts = {state: int(getattr(row, name)) for state, name in STATE_COUNTERS.items()}
    return {state.value: n for state, n in counts.items() if n or state is not TrialState.SKIPPED}


def run_scores(row: RunRow) -> RunScores:
    """The numbers of a run's row; while it goes on, those of what was graded so far."""
    graded = row.n_finished
    zeroed = getattr(row, ERROR_COUNTERS[Category.AGENT])
    planned = sum(
        getattr(row, name) for state, name in STATE_COUNTERS.items() if state is not TrialState.SKIPPED
    )
    counted, ended = graded + zeroed, RunState(row.state).terminal
    known = row.n_verified == graded
    so_far = row.score_sum / counted if counted and row.fraction else None
    confirmed_so_far = row.confirmed_sum / counted if counted and row.fraction and known else None
    final = finite(row.final_score) if ended else None
    low, high = _range(row, planned, planned - counted, final if ended else so_far)
    if ended and not counted:  # nothing is known: that is no score of 0
        final = low = high = None
    said = ended and counted
    return RunScores(
        final_score=final,
        score_graded=finite(row.score_graded) if said and row.score_graded is not None else so_far,
        score_confirmed=finite(row.score_confirmed) if said else confirmed_so_far,
        score_low=low,
        score_high=high,
        graded=graded,
        zeroed=zeroed,
        planned=planned,
        confirmed=row.n_confirmed,
        unconfirmed=row.n_passed - row.n_confirmed if known else None,
        open_to_tampering=row.n_open,
    )


def _range(
    row: RunRow, planned: int, ungraded: int, score: float | None
) -> tuple[float | None, float | None]:
    """Return what the score would be if all ungraded trials had failed, and if all had passed.

    Known where scores are fractions. The benchmark's own function said it when the run ended; else every
    trial has the same weight.
    """
    if not row.fraction or not planned:
        return None, None
    if not ungraded and score is not None:
        return score, score
    if not RunState(row.state).terminal or score is None:
        return row.score_sum / planned, (row.score_sum + ungraded) / planned
    said = row.final_evaluation or {}
    if said.get("score_low") is not None and said.get("score_high") is not None:
        return said["score_low"], said["score_high"]
    return score, min(1.0, score + ungraded / planned)


def finite(number: float | None) -> float | None:
    """Return a score; None for what is no number."""
    return number if number is not None and math.isfinite(number) else None


# How much of everything there is, over all organisations: for whoever runs the server.


@dataclass(frozen=True, slots=True)
class Totals:
    """Numbers only; nothing says whose they are."""

    runs: dict[str, int]
    """By state."""
    trials: dict[str, int]
    """By state."""


def totals(connection: Connection) -> Totals:
    """Counted over the runs' own counters, not over trials."""
    sums = [func.coalesce(func.sum(run.c[name]), 0).label(name) for name in STATE_COUNTERS.values()]
    rows = connection.execute(
        select(run.c.state, func.count().label("runs"), *sums).group_by(run.c.state)
    ).all()
    trials = {
        state.value: int(sum(getattr(row, name) for row in rows)) for state, name in STATE_COUNTERS.items()
    }
    return Totals({row.state: row.runs for row in rows}, trials)


def answers(connection: Connection) -> bool:
    """Return whether the database can be asked anything."""
    return connection.execute(select(1)).scalar() == 1

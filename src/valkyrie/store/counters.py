"""A run's counters: they change in the transaction that changes what they count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from sqlalchemy import Connection, bindparam, select, text, update
from sqlalchemy.sql.dml import ReturningUpdate

from valkyrie.nouns import Json
from valkyrie.store.schema import TOKEN_COUNTERS, job, run

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
    """What one attempt adds to its run's costs and tokens."""
    costs = {} if cost is None else {"n_costed": 1, "cost_sum": cost}
    return {**costs, **{name: (usage or {}).get(name, 0) for name in TOKEN_COUNTERS}}

"""A run's counters: they change in the transaction that changes what they count."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, bindparam, update

from valkyrie.store.schema import ERROR_COUNTERS, STATE_COUNTERS, run

COUNTERS = [*STATE_COUNTERS.values(), *ERROR_COUNTERS.values(), "n_passed", "n_partial", "score_sum"]


_COUNT = (
    update(run)
    .where(run.c.id == bindparam("b_run"))
    .values(version=run.c.version + 1, **{name: run.c[name] + bindparam(f"b_{name}") for name in COUNTERS})
)


def count(connection: Connection, changes: Mapping[str, Mapping[str, float]]) -> None:
    """Add to the runs' counters."""
    if changes:
        zero = dict.fromkeys((f"b_{name}" for name in COUNTERS), 0)
        connection.execute(
            _COUNT,
            [
                {"b_run": run_id, **zero, **{f"b_{name}": n for name, n in deltas.items()}}
                for run_id, deltas in changes.items()
            ],
        )


def add_score(deltas: dict[str, float], score: float | None, passed: bool | None, sign: int) -> None:
    """Count one graded trial in (+1) or out (-1) of its run's running score."""
    if passed:
        deltas["n_passed"] += sign
    if score is not None:
        deltas["score_sum"] += sign * score
        if score not in (0.0, 1.0):
            deltas["n_partial"] += sign

"""How often a trial failed the same way, over all passes of its run."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from valkyrie.nouns import Outcome
from valkyrie.store.schema import attempt, trial


def passes_failed(connection: Connection, run_id: str) -> dict[tuple[str, int], int]:
    """(task id, k) → in how many passes of the run it failed as it fails now; only of those that do.

    A pass is a start, resume or retry; alike means the same category and cause.
    """
    rows = connection.execute(
        select(trial.c.task_id, trial.c.k, func.count(attempt.c.passage.distinct()).label("passes"))
        .join(attempt, attempt.c.trial_id == trial.c.id)
        .where(
            trial.c.run_id == run_id,
            attempt.c.outcome == Outcome.FAILED.value,
            attempt.c.category == trial.c.category,
            attempt.c.cause == trial.c.cause,
        )
        .group_by(trial.c.id, trial.c.task_id, trial.c.k)
    )
    return {(row.task_id, row.k): row.passes for row in rows}

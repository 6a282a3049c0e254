"""Scores of earlier runs of a benchmark: how much they vary says what a new run can show."""

from __future__ import annotations

from sqlalchemy import Connection, select

from valkyrie.nouns import RunState
from valkyrie.store.schema import run
from valkyrie.store.trials import scores

NEWEST = 6
"""So many runs are looked at."""
FEWEST = 5
"""Graded trials of a run that is worth looking at."""


def past_scores(
    connection: Connection, org_id: str, benchmark: str, dataset: str
) -> list[dict[str, list[float]]]:
    """Return the scores of the newest finished runs by task; runs of one agent and model are one item."""
    rows = connection.execute(
        select(run.c.id, run.c.agent, run.c.model)
        .where(
            run.c.org_id == org_id,
            run.c.benchmark == benchmark,
            run.c.dataset == dataset,
            run.c.state == RunState.FINISHED.value,
            run.c.fraction,
            run.c.n_finished >= FEWEST,
        )
        .order_by(run.c.created_at.desc(), run.c.id)
        .limit(NEWEST)
    )
    found: dict[tuple[str, str | None], dict[str, list[float]]] = {}
    for row in rows.all():
        own = found.setdefault((row.agent, row.model), {})
        for task_id, found_scores in scores(connection, row.id).items():
            own.setdefault(task_id, []).extend(one for one in found_scores if one is not None)
    return list(found.values())

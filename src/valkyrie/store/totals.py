"""How much of everything there is, over all organisations: for whoever runs the server."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from valkyrie.store.schema import STATE_COUNTERS, run


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
    """Whether the database can be asked anything."""
    return connection.execute(select(1)).scalar() == 1

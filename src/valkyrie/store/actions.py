"""Who did what: one row for each operation that changes something, kept after its subject is gone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection, delete, insert, select, update

from valkyrie.nouns import Identity
from valkyrie.store.schema import action, org

MOST_KEPT = 1_000_000
"""The oldest are forgotten beyond so many."""
_FORGET_EVERY = 1000
ActionOutcome = Literal["done", "refused", "failed"]


@dataclass(frozen=True, slots=True)
class Action:
    """One thing somebody did, or tried to."""

    id: int
    at: float
    org: str
    person: str | None
    key_id: str | None
    """None for what was typed on the tracker's own machine."""
    name: str
    """The operation, such as `runs_start`."""
    subject: str | None
    """The run, job, agent, secret or key it was done to."""
    outcome: str | None
    """`done`, `refused`, `failed`, or None where it was interrupted."""


def record(
    connection: Connection,
    who: Identity,
    name: str,
    subject: str | None = None,
    outcome: ActionOutcome | None = None,
) -> int:
    """Write down that somebody begins an operation, and return the number to settle it with."""
    values = {"at": time.time(), "org_id": who.org_id, "person": who.person, "key_id": who.key_id}
    made = connection.execute(
        insert(action).values(**values, name=name, subject=subject, outcome=outcome).returning(action.c.id)
    )
    number = int(made.scalar_one())
    if number % _FORGET_EVERY == 0:
        connection.execute(delete(action).where(action.c.id <= number - MOST_KEPT))
    return number


def settle(connection: Connection, number: int, outcome: ActionOutcome, subject: str | None = None) -> None:
    """Write down how an operation ended, and what it made if that was not known before."""
    changes: dict[str, object] = {"outcome": outcome}
    if subject is not None:
        changes["subject"] = subject
    connection.execute(update(action).where(action.c.id == number).values(**changes))


def list_actions(
    connection: Connection,
    *,
    org_id: str | None = None,
    person: str | None = None,
    subject: str | None = None,
    since: float | None = None,
    limit: int = 100,
) -> Sequence[Action]:
    """Return what was done, newest first; `subject` is one's beginning, as ids are often cut."""
    wanted = select(action, org.c.name.label("org")).outerjoin(org, org.c.id == action.c.org_id)
    if org_id is not None:
        wanted = wanted.where(action.c.org_id == org_id)
    if person is not None:
        wanted = wanted.where(action.c.person == person)
    if subject is not None:
        wanted = wanted.where(action.c.subject.startswith(subject, autoescape=True))
    if since is not None:
        wanted = wanted.where(action.c.at >= since)
    rows = connection.execute(wanted.order_by(action.c.id.desc()).limit(limit))
    return [
        Action(
            row.id, row.at, row.org or row.org_id, row.person, row.key_id, row.name, row.subject, row.outcome
        )
        for row in rows
    ]

"""Finding runs: by a reference, page by page, and in the order they are served."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, Row, Select, func, select, tuple_, union_all

from valkyrie.errors import UnknownError, UsageError
from valkyrie.store.leases import OPEN_RUNS
from valkyrie.store.schema import run

MOST_COUNTED = 100_000
"""A list of more says so many."""
MOST_PEOPLE = 20
"""Whose runs are looked up one by one; those of more are found by looking at all."""


def resolve(connection: Connection, ref: str, org_id: str) -> str:
    """The id of the organisation's run that `ref` names: an id, or a unique prefix of one."""
    ref = ref.strip().lower()
    if not ref or any(character not in "0123456789abcdef-" for character in ref):
        raise UsageError(f"{ref[:80]!r} is not a run id. `valk run list` shows them.")
    found = connection.execute(beginning_with(ref, org_id)).all()
    if not found:
        raise UnknownError(f"No run {ref[:80]!r}. `valk run list` shows them.")
    if len(found) > 1:
        newest = sorted(found, key=lambda row: -row.created_at)
        lines = "".join(f"\n  {row.id}  {row.agent} on {row.benchmark}" for row in newest[:10])
        more = "\n  …" if len(found) > 10 else ""
        raise UsageError(f"{ref[:80]!r} is the beginning of several run ids; give more of it:{lines}{more}")
    return str(found[0].id)


def beginning_with(ref: str, org_id: str) -> Select[Any]:
    """A few of the organisation's runs whose ids begin so: `g` comes after all that ids are made of."""
    return (
        select(run.c.id, run.c.agent, run.c.benchmark, run.c.created_at)
        .where(run.c.org_id == org_id, run.c.id >= ref, run.c.id < ref + "g")
        .order_by(run.c.id)
        .limit(11)
    )


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Which runs, in which order, from where on."""

    equal: dict[str, str]
    started_by: Sequence[str] = ()
    newest_first: bool = True
    limit: int = 50
    cursor: str | None = None


def page(connection: Connection, query: RunQuery) -> tuple[Sequence[Row[Any]], int, str | None]:
    """Runs that match (keyset pages), how many match in all (or MOST_COUNTED), and the next cursor."""
    total: int = connection.execute(counted(query)).scalar_one()
    rows = connection.execute(matching(query)).all()
    if len(rows) <= query.limit:
        return rows, total, None
    last = rows[query.limit - 1]
    cursor = base64.urlsafe_b64encode(json.dumps([last.created_at, last.id]).encode()).decode()
    return rows[: query.limit], total, cursor


def counted(query: RunQuery) -> Select[Any]:
    """How many match, without looking at more than MOST_COUNTED."""
    some = select(run.c.id).where(*_wanted(query)).limit(MOST_COUNTED).subquery()
    return select(func.count()).select_from(some)


def matching(query: RunQuery) -> Select[Any]:
    """The page and one more. One stretch of an index holds it; of several people's runs, one of each's."""
    people = sorted(set(query.started_by))
    after = [_after(query)] if query.cursor else []
    wanted = _wanted(query) + after
    if not 1 < len(people) <= MOST_PEOPLE:
        return select(run).where(*wanted).order_by(*_order(query)).limit(query.limit + 1)
    of_each = [
        select(run)
        .where(*_equal(query), run.c.started_by == person, *after)
        .order_by(*_order(query))
        .limit(query.limit + 1)
        .subquery()
        for person in people
    ]
    together = union_all(*(select(one) for one in of_each)).subquery()
    return select(together).order_by(*_order(query, together)).limit(query.limit + 1)


def _equal(query: RunQuery) -> list[ColumnElement[bool]]:
    return [run.c[name] == value for name, value in query.equal.items()]


def _wanted(query: RunQuery) -> list[ColumnElement[bool]]:
    people = sorted(set(query.started_by))
    if len(people) == 1:
        return [*_equal(query), run.c.started_by == people[0]]
    return [*_equal(query), run.c.started_by.in_(people)] if people else _equal(query)


def _order(query: RunQuery, rows: FromClause = run) -> list[ColumnElement[Any]]:
    keys = [rows.c.created_at, rows.c.id]
    return [key.desc() if query.newest_first else key.asc() for key in keys]


def _after(query: RunQuery) -> ColumnElement[bool]:
    try:
        at, run_id = json.loads(base64.urlsafe_b64decode(query.cursor or ""))
        at, run_id = float(at), str(run_id)
        if not (run_id.isascii() and run_id.isprintable()):
            raise ValueError(run_id)
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(f"{(query.cursor or '')[:80]!r} is not a cursor this list gave.") from error
    key = tuple_(run.c.created_at, run.c.id)
    return key < (at, run_id) if query.newest_first else key > (at, run_id)


def queue(connection: Connection, org_id: str, limit: int = 1000) -> Sequence[Row[Any]]:
    """The organisation's open runs, in the order they are served."""
    return connection.execute(
        select(run)
        .where(run.c.org_id == org_id, run.c.state.in_(OPEN_RUNS))
        .order_by(run.c.priority, run.c.created_at, run.c.id)
        .limit(limit)
    ).all()

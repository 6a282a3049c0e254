"""Find runs by a reference, page by page, in the order they are served, and by their scores."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, Row, Select, func, select, tuple_, union_all

from valkyrie.domain import LATEST, RunState, may_be_id
from valkyrie.errors import UnknownError, UsageError
from valkyrie.store import jobs
from valkyrie.store.leases import OPEN_RUNS
from valkyrie.store.schema import run
from valkyrie.store.trials import scores
from valkyrie.text import did_you_mean

MOST_COUNTED = 100_000
"""A list of more says so many."""
MOST_CHOICES = 20
"""A refusal lists so many runs of a job."""
MOST_PEOPLE = 20
"""Whose runs are looked up one by one; those of more are found by looking at all."""


def resolve(connection: Connection, ref: str, org_id: str, person: str | None = None) -> str:
    """Return the id of the organisation's run that `ref` names.

    That is a run's id or a unique beginning of it; the name or id of a job of one run; JOB/AGENT, where AGENT
    may have its model (`agent:model`); or `latest`, the run that `person` started last. A job's name comes
    before the beginning of an id.
    """
    ref = ref.strip()
    if ref == LATEST:
        return _latest(connection, org_id, person)
    begun = connection.execute(beginning_with(ref.lower(), org_id)).all() if may_be_id(ref) else []
    if any(row.id == ref.lower() for row in begun):
        return ref.lower()
    if (named := jobs.find_by_name(connection, ref, org_id)) is not None:
        return _only_run(connection, named)
    if len(begun) == 1:
        return str(begun[0].id)
    if len(begun) > 1:
        newest = sorted(begun, key=lambda row: -row.created_at)
        lines = "".join(f"\n  {row.id}  {row.agent} on {row.benchmark}" for row in newest[:10])
        more = "\n  …" if len(begun) > 10 else ""
        raise UsageError(f"{ref[:80]!r} is the beginning of several run ids; give more of it:{lines}{more}")
    if (found := jobs.find(connection, ref, org_id)) is not None:
        return _only_run(connection, found)
    return _of_agent(connection, ref, org_id, person)


def _latest(connection: Connection, org_id: str, person: str | None) -> str:
    wanted = [run.c.org_id == org_id]
    if person is not None:
        wanted.append(run.c.started_by == person)
    newest = select(run.c.id, run.c.job_id).where(*wanted).order_by(run.c.created_at.desc(), run.c.id.desc())
    found = connection.execute(newest.limit(1)).one_or_none()
    if found is None:
        raise UnknownError(f"{person or 'Nobody'} has started no run yet. `valk run list` shows all.")
    return str(found.id) if found.job_id is None else _only_run(connection, found.job_id)


def _only_run(connection: Connection, job_id: str) -> str:
    """Return the run of a job that has one; which one is meant of several, only the caller can say."""
    rows = jobs.runs_of(connection, [job_id])[job_id]
    if len(rows) == 1:
        return str(rows[0].id)
    name = jobs.get(connection, job_id).name
    if not rows:
        raise UnknownError(f"Job {name!r} has no run any more. `valk run list` shows those there are.")
    raise UsageError(f"Job {name!r} has {len(rows)} runs; name one of them:{_choices(name, rows)}")


def _of_agent(connection: Connection, ref: str, org_id: str, person: str | None) -> str:
    """Return the run that JOB/AGENT names; both may have slashes of their own."""
    parts = ref.split("/")
    for at in range(1, len(parts)):
        job_ref, agent = "/".join(parts[:at]), "/".join(parts[at:])
        if job_ref == LATEST:
            job_id: str | None = jobs.resolve(connection, job_ref, org_id, person)
        else:
            job_id = jobs.find(connection, job_ref, org_id)
        if job_id is not None:
            return _run_of_agent(connection, job_id, agent)
    near = did_you_mean(ref, [LATEST, *jobs.recent_names(connection, org_id)])
    raise UnknownError(
        f"No run or job {ref[:80]!r}.{near} `valk run list` shows runs, `valk job list --all` jobs."
    )


def _run_of_agent(connection: Connection, job_id: str, agent: str) -> str:
    name, rows = jobs.get(connection, job_id).name, jobs.runs_of(connection, [job_id])[job_id]
    found = [row for row in rows if agent in (row.agent, _with_model(row))]
    if len(found) == 1:
        return str(found[0].id)
    if found:
        raise UsageError(f"Job {name!r} has {len(found)} runs of {agent!r}; name one:{_choices(name, found)}")
    near = did_you_mean(agent, {word for row in rows for word in (row.agent, _with_model(row))})
    raise UnknownError(f"Job {name!r} has no agent {agent[:80]!r}.{near}{_choices(name, rows)}")


def _with_model(row: Any) -> str:
    return f"{row.agent}:{row.model}" if row.model else str(row.agent)


def _choices(name: str, rows: Sequence[Any]) -> str:
    """Each run in the shortest words that mean no other: JOB/AGENT, JOB/AGENT:MODEL, or its id."""
    agents = [row.agent for row in rows]
    models = [_with_model(row) for row in rows]
    lines = []
    for row in rows[:MOST_CHOICES]:
        if agents.count(row.agent) == 1:
            word = f"{name}/{row.agent}"
        elif models.count(_with_model(row)) == 1:
            word = f"{name}/{_with_model(row)}"
        else:
            word = str(row.id)
        lines.append(f"\n  {word}  {_with_model(row)} on {row.benchmark}")
    return "".join(lines) + ("\n  …" if len(rows) > MOST_CHOICES else "")


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
    """Return how many match, without looking at more than MOST_COUNTED."""
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


# Scores of earlier runs of a benchmark: how much they vary says what a new run can show.

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

"""Runs as rows: make, find, list, stop, reopen, conclude and forget them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Select,
    delete,
    func,
    insert,
    select,
    tuple_,
    union_all,
    update,
)

from valkyrie.domain import LATEST, Category, Json, Outcome, RunState, TrialState, ended_by_agent, may_be_id
from valkyrie.errors import UnknownError, UsageError, UserError
from valkyrie.store import executors, jobs
from valkyrie.store.counters import announce, count, finite, lock_runs
from valkyrie.store.executors import ACTIVE_STATES, AT_ONCE, OPEN_RUNS, give_back
from valkyrie.store.schema import (
    ERROR_COUNTERS,
    STATE_COUNTERS,
    ForEach,
    cursor_after,
    handover,
    insert_or,
    read_cursor,
    regrade,
    run,
    trial,
)
from valkyrie.store.trials import scores
from valkyrie.text import did_you_mean

if TYPE_CHECKING:
    from valkyrie.store.rows import RegradeRow, RunRow

# Find runs by a reference, page by page, in the order they are served, and by their scores.

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


def _with_model(row: RunRow) -> str:
    return f"{row.agent}:{row.model}" if row.model else str(row.agent)


def _choices(name: str, rows: Sequence[RunRow]) -> str:
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


def page(connection: Connection, query: RunQuery) -> tuple[Sequence[RunRow], int, str | None]:
    """Runs that match (keyset pages), how many match in all (or MOST_COUNTED), and the next cursor."""
    total: int = connection.execute(counted(query)).scalar_one()
    rows = cast("Sequence[RunRow]", connection.execute(matching(query)).all())
    if len(rows) <= query.limit:
        return rows, total, None
    return rows[: query.limit], total, cursor_after(rows[query.limit - 1])


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
    place = read_cursor(query.cursor or "")
    key = tuple_(run.c.created_at, run.c.id)
    return key < place if query.newest_first else key > place


def queue(connection: Connection, org_id: str, limit: int = 1000) -> Sequence[RunRow]:
    """The organisation's open runs, in the order they are served."""
    rows = connection.execute(
        select(run)
        .where(run.c.org_id == org_id, run.c.state.in_(OPEN_RUNS))
        .order_by(run.c.priority, run.c.created_at, run.c.id)
        .limit(limit)
    )
    return cast("Sequence[RunRow]", rows.all())


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


@dataclass(frozen=True, slots=True)
class NewTrial:
    """One planned trial."""

    task_id: str
    k: int
    digest: str
    cpus: float | None
    memory_mb: int | None
    family: str | None = None


_PLAN = ForEach.insert(
    trial,
    *("run_id", "position", "task_id", "k", "digest", "family", "state", "cpus", "memory_mb", "version"),
)


def create(connection: Connection, values: Json, planned: Sequence[NewTrial]) -> None:
    """Store a run and all its trials, or nothing."""
    connection.execute(
        insert(run).values(state=RunState.IN_PROGRESS.value, n_pending=len(planned), version=1, **values)
    )
    _insert(connection, values["id"], planned, 0, 0)
    announce(connection)


def _insert(connection: Connection, run_id: str, new: Sequence[NewTrial], first: int, version: int) -> None:
    rows = [
        {
            "run_id": run_id,
            "position": position,
            "task_id": one.task_id,
            "k": one.k,
            "digest": one.digest,
            "family": one.family,
            "state": TrialState.PENDING.value,
            "cpus": one.cpus,
            "memory_mb": one.memory_mb,
            "version": version,
        }
        for position, one in enumerate(new, first)
    ]
    # In parts: a database does not wait long for someone who is busy in the middle of a transaction.
    for start in range(0, len(rows), AT_ONCE):
        _PLAN.execute(connection, rows[start : start + AT_ONCE])


def planned(connection: Connection, run_id: str) -> dict[tuple[str, int], str]:
    """(task id, k) → digest of every trial a run has."""
    rows = select(trial.c.task_id, trial.c.k, trial.c.digest).where(trial.c.run_id == run_id)
    return {(row.task_id, row.k): row.digest for row in connection.execute(rows)}


def extend(connection: Connection, run_id: str, more: Sequence[NewTrial]) -> int:
    """Add trials the run does not have yet; how many. What it has stays as it is."""
    lock_runs(connection, [run_id])
    known = planned(connection, run_id)
    new = [one for one in more if (one.task_id, one.k) not in known]
    if not new:
        return 0
    last = connection.execute(select(func.max(trial.c.position)).where(trial.c.run_id == run_id)).scalar()
    version = count(connection, {run_id: {"n_pending": len(new)}}).get(run_id, 0)
    _insert(connection, run_id, new, 0 if last is None else last + 1, version)
    return len(new)


def get(connection: Connection, run_id: str) -> RunRow:
    row = connection.execute(select(run).where(run.c.id == run_id)).one_or_none()
    if row is None:
        raise UnknownError(f"No run {run_id!r}. `valk run list` shows them.")
    return cast("RunRow", row)


def locked(connection: Connection, run_id: str) -> RunRow:
    """One run's row, nobody else's to change until this transaction ends."""
    lock_runs(connection, [run_id])
    return get(connection, run_id)


def known_ids(connection: Connection) -> set[str]:
    return set(connection.execute(select(run.c.id)).scalars())


def version(connection: Connection, run_id: str) -> int | None:
    """Grows with every change of the run; None when it is gone."""
    return connection.execute(select(run.c.version).where(run.c.id == run_id)).scalar()


def _of_tasks(
    connection: Connection, run_id: str, states: Sequence[str], task_ids: Sequence[str] | None
) -> list[Any]:
    """The run's trials in these states; of these tasks only, if any are named."""
    found = connection.execute(
        select(trial.c.id, trial.c.run_id, trial.c.task_id, trial.c.state, trial.c.category).where(
            trial.c.run_id == run_id, trial.c.state.in_(states)
        )
    )
    wanted = None if task_ids is None else set(task_ids)
    return [row for row in found if wanted is None or row.task_id in wanted]


def check_tasks(connection: Connection, run_id: str, task_ids: Collection[str]) -> None:
    """Refuse ids the run has no trial of."""
    known = set(connection.execute(select(trial.c.task_id).where(trial.c.run_id == run_id)).scalars())
    unknown = [task_id for task_id in task_ids if task_id not in known]
    if unknown:
        near = did_you_mean(unknown[0], known) if len(unknown) == 1 else ""
        hint = near or f" `valk run tasks {run_id[:8]}` lists them."
        raise UnknownError(f"Run {run_id[:8]} has no task {', '.join(map(repr, unknown[:5]))}.{hint}")


def stop(
    connection: Connection, run_id: str, now: float, *, force: bool, task_ids: Sequence[str] | None
) -> None:
    """Pending trials become STOPPED, with `force` active ones too; the run follows when nothing is left."""
    row = locked(connection, run_id)
    if RunState(row.state).terminal:
        raise UserError(f"Run {run_id[:8]} is {row.state} already; there is nothing to stop.")
    states = [TrialState.PENDING.value, *(ACTIVE_STATES if force else [])]
    held = _of_tasks(connection, run_id, states, task_ids)
    give_back(connection, held, now, Outcome.STOPPED, TrialState.STOPPED)
    if task_ids is None:
        free = {} if row.bound is None or executors.lives_at(connection, row.bound) else {"bound": None}
        set_values(connection, run_id, state=RunState.STOPPING.value, note=None, **free)


def reopen(
    connection: Connection,
    run_id: str,
    *,
    errors_too: bool,
    category: str | None = None,
    task_ids: Sequence[str] | None = None,
    concurrency: int | None = None,
    from_scratch: bool = False,
    bound: str | None = None,
) -> int:
    """STOPPED trials (and ERROR ones) become PENDING; how many. The run is open again, for executors that
    say `bound`.

    An end by the agent's doing counts, and is tried again only for who names its category or its task: a
    second try would be another measurement than the one planned.

    What their grading saved is kept, unless they are to begin `from_scratch`. While kept work is graded
    again that goes on, and nothing else is reopened.
    """
    before = locked(connection, run_id)
    states = [TrialState.STOPPED.value, *([TrialState.ERROR.value] if errors_too else [])]
    rows = [
        row
        for row in _of_tasks(connection, run_id, states, [] if regrading(connection, run_id) else task_ids)
        if row.category == category
        or (category is None and (task_ids is not None or not ended_by_agent(row.state, row.category)))
    ]
    if rows and before.grading:
        raise UserError(
            f"Run {run_id[:8]} shows grading {before.grading}; agents run again on grading 0 only: "
            f"`valk run regrade {run_id[:8]} --use 0` first."
        )
    errors = _make_pending(connection, run_id, rows, from_scratch=from_scratch)
    values: Json = {
        "state": RunState.IN_PROGRESS.value,
        **dict.fromkeys(("finished_at", "error", "note", "stop_reason", "exit_codes")),
        "bound": bound,
        "passes": run.c.passes + 1,
        **_interrupted(connection, before),
        "errors_before": _errors_before(before, -errors),
        **({"concurrency": concurrency} if concurrency else {}),
    }
    connection.execute(update(run).where(run.c.id == run_id).values(**values))
    return len(rows)


def _make_pending(connection: Connection, run_id: str, rows: Sequence[Any], *, from_scratch: bool) -> int:
    """Let these trials wait again; return how many of them stood in ERROR."""
    deltas: dict[str, float] = defaultdict(float)
    for row in rows:
        deltas[STATE_COUNTERS[TrialState(row.state)]] -= 1
        deltas["n_pending"] += 1
        if row.state == TrialState.ERROR and row.category:
            deltas[ERROR_COUNTERS[Category(row.category)]] -= 1
    version = count(connection, {run_id: deltas}).get(run_id, 0)
    forgotten = ["not_before", "category", "cause", "message", "evidence", "finished_at"]
    pending: Json = {
        "state": TrialState.PENDING.value,
        "failures": 0,
        "epoch": trial.c.epoch + 1,
        "version": version,
        **dict.fromkeys([*forgotten, "saved"] if from_scratch else forgotten),
    }
    for start in range(0, len(rows), AT_ONCE):
        some = [row.id for row in rows[start : start + AT_ONCE]]
        connection.execute(update(trial).where(trial.c.id.in_(some)).values(**pending))
    return sum(row.state == TrialState.ERROR for row in rows)


def _interrupted(connection: Connection, row: RunRow) -> Json:
    """Return the columns of a run whose executor is gone: it worked until its last trial began or ended."""
    if row.working_since is None or executors.living(connection):
        return {}
    last = connection.execute(select(func.max(trial.c.finished_at)).where(trial.c.run_id == row.id)).scalar()
    return worked(row, max(row.leased_at or 0.0, last or 0.0))


def _errors_before(row: RunRow, reopened: int) -> int:
    """Return how many errors do not count when a run that goes on is looked at to stop by itself.

    Those of one that was stopped do not; one that lost its executor is where it was.
    """
    left = int(row.n_error) + reopened
    return left if row.state != RunState.IN_PROGRESS else min(left, int(row.errors_before))


def regrading(connection: Connection, run_id: str) -> bool:
    """Return whether kept work of the run is being graded again."""
    found = select(regrade.c.number).where(
        regrade.c.run_id == run_id, regrade.c.number > 0, regrade.c.finished_at.is_(None)
    )
    return connection.execute(found.limit(1)).scalar() is not None


def regrades_under_way(connection: Connection, run_ids: Collection[str]) -> dict[str, RegradeRow]:
    """Return the grading that has not ended, of each of these runs that has one."""
    rows = select(regrade).where(
        regrade.c.run_id.in_(list(run_ids)), regrade.c.number > 0, regrade.c.finished_at.is_(None)
    )
    return {row.run_id: cast("RegradeRow", row) for row in connection.execute(rows)}


def was_regraded(connection: Connection, run_id: str) -> bool:
    """Return whether kept work of the run was ever graded again."""
    return (
        connection.execute(select(regrade.c.number).where(regrade.c.run_id == run_id).limit(1)).first()
        is not None
    )


def set_values(connection: Connection, run_id: str, **values: Any) -> None:
    connection.execute(update(run).where(run.c.id == run_id).values(version=run.c.version + 1, **values))
    announce(connection)


def conclude(
    connection: Connection,
    run_id: str,
    now: float,
    *,
    final: Json | None,
    graded: float | None,
    error: str | None,
    confirmed: float | None = None,
) -> bool:
    """The last trial ended: write the score and the run's last state; whether the run has ended.

    Nothing happens if it was reopened, or deleted.
    """
    lock_runs(connection, [run_id])
    row = connection.execute(select(run).where(run.c.id == run_id)).one_or_none()
    if row is None or RunState(row.state).terminal:
        return True
    if row.n_pending + row.n_building + row.n_in_progress + row.n_evaluating:
        return False
    state = RunState.STOPPED if row.n_stopped else RunState.FINISHED
    if error:
        state = RunState.ERROR
    if final and not row.n_finished + row.e_agent:
        final = {**final, "final_score": None, "properties": {}, "score_low": None, "score_high": None}
        graded = confirmed = None
    set_values(
        connection,
        run_id,
        state=state.value,
        finished_at=now,
        error=error,
        note=cost_note(row) or row.stop_reason,
        endings=row.endings + 1,
        exit_codes=exit_codes(connection, run_id) or None,
        **worked(row, now),
        final_evaluation=final,
        final_score=finite(final["final_score"]) if final else None,
        score_graded=finite(graded),
        score_confirmed=finite(confirmed),
    )
    return True


def worked(row: RunRow, until: float) -> Json:
    """Return the columns of a run that does not work any more: how long it did, in all its passes."""
    since = row.working_since
    return {"working_since": None, "worked_s": row.worked_s + (max(0.0, until - since) if since else 0.0)}


def exit_codes(connection: Connection, run_id: str) -> dict[str, int]:
    """Return how many agents of a run ended by themselves with each exit code but 0."""
    codes = (
        select(trial.c.exit_code, func.count().label("times"))
        .where(
            trial.c.run_id == run_id,
            trial.c.state.in_([TrialState.FINISHED.value, TrialState.ERROR.value]),
            trial.c.exit_code != 0,
            trial.c.exit_reason.is_(None),
        )
        .group_by(trial.c.exit_code)
        .order_by(trial.c.exit_code)
    )
    return {str(row.exit_code): int(row.times) for row in connection.execute(codes)}


def cost_note(row: RunRow) -> str | None:
    """Return what is to be said of a run whose agents reported more than it may cost."""
    if row.max_cost is None or row.cost_sum < row.max_cost or not row.n_stopped + row.n_pending:
        return None
    return (
        f"stopped: agents reported ${row.cost_sum:.2f} of --max-cost ${row.max_cost:.2f}; "
        f"`valk run update {row.id[:8]} --max-cost N`, then `valk run resume {row.id[:8]}` goes on"
    )


def forget(connection: Connection, run_id: str) -> None:
    """Delete an ended run's rows."""
    row = locked(connection, run_id)
    if not RunState(row.state).terminal:
        raise UserError(
            f"Run {run_id[:8]} is {row.state}. `valk run stop {run_id[:8]} --force` ends it first."
        )
    connection.execute(delete(run).where(run.c.id == run_id))
    announce(connection)


# What executors are handed with a run, sealed.


def hand(connection: Connection, run_id: str, sealed: bytes) -> None:
    """Store what executors are handed with a run, in place of what they were handed before."""
    new = insert_or(connection, handover).values(run_id=run_id, sealed=sealed)
    connection.execute(new.on_conflict_do_update(index_elements=["run_id"], set_={"sealed": sealed}))


def handed(connection: Connection, run_id: str) -> bytes | None:
    """Return what was handed with a run; None once it ended."""
    wanted = select(handover.c.sealed).where(handover.c.run_id == run_id)
    return connection.execute(wanted).scalar_one_or_none()


def forget_handed(connection: Connection, run_id: str) -> None:
    """The run ended: nobody needs it any more."""
    connection.execute(delete(handover).where(handover.c.run_id == run_id))


def any_ready(connection: Connection) -> bool:
    """Return whether a run could go on now without a person (a run that waits says so in its note)."""
    return bool(
        connection.execute(
            select(run.c.id)
            .where(run.c.state.in_(OPEN_RUNS), run.c.note.is_(None), run.c.bound.is_(None))
            .limit(1)
        ).scalar()
    )

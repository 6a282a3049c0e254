"""Jobs as rows: several runs together, their evidence, and the decision that ends them early."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Connection, Row, delete, insert, select, tuple_, update

from valkyrie.domain import LATEST, Category, Json, Outcome, TrialState, may_be_id
from valkyrie.errors import UnknownError, UsageError, UserError
from valkyrie.store.counters import add_grade, announce, count, lock_jobs, lock_runs
from valkyrie.store.executors import ACTIVE_STATES, AT_ONCE, give_back
from valkyrie.store.schema import ERROR_COUNTERS, STATE_COUNTERS, cursor_after, job, read_cursor, run, trial
from valkyrie.text import did_you_mean

if TYPE_CHECKING:
    from valkyrie.store.rows import JobRow, RunRow

MOST_NAMES = 200
"""So many recent names are looked at for one that is like an unknown one."""


def create(connection: Connection, values: Json) -> None:
    """Store a job; its runs follow in the same transaction."""
    connection.execute(insert(job).values(version=1, **values))


def get(connection: Connection, job_id: str) -> JobRow:
    row = connection.execute(select(job).where(job.c.id == job_id)).one_or_none()
    if row is None:
        raise UnknownError(f"No job {job_id!r}. `valk job list --all` shows them.")
    return cast("JobRow", row)


def locked(connection: Connection, job_id: str) -> JobRow:
    """One job's row; it and its runs are nobody else's to change until this transaction ends.

    The job first, then its runs in the order everyone locks them.
    """
    lock_jobs(connection, [job_id])
    ids = connection.execute(select(run.c.id).where(run.c.job_id == job_id)).scalars().all()
    lock_runs(connection, ids)
    return get(connection, job_id)


def exists(connection: Connection, job_id: str) -> bool:
    return connection.execute(select(job.c.id).where(job.c.id == job_id)).scalar() is not None


def resolve(connection: Connection, ref: str, org_id: str, person: str | None = None) -> str:
    """Return the id of the organisation's job that `ref` names: an id, a name, a unique beginning of an id.

    Of several jobs with the same name the newest is meant. `latest` is the job that `person` started last.
    """
    ref = ref.strip()
    if ref == LATEST:
        return _latest(connection, org_id, person)
    if (found := find(connection, ref, org_id)) is not None:
        return found
    near = did_you_mean(ref, recent_names(connection, org_id))
    raise UnknownError(f"No job {ref[:80]!r}.{near} `valk job list --all` shows them.")


def find(connection: Connection, ref: str, org_id: str) -> str | None:
    """Return the id of the job that `ref` names, or None; UsageError where several ids begin so."""
    by_id = _beginning_with(connection, ref.lower(), org_id)
    if any(row.id == ref.lower() for row in by_id):
        return ref.lower()
    if (named := find_by_name(connection, ref, org_id)) is not None:
        return named
    if len(by_id) > 1:
        lines = "".join(f"\n  {row.id}  {row.name}" for row in by_id[:10])
        raise UsageError(f"{ref[:80]!r} is the beginning of several job ids; give more of it:{lines}")
    return str(by_id[0].id) if by_id else None


def find_by_name(connection: Connection, name: str, org_id: str) -> str | None:
    """Return the id of the newest job that is called so; None where none is."""
    if not name or not name.isprintable():  # some databases take no other text
        return None
    named = select(job.c.id).where(job.c.org_id == org_id, job.c.name == name)
    found = connection.execute(named.order_by(job.c.created_at.desc(), job.c.id.desc()).limit(1)).scalar()
    return str(found) if found else None


def _latest(connection: Connection, org_id: str, person: str | None) -> str:
    wanted = [job.c.org_id == org_id]
    if person is not None:
        wanted.append(job.c.started_by == person)
    newest = select(job.c.id).where(*wanted).order_by(job.c.created_at.desc(), job.c.id.desc())
    found = connection.execute(newest.limit(1)).scalar()
    if found is None:
        raise UnknownError(f"{person or 'Nobody'} has started no job yet. `valk job list --all` shows all.")
    return str(found)


def _beginning_with(connection: Connection, ref: str, org_id: str) -> Sequence[Any]:
    if not may_be_id(ref):
        return []
    wanted = (job.c.org_id == org_id, job.c.id >= ref, job.c.id < ref + "g")
    return connection.execute(select(job.c.id, job.c.name).where(*wanted).order_by(job.c.id).limit(11)).all()


def recent_names(connection: Connection, org_id: str) -> Sequence[str]:
    recent = select(job.c.name).where(job.c.org_id == org_id).order_by(job.c.created_at.desc())
    return connection.execute(recent.limit(MOST_NAMES)).scalars().all()


def runs_of(connection: Connection, job_ids: Sequence[str]) -> dict[str, list[RunRow]]:
    """The rows of these jobs' runs, by job, in their order."""
    found: dict[str, list[RunRow]] = {job_id: [] for job_id in job_ids}
    rows = select(run).where(run.c.job_id.in_(list(job_ids))).order_by(run.c.job_id, run.c.job_position)
    for row in connection.execute(rows):
        found[row.job_id].append(cast("RunRow", row))
    return found


def version(connection: Connection, job_id: str) -> int | None:
    """Grows with every change of the job or one of its runs; None when it is gone."""
    own = connection.execute(select(job.c.version).where(job.c.id == job_id)).scalar()
    if own is None:
        return None
    of_runs = connection.execute(select(run.c.version).where(run.c.job_id == job_id)).scalars().all()
    return int(own) + sum(map(int, of_runs))


def page(
    connection: Connection,
    org_id: str,
    *,
    since: float | None = None,
    name: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> tuple[Sequence[JobRow], str | None]:
    """Jobs, newest first (keyset pages), and the next cursor."""
    wanted = [job.c.org_id == org_id]
    if since is not None:
        wanted.append(job.c.created_at >= since)
    if name is not None:
        wanted.append(job.c.name == name)
    if cursor:
        wanted.append(tuple_(job.c.created_at, job.c.id) < read_cursor(cursor))
    order = (job.c.created_at.desc(), job.c.id.desc())
    found = connection.execute(select(job).where(*wanted).order_by(*order).limit(limit + 1)).all()
    rows = cast("Sequence[JobRow]", found)
    if len(rows) <= limit:
        return rows, None
    return rows[:limit], cursor_after(rows[limit - 1])


def change(connection: Connection, job_id: str, **values: Any) -> None:
    connection.execute(update(job).where(job.c.id == job_id).values(version=job.c.version + 1, **values))
    announce(connection)


def share(connection: Connection, job_id: str, concurrency: int) -> None:
    """Change how many trials of the job run at once; each of its runs may use all of that."""
    lock_jobs(connection, [job_id])
    change(connection, job_id, concurrency=concurrency)
    ids = connection.execute(select(run.c.id).where(run.c.job_id == job_id)).scalars().all()
    lock_runs(connection, ids)
    connection.execute(update(run).where(run.c.id.in_(ids)).values(concurrency=concurrency))


def forget(connection: Connection, job_id: str) -> None:
    """Delete a job's row; its runs were deleted before. UserError if it has others by now."""
    locked(connection, job_id)
    if runs_of(connection, [job_id])[job_id]:
        raise UserError(f"Job {job_id[:8]} grew meanwhile. `valk job delete {job_id[:8]}` once more.")
    connection.execute(delete(job).where(job.c.id == job_id))
    announce(connection)


# Jobs that stop when what they ask is decided: their evidence, the decision, and the trials it skips.

_GRADE = ("score", "passed", "confirmed", "score_confirmed", "evidence")
DECIDED = "decided"
"""The cause of a trial that was skipped."""


def decision_evidence(connection: Connection, run_id: str) -> Sequence[Row[Any]]:
    """Return a run's trials in the order of its plan, with what they are worth."""
    columns = ("position", "task_id", "k", "family", "state", "category", "score", "cost")
    rows = select(*(trial.c[name] for name in columns)).where(trial.c.run_id == run_id)
    return connection.execute(rows.order_by(trial.c.position)).all()


@dataclass(frozen=True, slots=True)
class Skipped:
    """What a decision spared one run."""

    not_run: int
    """Trials that never began."""
    set_aside: int
    """Trials that had begun, or ended, and do not count."""


def store_decision(connection: Connection, job_id: str, decision: Json) -> None:
    """Store what was decided of a job that is locked; in the transaction that skips its trials."""
    change(connection, job_id, decision=decision)


def skip_decided(connection: Connection, run_id: str, position: int, message: str, now: float) -> Skipped:
    """Skip a run's trials from a position of its plan on; its job is locked.

    Those that ended are set aside too: they are the quick ones among them, on one side or both, and would
    bend the scores. Their attempts keep what they found.
    """
    names = ("id", "run_id", "state", "attempts", "category", *_GRADE)
    rows = connection.execute(
        select(*(trial.c[name] for name in names)).where(
            trial.c.run_id == run_id,
            trial.c.position >= position,
            trial.c.state != TrialState.SKIPPED.value,
        )
    ).all()
    open_states = (TrialState.PENDING.value, *ACTIVE_STATES)
    give_back(
        connection,
        [row for row in rows if row.state in open_states],
        now,
        Outcome.STOPPED,
        TrialState.SKIPPED,
    )
    deltas: dict[str, float] = defaultdict(float)
    for row in rows:
        if row.state in open_states:
            continue
        deltas[STATE_COUNTERS[TrialState(row.state)]] -= 1
        deltas[STATE_COUNTERS[TrialState.SKIPPED]] += 1
        if row.state == TrialState.FINISHED:
            add_grade(deltas, row, -1)
        elif row.state == TrialState.ERROR and row.category:
            deltas[ERROR_COUNTERS[Category(row.category)]] -= 1
    version = count(connection, {run_id: deltas}).get(run_id, 0)
    nothing = (*_GRADE, "result", "category", "saved")
    ids = [row.id for row in rows]
    for start in range(0, len(ids), AT_ONCE):
        connection.execute(
            update(trial)
            .where(trial.c.id.in_(ids[start : start + AT_ONCE]))
            .values(
                state=TrialState.SKIPPED.value,
                cause=DECIDED,
                message=message,
                not_before=None,
                version=version,
                **dict.fromkeys(nothing),
            )
        )
    not_run = sum(row.attempts == 0 for row in rows)
    return Skipped(not_run, len(rows) - not_run)

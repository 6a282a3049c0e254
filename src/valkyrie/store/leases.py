"""Who works on which trial: leases taken in fair shares, as far as the host has room."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, bindparam, exists, func, or_, select, update

from valkyrie.domain import ABORT_SHARE, LAST_PRIORITY, Json, Outcome, RunState, TrialState
from valkyrie.store.counters import count, lock_jobs
from valkyrie.store.executors import OPEN_RUNS, give_back, require_all
from valkyrie.store.schema import CLOCK, ForEach, api_key, attempt, executor, job, regrade, run, skew, trial
from valkyrie.store.trials import LARGEST

Member = TypeVar("Member")
Person = tuple[str, str | None]
"""An organisation and the name of one of its people."""


@dataclass(frozen=True, slots=True)
class Leased:
    """One attempt of one trial, ours until its epoch is overtaken."""

    trial_id: int
    run_id: str
    task_id: str
    k: int
    digest: str
    number: int
    """Which attempt of the trial this is, from 1."""
    failures: int
    """Earlier attempts that failed and count against the retry limit."""
    epoch: int
    cpus: float
    memory_mb: int
    saved: Json | None = None
    """From what grading goes on, when an earlier attempt got that far."""
    started_at: float = 0.0

    @property
    def grading(self) -> int:
        """The regrade this attempt belongs to; 0 is the run's own grading."""
        return int((self.saved or {}).get("regrade", 0))


@dataclass(frozen=True, slots=True)
class Room:
    """What the host has left for trials."""

    cpus: float
    memory_mb: float
    idle: bool
    """Nothing is running: one trial is let in whatever it asks for."""
    trials: int = sys.maxsize
    """How many more may begin at all."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A look for work."""

    executor_id: str
    now: float
    room: Room
    active: Mapping[str, int]
    """Attempts in hand, by run (sandboxes still being removed included)."""
    ready: Collection[str]
    """Runs that are open here; of others nothing is leased."""
    bound: str | None = None
    """Only runs bound to this word are looked at; None: those that are bound to none."""


@dataclass(frozen=True, slots=True)
class TickResult:
    """What a look for work found."""

    leased: Sequence[Leased]
    ended: Sequence[str]
    """Open runs with nothing left to do: their score is due."""
    open_runs: Sequence[str]
    wake_at: float | None
    """When the next trial's back-off is over."""
    ruled: Sequence[str] = ()
    """Jobs with an open run that stop when they are decided."""


@dataclass(slots=True)
class Pool:
    """What several runs share: how many more of their trials may begin."""

    left: int


Pools = Mapping[str, Sequence[Pool]]
"""By run: the pools its trials are taken from."""


def pools_of(rows: Sequence[Any], tick: Tick) -> Pools:
    """Return each run's pools: its job's, and that of the API key it was started with."""
    known: dict[tuple[str, str], Pool] = {}
    found: dict[str, list[Pool]] = {}
    for row in rows:
        job, key = ("job", row.job_id), ("key", row.key_id)
        limits = [(name, most) for name, most in ((job, row.pool), (key, row.key_limit)) if most is not None]
        found[row.id] = [known.setdefault(name, Pool(most)) for name, most in limits]
        for pool in found[row.id]:
            pool.left -= in_hand(row, tick)
    return found


def left_in(pools: Sequence[Pool]) -> int:
    """Return how many more trials may be taken from all of these pools; no pool is no limit."""
    return min((pool.left for pool in pools), default=sys.maxsize)


def in_hand(row: Any, tick: Tick) -> int:
    """Its trials under way, sandboxes still being removed here included."""
    return max(int(row.active), tick.active.get(row.id, 0))


def choose(ready: Mapping[str, Iterable[Any]], tick: Tick, pools: Pools, load: Load) -> list[Leased]:
    """Whoever is furthest below its share is next, until the host is full.

    First among people, so that ten runs of one person count as one; then among that person's runs, each in
    its own order. Shares are in proportion to weights (`weight_of`); of equals, whoever has the fewest
    trials in hand is next, and of those whoever was served longest ago.
    """
    room = _Left(tick.room)
    chosen: list[Leased] = []
    turns = _Turns(ready, load)
    while (run_id := turns.next()) is not None:
        row = turns.trial(run_id) if left_in(pools[run_id]) > 0 else None
        if row is None or not room.take(row):
            turns.leave()
            continue
        for pool in pools[run_id]:
            pool.left -= 1
        turns.took()
        chosen.append(_leased(run_id, row, tick))
    return chosen


def weight_of(priority: int) -> int:
    """Return what a run of this priority weighs when slots are shared: twice the next lower one's."""
    return 1 << max(0, LAST_PRIORITY - priority)


@dataclass(slots=True)
class Load:
    """Trials in hand, by run and by person, and what each run weighs."""

    of_run: dict[str, int]
    of_person: Counter[Person]
    person: dict[str, Person]
    """Whose run it is."""
    weight: dict[str, int]
    served_at: dict[str | Person, float]
    """When a run, or one of a person's, was last served."""


def load_of(rows: Iterable[Any], tick: Tick) -> Load:
    """Count what open runs and the people who started them have in hand."""
    load = Load({}, Counter(), {}, {}, {})
    for row in rows:
        person = row.org_id, row.started_by
        load.of_run[row.id] = in_hand(row, tick)
        load.of_person[person] += load.of_run[row.id]
        load.person[row.id] = person
        load.weight[row.id] = weight_of(row.priority)
        load.served_at[row.id] = row.leased_at or 0.0
        load.served_at[person] = max(load.served_at[row.id], load.served_at.get(person, 0.0))
    return load


class _Shares(Generic[Member]):
    """Members who share slots in proportion to their weights; `next` is furthest below its share.

    The share is of what all of them have in hand and the slot that is to be given: nobody gets more than one
    trial above it. Members of one weight are in a heap, for among them the fewest trials in hand decide.
    """

    def __init__(self) -> None:
        self._heaps: dict[int, list[tuple[int, float, int, Member]]] = {}
        self._weights = 0
        self._held = 0

    def join(self, member: Member, weight: int, held: int, served_at: float, place: int) -> None:
        """Add a member that has `held` trials in hand; `place` decides among equals."""
        heappush(self._heaps.setdefault(weight, []), (held, served_at, place, member))
        self._weights += weight
        self._held += held

    @property
    def heaviest(self) -> int:
        """The greatest weight of those who are left; 0 when nobody is."""
        return max(self._heaps, default=0)

    def next(self) -> Member | None:
        """Return the member whose turn it is; None when all have left."""
        return self._heaps[self._turn()][0][3] if self._heaps else None

    def took(self) -> None:
        """Count a trial for the member whose turn it is."""
        heap = self._heaps[self._turn()]
        held, served_at, place, member = heap[0]
        heapreplace(heap, (held + 1, served_at, place, member))
        self._held += 1

    def leave(self) -> int:
        """Take the member whose turn it is out of the turns; return its place."""
        weight = self._turn()
        held, _, place, _ = heappop(self._heaps[weight])
        self._weights -= weight
        self._held -= held
        if not self._heaps[weight]:
            del self._heaps[weight]
        return place

    def _turn(self) -> int:
        """Return the weight in whose heap the next member is; of equals the heaviest."""
        if len(self._heaps) == 1:
            return next(iter(self._heaps))
        slots = self._held + 1
        # The distance to its share, times all weights: whole numbers, so that equals are equal.
        return max(
            self._heaps,
            key=lambda weight: (weight * slots - self._heaps[weight][0][0] * self._weights, weight),
        )


class _Turns:
    """Whose turn it is: people share slots, and each person's runs share what that person gets."""

    def __init__(self, queues: Mapping[str, Iterable[Any]], load: Load) -> None:
        self._load = load
        self._trials = {run_id: iter(rows) for run_id, rows in queues.items()}
        self._runs: dict[Person, _Shares[str]] = {}
        self._people: _Shares[Person] = _Shares()
        for place, run_id in enumerate(queues):
            own = self._runs.setdefault(load.person[run_id], _Shares())
            own.join(run_id, load.weight[run_id], load.of_run[run_id], load.served_at[run_id], place)
        for place, person in enumerate(self._runs):
            self._join(person, place)

    def _join(self, person: Person, place: int) -> None:
        """Let a person share with the weight of the most urgent of the runs that are left."""
        if heaviest := self._runs[person].heaviest:
            served_at = self._load.served_at[person]
            self._people.join(person, heaviest, self._load.of_person[person], served_at, place)

    def next(self) -> str | None:
        """Return the run whose turn it is; None when all have left."""
        person = self._people.next()
        return None if person is None else self._runs[person].next()

    def trial(self, run_id: str) -> Any:
        """Return that run's next trial, if there is one."""
        return next(self._trials[run_id], None)

    def took(self) -> None:
        """Count a trial for the run whose turn it was, and for its person."""
        person = self._people.next()
        if person is not None:
            self._runs[person].took()
            self._people.took()
            self._load.of_person[person] += 1

    def leave(self) -> None:
        """Take the run whose turn it was out of the turns."""
        person = self._people.next()
        if person is not None:
            self._runs[person].leave()
            self._join(person, self._people.leave())


class _Left:
    """What the host has left, and less with every trial that is let in."""

    def __init__(self, room: Room) -> None:
        self._cpus, self._memory, self._idle = room.cpus, room.memory_mb, room.idle
        self._trials = room.trials

    def take(self, row: Any) -> bool:
        """Return whether the trial fits; if so, its share is gone."""
        cpus, memory = row.cpus or 0.0, row.memory_mb or 0
        full = cpus > self._cpus or memory > self._memory or self._trials < 1
        if full and not self._idle:
            return False
        self._idle = False
        self._trials -= 1
        self._cpus -= cpus
        self._memory -= memory
        return True


def _leased(run_id: str, row: Any, tick: Tick) -> Leased:
    return Leased(
        row.id,
        run_id,
        row.task_id,
        row.k,
        row.digest,
        row.attempts + 1,
        row.failures,
        row.epoch + 1,
        row.cpus or 0.0,
        row.memory_mb or 0,
        row.saved,
        tick.now,
    )


# Who works on which trial: leases taken, given back, and recovered from the dead.


_OF_RUN = (
    *(
        "id",
        "state",
        "concurrency",
        "n_pending",
        "n_skipped",
        "priority",
        "created_at",
        "leased_at",
        "org_id",
    ),
    *(
        "started_by",
        "passes",
        "max_cost",
        "cost_sum",
        "abort_after",
        "errors_before",
        "n_finished",
        "n_error",
    ),
    *("e_infrastructure", "job_id", "key_id", "benchmark", "dataset", "in_turn"),
)
_OPEN_COLUMNS = (
    *(run.c[name] for name in _OF_RUN),
    (run.c.n_building + run.c.n_in_progress + run.c.n_evaluating).label("active"),
    (run.c.n_stopped + run.c.n_finished + run.c.n_error).label("ended"),
    job.c.concurrency.label("pool"),
    api_key.c.max_concurrency.label("key_limit"),
    job.c.ends_at,
    job.c.stop_rule.is_not(None).label("ruled"),
    exists()
    .where(regrade.c.run_id == run.c.id, regrade.c.number > 0, regrade.c.finished_at.is_(None))
    .label("regrading"),
)
_OPEN = (
    select(*_OPEN_COLUMNS)
    .select_from(
        run.outerjoin(job, job.c.id == run.c.job_id).outerjoin(api_key, api_key.c.id == run.c.key_id)
    )
    .where(
        run.c.state.in_(OPEN_RUNS),
        run.c.bound.is_not_distinct_from(bindparam("bound", type_=run.c.bound.type)),
    )
)


_LOCKED = (
    _OPEN.where(
        or_(
            run.c.id.in_(bindparam("runs", expanding=True)),
            run.c.job_id.in_(bindparam("jobs", expanding=True)),
            run.c.key_id.in_(bindparam("keys", expanding=True)),
        ),
        ~exists().where(executor.c.id == bindparam("executor"), executor.c.expires_at <= CLOCK),
    )
    .order_by(run.c.id)
    .with_for_update(key_share=True, of=run)
)
"""Of several executors one at a time counts what a run has in hand; none whose own lease has run out."""


_OF_TRIAL = ("id", "task_id", "k", "digest", "attempts", "failures", "epoch", "cpus", "memory_mb", "saved")
_READY = (
    select(*(trial.c[name] for name in _OF_TRIAL))
    .where(
        trial.c.run_id == bindparam("run"),
        trial.c.state == TrialState.PENDING.value,
        or_(trial.c.not_before.is_(None), trial.c.not_before <= bindparam("now")),
        trial.c.position < bindparam("before"),
    )
    .order_by(trial.c.position)
    .limit(bindparam("most"))
)
_earlier = trial.alias("earlier")
_IN_TURN = _READY.where(
    ~exists().where(
        _earlier.c.run_id == trial.c.run_id,
        _earlier.c.task_id == trial.c.task_id,
        _earlier.c.k < trial.c.k,
        _earlier.c.state.not_in([state.value for state in TrialState if state.terminal]),
    )
)
"""The same where a task's trials follow one another: only those before which nothing is left to do."""


_FIRST_OPEN = select(func.min(trial.c.position)).where(
    trial.c.run_id == bindparam("run"),
    trial.c.state.in_([state.value for state in TrialState if not state.terminal]),
)


_NEXT_RETRY = select(func.min(trial.c.not_before)).where(
    trial.c.run_id == bindparam("run"),
    trial.c.state == TrialState.PENDING.value,
    trial.c.not_before > bindparam("now"),  # one that is due already waits for room, not for a time
)


_TAKE = ForEach(
    {
        "b_id": trial.c.id.type,
        "b_executor": trial.c.executor_id.type,
        "b_epoch": trial.c.epoch.type,
        "b_number": trial.c.attempts.type,
        "b_now": trial.c.started_at.type,
        "b_version": trial.c.version.type,
    },
    lambda given: (
        update(trial)
        .where(trial.c.id == given["b_id"], trial.c.state == TrialState.PENDING.value)
        .values(
            state=TrialState.BUILDING.value,
            executor_id=given["b_executor"],
            epoch=given["b_epoch"],
            attempts=given["b_number"],
            not_before=None,
            started_at=given["b_now"],
            finished_at=None,
            version=given["b_version"],
        )
    ),
)
_SERVED = (
    update(run)
    .where(run.c.id.in_(bindparam("b_runs", expanding=True)))
    .values(
        started_at=func.coalesce(run.c.started_at, bindparam("b_now")),
        working_since=func.coalesce(run.c.working_since, bindparam("b_now")),
        leased_at=bindparam("b_now"),
    )
)
_BEGIN = ForEach.insert(
    attempt, "trial_id", "number", "executor_id", "epoch", "phase", "started_at", "passage", "grading"
)


def lease(connection: Connection, tick: Tick) -> TickResult:
    """Take as many pending trials as runs' concurrency and the host's room allow, fairly among runs."""
    ready: dict[str, Sequence[Any]] = {}
    retries: list[str] = []
    skewed = skew(connection)
    due = tick.now + skewed
    runs = connection.execute(_OPEN, {"bound": tick.bound}).all()
    stopped: set[str] = set()
    wanted = _locked(connection, _with_siblings(runs, tick, due), tick)
    pools = pools_of(wanted, tick)
    before = _in_step(connection, wanted)
    for row in sorted(wanted, key=serving_order):
        if _is_over(row, due):
            if _is_hopeless(row):
                abort(connection, row)
            _stop_pending(connection, row.id, tick.now)
            stopped.add(row.id)
        elif (slots := min(_slots(row, tick), left_in(pools[row.id]))) > 0:
            query = _IN_TURN if row.in_turn else _READY
            asked = {"run": row.id, "now": due, "most": slots, "before": before.get(row.id, LARGEST)}
            found = connection.execute(query, asked).all()
            if found:
                ready[row.id] = found
            if len(found) < min(slots, row.n_pending):
                retries.append(row.id)
    # Runs that cannot begin anything more count, too: they are in their person's hand.
    now_open = {row.id: row for row in (*runs, *wanted)}
    leased = choose(ready, tick, pools, load_of(now_open.values(), tick))
    if leased:
        _take(connection, leased, tick, {row.id: row.passes for row in wanted})
    waits = [connection.execute(_NEXT_RETRY, {"run": run_id, "now": due}).scalar() for run_id in retries]
    wake_at = min((at - skewed for at in waits if at is not None), default=None)
    done = {row.id for row in runs if _is_done(row, tick, stopped)}
    ended = [row.id for row in runs if row.id in done and _may_conclude(row, runs, done)]
    ruled = sorted({row.job_id for row in runs if row.ruled})
    return TickResult(leased, ended, [row.id for row in sorted(runs, key=serving_order)], wake_at, ruled)


def _in_step(connection: Connection, rows: Sequence[Any]) -> dict[str, int]:
    """Return the position up to which runs may begin trials whose job stops when it is decided.

    Only tasks that ended on both sides decide anything. A run that is ahead of the slowest one of its job on
    the same tasks by all that runs at once waits for it: its trials may turn out not to be needed.
    """
    first: dict[tuple[str, str, str], int] = {}
    of_run = {row.id: (row.job_id, row.benchmark, row.dataset) for row in rows if row.ruled and row.pool}
    for row in rows:
        if row.id in of_run and row.state == RunState.IN_PROGRESS and not row.regrading:
            position = connection.execute(_FIRST_OPEN, {"run": row.id}).scalar()
            if position is not None:
                first[of_run[row.id]] = min(position, first.get(of_run[row.id], LARGEST))
    return {row.id: first[of_run[row.id]] + row.pool for row in rows if of_run.get(row.id) in first}


def serving_order(row: Any) -> tuple[int, float, str]:
    """Order runs by priority, and equals by age."""
    return row.priority, row.created_at, row.id


def _locked(connection: Connection, rows: Sequence[Any], tick: Tick) -> Sequence[Any]:
    """These runs as they are now, and stay until this transaction ends; on SQLite they do anyway."""
    if not rows or connection.dialect.name == "sqlite":
        return rows
    # With job and key: a run that was just added to them shares their pools as well.
    jobs = sorted({row.job_id for row in rows if row.job_id})
    lock_jobs(connection, jobs)
    names = {
        "runs": [row.id for row in rows],
        "jobs": jobs,
        "keys": sorted({row.key_id for row in rows if row.key_limit is not None}),
        "executor": tick.executor_id,
        "bound": tick.bound,
    }
    return connection.execute(_LOCKED, names).all()


def _with_siblings(rows: Sequence[Any], tick: Tick, now: float) -> list[Any]:
    """Runs of which something may begin or is to be stopped, and all that share a pool with them."""
    found = [row for row in rows if _is_over(row, now) or _slots(row, tick)]
    while True:
        ids = {row.id for row in found}
        jobs = {row.job_id for row in found if row.job_id}
        keys = {row.key_id for row in found if row.key_limit is not None}
        wider = [row for row in rows if row.id in ids or row.job_id in jobs or row.key_id in keys]
        if len(wider) == len(found):
            return wider
        found = wider


def _is_over(row: Any, now: float) -> bool:
    """Nothing more of it may begin: it was stopped, has cost what it may, its job's time is over, or all that
    ended so far failed.

    Grading kept work again runs no agent: none of these ends it.
    """
    spent = row.max_cost is not None and row.cost_sum >= row.max_cost
    late = row.ends_at is not None and row.ends_at <= now
    limited = (spent or late or _is_hopeless(row)) and not row.regrading
    return bool(row.n_pending) and (row.state == RunState.STOPPING or limited)


def _is_hopeless(row: Any) -> bool:
    """Return whether so many trials ended in errors, and none otherwise, that the others will, too.

    Failures of the infrastructure are none of these: they go away. Each error was tried again as often as
    that may help before it ended its trial.
    """
    if not row.abort_after or row.n_finished or row.e_infrastructure or row.state != RunState.IN_PROGRESS:
        return False
    planned = row.n_pending + row.active + row.ended
    return bool(row.n_error - row.errors_before >= max(row.abort_after, math.ceil(ABORT_SHARE * planned)))


def abort(connection: Connection, row: Any) -> None:
    """Let a run stop by itself: nothing of it begins any more, and why is kept with it.

    In the transaction that sees it: whoever is killed before or after it leaves the same.
    """
    alike = (
        select(trial.c.category, trial.c.cause, func.count().label("times"))
        .where(trial.c.run_id == row.id, trial.c.state == TrialState.ERROR.value)
        .group_by(trial.c.category, trial.c.cause)
        .order_by(func.count().desc(), trial.c.category, trial.c.cause)
    )
    kinds = connection.execute(alike).all()
    most = kinds[0]
    which = "all" if len(kinds) == 1 else f"{most.times} of {row.n_error}"
    reason = (
        f"stopped by itself: the first {row.n_error} trials that ended all failed, {which} with "
        f"{most.category}/{most.cause}; `valk run errors {row.id[:8]}` says why, "
        f"`valk run resume {row.id[:8]}` goes on"
    )
    connection.execute(
        update(run)
        .where(run.c.id == row.id)
        .values(state=RunState.STOPPING.value, stop_reason=reason, version=run.c.version + 1)
    )


def _slots(row: Any, tick: Tick) -> int:
    """Return how many more of its trials may begin here."""
    if row.state != RunState.IN_PROGRESS or not row.n_pending or row.id not in tick.ready:
        return 0
    return max(0, int(row.concurrency) - in_hand(row, tick))


def _is_done(row: Any, tick: Tick, stopped: Collection[str]) -> bool:
    return (row.n_pending == 0 or row.id in stopped) and in_hand(row, tick) == 0


def _may_conclude(row: Any, rows: Sequence[Any], done: Collection[str]) -> bool:
    """Return whether nothing can change its score any more.

    Where a job stops when it is decided, a run whose trials have all ended waits for that: the decision may
    set its last ones aside.
    """
    if not row.ruled or row.n_skipped or row.regrading or row.state != RunState.IN_PROGRESS:
        return True
    return all(other.id in done for other in rows if other.job_id == row.job_id)


def _stop_pending(connection: Connection, run_id: str, now: float) -> None:
    """Stop what came back to the queue after the run was stopped: a retry, a trial of a dead executor."""
    held = connection.execute(
        select(trial.c.id, trial.c.run_id, trial.c.state, trial.c.attempts).where(
            trial.c.run_id == run_id, trial.c.state == TrialState.PENDING.value
        )
    ).all()
    give_back(connection, held, now, Outcome.STOPPED, TrialState.STOPPED)


def _take(connection: Connection, leased: Sequence[Leased], tick: Tick, passes: Mapping[str, int]) -> None:
    per_run = Counter(one.run_id for one in leased)
    deltas = {run_id: {"n_pending": -n, "n_building": n} for run_id, n in per_run.items()}
    versions = count(connection, deltas)
    taken = _TAKE.execute(
        connection,
        [
            {
                "b_id": one.trial_id,
                "b_executor": tick.executor_id,
                "b_epoch": one.epoch,
                "b_number": one.number,
                "b_now": tick.now,
                "b_version": versions[one.run_id],
            }
            for one in leased
        ],
    )
    require_all(taken, len(leased))
    _BEGIN.execute(
        connection,
        [
            {
                "trial_id": one.trial_id,
                "number": one.number,
                "executor_id": tick.executor_id,
                "epoch": one.epoch,
                "phase": TrialState.BUILDING.value,
                "started_at": tick.now,
                "passage": passes[one.run_id],
                "grading": one.grading,
            }
            for one in leased
        ],
    )
    connection.execute(_SERVED, {"b_runs": list(per_run), "b_now": tick.now})


def data_version(connection: Connection) -> int:
    """A number that differs when another connection may have written in between.

    PostgreSQL has none: there it differs twice a second.
    """
    if connection.dialect.name != "sqlite":
        return int(time.monotonic() * 2)
    return int(connection.exec_driver_sql("PRAGMA data_version").scalar() or 0)


def state_of(connection: Connection, leased: Leased) -> TrialState | None:
    """The phase a leased trial is in; None when it is no longer ours."""
    found = connection.execute(
        select(trial.c.state).where(trial.c.id == leased.trial_id, trial.c.epoch == leased.epoch)
    ).scalar()
    return TrialState(found) if found else None

"""Changes of leased trials, written by one thread, many to a transaction; stale leases are refused."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    and_,
    bindparam,
    case,
    func,
    not_,
    null,
    select,
    update,
)

from sandboxes.retry import Backoff, Retries
from valkyrie.domain import Category, ExitReason, Json, Outcome, TrialState
from valkyrie.errors import LeaseLostError, StoreError
from valkyrie.store import database as troubles
from valkyrie.store.counters import add_grade, count, lock_runs, spending
from valkyrie.store.database import LONGEST_OUTAGE_S, Database
from valkyrie.store.executors import StaleLeaseError, require_all
from valkyrie.store.leases import Leased
from valkyrie.store.notifications import plan_progress_of
from valkyrie.store.schema import ERROR_COUNTERS, STATE_COUNTERS, ForEach, Given, Types, attempt, skew, trial


@dataclass(frozen=True, slots=True)
class Advance:
    """The trial enters its next phase."""

    leased: Leased
    before: TrialState
    after: TrialState


@dataclass(frozen=True, slots=True)
class Save:
    """Grading got so far that a later attempt can go on from here."""

    leased: Leased
    saved: Json


@dataclass(frozen=True, slots=True)
class Finish:
    """The attempt ended; `after` is where that leaves the trial (PENDING: it will be tried again)."""

    leased: Leased
    before: TrialState
    after: TrialState
    outcome: Outcome
    at: float
    category: Category | None = None
    cause: str | None = None
    message: str | None = None
    exit_code: int | None = None
    exit_reason: ExitReason | None = None
    score: float | None = None
    passed: bool | None = None
    result: Json | None = None
    confirmed: bool | None = None
    score_confirmed: float | None = None
    evidence: Json | None = None
    """How the score was verified (`domain.Grade`)."""
    timing: Mapping[str, float] = field(default_factory=dict)
    cost: float | None = None
    """US dollars, as the agent reported them."""
    usage: Json | None = None
    """Tokens, as the agent's log says."""
    told: bool = False
    """Someone wants to be told how far the run has come."""
    not_before: float | None = None


def _ours(given: Given) -> ColumnElement[bool]:
    """The trial as its lease left it.

    The state before is looked at too: what was committed just before the connection broke is not counted
    twice when it is written again.
    """
    return and_(
        trial.c.id == given["b_id"], trial.c.epoch == given["b_epoch"], trial.c.state == given["b_before"]
    )


_LEASE: Types = {
    "b_id": trial.c.id.type,
    "b_epoch": trial.c.epoch.type,
    "b_before": trial.c.state.type,
    "b_state": trial.c.state.type,
    "b_version": trial.c.version.type,
}
_ENTER = ForEach(
    _LEASE,
    lambda given: (
        update(trial).where(_ours(given)).values(state=given["b_state"], version=given["b_version"])
    ),
)


_SAVE = (
    update(trial)
    .where(trial.c.id == bindparam("b_id"), trial.c.epoch == bindparam("b_epoch"))
    .values(saved=bindparam("b_saved"))
)


def _unused(given: Mapping[str, ColumnElement[Any]]) -> ColumnElement[bool]:
    return and_(not_(given["b_used"]), trial.c.saved.is_not(None))


_FOUND = (
    *("score", "passed", "confirmed", "score_confirmed", "evidence", "category", "cause", "message"),
    *("exit_code", "exit_reason", "result", "timing", "usage"),
)
"""What an attempt ends with; its trial keeps that of the last one."""
_OF_TRIAL = (*_FOUND, "failures", "not_before", "finished_at")
_OF_ATTEMPT = (*_FOUND, "cost", "phase", "outcome", "finished_at")
_END_TRIAL = ForEach(
    {
        **_LEASE,
        "b_costed": Boolean(),
        "b_cost": trial.c.cost.type,
        "b_graded": Boolean(),
        "b_used": Boolean(),
        **{f"b_{name}": trial.c[name].type for name in _OF_TRIAL},
    },
    lambda given: (
        update(trial)
        .where(_ours(given))
        .values(
            state=given["b_state"],
            version=given["b_version"],
            executor_id=None,
            cost=case(
                (given["b_costed"], func.coalesce(trial.c.cost, 0.0) + given["b_cost"]), else_=trial.c.cost
            ),
            saved=case((given["b_graded"], null()), else_=trial.c.saved),
            **{name: given[f"b_{name}"] for name in _OF_TRIAL}
            # Grading that went on from what was saved ran no agent: what the agent used stays.
            | {"usage": case((_unused(given), trial.c.usage), else_=given["b_usage"])},
        )
    ),
)


_END_ATTEMPT = ForEach(
    {
        "b_id": attempt.c.trial_id.type,
        "b_number": attempt.c.number.type,
        **{f"b_{name}": attempt.c[name].type for name in _OF_ATTEMPT},
    },
    lambda given: (
        update(attempt)
        .where(attempt.c.trial_id == given["b_id"], attempt.c.number == given["b_number"])
        .values({name: given[f"b_{name}"] for name in _OF_ATTEMPT})
    ),
)


Change = Advance | Save | Finish


def record(connection: Connection, changes: Sequence[Change]) -> None:
    """Write a group of phase changes, savings and endings; StaleLeaseError refuses the group."""
    advances = [one for one in changes if isinstance(one, Advance)]
    savings = [one for one in changes if isinstance(one, Save)]
    endings = [one for one in changes if isinstance(one, Finish)]
    if savings:
        lock_runs(connection, (one.leased.run_id for one in changes))
    versions = count(connection, _deltas(changes))
    if advances:
        rows = [_advance_row(one, versions) for one in advances]
        require_all(_ENTER.execute(connection, rows), len(rows))
    for one in savings:
        values = {"b_id": one.leased.trial_id, "b_epoch": one.leased.epoch, "b_saved": one.saved}
        require_all(connection.execute(_SAVE, values).rowcount, 1)
    if endings:
        ahead = skew(connection) if any(one.not_before for one in endings) else 0.0
        rows = [_ending_row(one, versions, ahead) for one in endings]
        require_all(_END_TRIAL.execute(connection, rows), len(rows))
        _END_ATTEMPT.execute(connection, rows)
        if told := {one.leased.run_id for one in endings if one.told}:
            plan_progress_of(connection, told, max(one.at for one in endings))


def is_written(connection: Connection, change: Change) -> bool:
    """Return whether a change that is refused now was written before: its commit's answer got lost."""
    leased = change.leased
    if isinstance(change, Finish):
        statement = select(attempt.c.number).where(
            attempt.c.trial_id == leased.trial_id,
            attempt.c.number == leased.number,
            attempt.c.epoch == leased.epoch,
            attempt.c.outcome == change.outcome.value,
            attempt.c.finished_at == change.at,
        )
    else:
        statement = select(trial.c.id).where(trial.c.id == leased.trial_id, trial.c.epoch == leased.epoch)
        if isinstance(change, Advance):
            statement = statement.where(trial.c.state == change.after.value)
    return connection.execute(statement).scalar() is not None


def _advance_row(one: Advance, versions: Mapping[str, int]) -> dict[str, Any]:
    return {
        "b_id": one.leased.trial_id,
        "b_epoch": one.leased.epoch,
        "b_before": one.before.value,
        "b_state": one.after.value,
        "b_version": versions.get(one.leased.run_id, 0),
    }


def _ending_row(one: Finish, versions: Mapping[str, int], ahead: float) -> dict[str, Any]:
    retried = one.after is TrialState.PENDING
    return {
        "b_id": one.leased.trial_id,
        "b_epoch": one.leased.epoch,
        "b_number": one.leased.number,
        "b_before": one.before.value,
        "b_state": one.after.value,
        "b_version": versions.get(one.leased.run_id, 0),
        "b_cost": one.cost,
        "b_costed": one.cost is not None,
        "b_failures": one.leased.failures + (1 if one.outcome is Outcome.FAILED else 0),
        "b_not_before": one.not_before + ahead if one.not_before else None,
        "b_finished_at": one.at,
        "b_graded": one.outcome is Outcome.GRADED,
        "b_phase": one.before.value,
        "b_outcome": one.outcome.value,
        "b_category": one.category.value if one.category else None,
        "b_cause": one.cause,
        "b_message": one.message,
        "b_exit_code": one.exit_code,
        "b_exit_reason": one.exit_reason.value if one.exit_reason else None,
        "b_score": None if retried else one.score,
        "b_passed": None if retried else one.passed,
        "b_result": None if retried else one.result,
        "b_confirmed": None if retried else one.confirmed,
        "b_score_confirmed": None if retried else one.score_confirmed,
        "b_evidence": one.evidence,
        "b_timing": dict(one.timing),
        "b_usage": one.usage,
        "b_used": one.usage is not None,
    }


def _deltas(changes: Iterable[Change]) -> dict[str, dict[str, float]]:
    runs: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for one in changes:
        if isinstance(one, Save):
            continue
        deltas = runs[one.leased.run_id]
        deltas[STATE_COUNTERS[one.before]] -= 1
        deltas[STATE_COUNTERS[one.after]] += 1
        if isinstance(one, Finish):
            _check_finite(one)
            for name, value in spending(one.cost, one.usage).items():
                deltas[name] += value
            if one.after is TrialState.FINISHED:
                add_grade(deltas, one, +1)
            elif one.after is TrialState.ERROR and one.category:
                deltas[ERROR_COUNTERS[one.category]] += 1
    return runs


def _check_finite(one: Finish) -> None:
    """One that is not would spoil its run's sums for ever."""
    for name, value in (("score", one.score), ("score", one.score_confirmed), ("cost", one.cost)):
        if value is not None and not math.isfinite(value):
            raise ValueError(f"the {name} is {value}, not a finite number")


# One thread writes; many trials' changes share a transaction, and each caller awaits its own commit.

T = TypeVar("T")

GATHER_S = 0.002
"""How long a commit of few changes waits for more, while commits follow one another."""
BUSY_WITHIN_S = 0.01
FEW = 4
BACKOFF = Backoff(first_s=0.05, longest_s=5.0)
AT_THE_END_S = 15.0
"""How long a database is waited for when nothing but the last writes is left."""
SAID_AFTER_S = 1.0


@dataclass(slots=True)
class _Call:
    future: asyncio.Future[Any]
    change: Change | None = None
    work: Callable[[Connection], Any] | None = None


_Answers = list[tuple[_Call, Any]]


class WriteOutage:
    """The waits of one write for a database that is away or locked; the log hears of long ones."""

    def __init__(self, seconds: float, place: str) -> None:
        self._seconds = seconds
        self._place = place
        self._retries = Retries(BACKOFF)
        self._said = False

    def wait(self, error: Exception, ending: threading.Event) -> bool:
        """Wait a while; return False when it has been long enough. `ending` shortens it."""
        limit = min(self._seconds, AT_THE_END_S) if ending.is_set() else self._seconds
        delay = self._retries.next_delay(within_s=limit)
        if delay is None:
            return False
        if not self._said and self._retries.lasted_s > SAID_AFTER_S:
            self._said = True
            log(f"{self._place} cannot be written ({troubles.first_line(error)}); trying again")
        if troubles.clashed(error):
            delay = BACKOFF.delay(1)
        if ending.is_set():
            time.sleep(delay)
        else:
            ending.wait(delay)
        return True

    def end(self) -> None:
        """Say that it was written, where the log knows that it could not be."""
        if self._said:
            log(f"{self._place} can be written again after {self._retries.lasted_s:.0f} s")


class Writer:
    """Owns the one connection that writes.

    A database that is away or locked is waited for, and what was being written is written again. When the
    writer dies, everyone who waits on it fails with its error, and so does every later call.
    """

    def __init__(self, database: Database, patience: float = LONGEST_OUTAGE_S) -> None:
        self._database = database
        self._patience = patience
        self._connection: Connection | None = None
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Call] = deque()
        self._ready = threading.Event()
        self._closing = threading.Event()
        self._broken: StoreError | None = None
        self._batch: list[_Call] = []
        self._committed_at = 0.0
        self._thread = threading.Thread(target=self._main, name="store-writer", daemon=True)
        self._thread.start()

    @property
    def broken(self) -> bool:
        """Writing has failed for good."""
        return self._broken is not None

    async def record(self, change: Change) -> None:
        """Commit a phase change, a saving or an ending; LeaseLostError when the trial is no longer ours."""
        await self._submit(_Call(self._loop.create_future(), change=change))

    async def call(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction, after the changes that were queued with it.

        It may be run again, also after it was committed (when the answer was lost with the connection): it
        may change nothing but the database, and must come to the same when it finds its own work done.
        """
        result: T = await self._submit(_Call(self._loop.create_future(), work=work))
        return result

    async def close(self) -> None:
        """Write what is queued, then end the thread."""
        self._closing.set()
        self._ready.set()
        await asyncio.to_thread(self._thread.join)

    async def _submit(self, call: _Call) -> Any:
        if self._broken:
            raise self._broken
        if self._closing.is_set():
            raise StoreError("The store is closed.", cause="store_closed")
        self._queue.append(call)
        self._ready.set()
        if self._broken:
            # It broke between the two looks: nobody may be left to answer.
            raise self._broken
        return await call.future

    def _main(self) -> None:
        try:
            while True:
                self._ready.wait()
                self._ready.clear()
                while self._queue:
                    self._gather()
                    self._batch = [self._queue.popleft() for _ in range(min(len(self._queue), 2000))]
                    for unit in self._units(self._batch):
                        answers = self._surely(unit)
                        self._committed_at = time.monotonic()
                        self._loop.call_soon_threadsafe(_resolve, answers)
                if self._closing.is_set():
                    return
        except Exception as error:  # noqa: BLE001 - whatever ends this thread must reach everyone who waits
            self._fail(error)
        finally:
            self._disconnect()

    def _gather(self) -> None:
        """Under load, wait a moment so that a few more changes share the commit: each one costs a sync."""
        small = len(self._batch) < FEW and len(self._queue) < FEW
        if small and time.monotonic() - self._committed_at < BUSY_WITHIN_S:
            time.sleep(GATHER_S)

    def _units(self, batch: list[_Call]) -> Iterator[list[_Call]]:
        """Yield what shares a transaction. Where writers work side by side, each call locks its runs in
        order, and none may have locks already."""
        if not self._database.own_transactions:
            yield batch
            return
        if changes := [call for call in batch if call.change is not None]:
            yield changes
        yield from ([call] for call in batch if call.work is not None)

    def _surely(self, unit: list[_Call], *, again: bool = False) -> _Answers:
        """Write it, and while the database is away or locked, wait and write it again."""
        outage = WriteOutage(self._patience, self._database.address.place)
        while True:
            try:
                answers = self._write(unit, again=again)
            except Exception as error:
                self._disconnect()
                if not troubles.passing(error) or not outage.wait(error, self._closing):
                    raise
                # Unless it clashed, what it wrote may have been committed all the same.
                again = again or not troubles.clashed(error)
            else:
                outage.end()
                return answers

    def _write(self, unit: list[_Call], *, again: bool) -> _Answers:
        """One transaction for all; if one of them is refused, each gets its own.

        What a caller wrote may be refused for any reason (a plugin's grade that is no JSON, a number too
        large); only the store's own failure ends the writer.
        """
        self._database.check_there()
        connection = self._connected()
        try:
            with connection.begin():
                return _apply(connection, unit)
        except Exception as error:
            if troubles.of_the_store(error):
                raise
            if len(unit) > 1:
                return [answer for call in unit for answer in self._surely([call], again=again)]
            if isinstance(error, StaleLeaseError):
                return [(unit[0], self._late(unit[0], again=again))]
            return [(unit[0], error)]

    def _late(self, call: _Call, *, again: bool) -> LeaseLostError | None:
        """The answer to a change that another lease has overtaken; None if it had been written before."""
        if call.change is None:
            return LeaseLostError("Another lease is in force.")
        connection = self._connected()
        if again:
            with connection.begin():
                if is_written(connection, call.change):
                    return None
        lost = call.change.leased
        refused = LeaseLostError(
            f"a late write of trial {lost.task_id}/{lost.k} (run {lost.run_id[:8]}, attempt {lost.number}) "
            "was refused: another lease is in force"
        )
        log(str(refused))
        return refused

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._database.writer.connect()
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _fail(self, error: Exception) -> None:
        address = self._database.address
        explained = troubles.explain(error, address) if troubles.of_the_store(error) else error
        if not isinstance(explained, StoreError):
            explained = StoreError(f"Writing to {address.place} failed: {error!r}")
        self._broken = explained
        self._broken.__cause__ = error
        waiting = [*self._batch, *self._queue]
        self._loop.call_soon_threadsafe(_resolve, [(call, self._broken) for call in waiting])


def _apply(connection: Connection, unit: list[_Call]) -> _Answers:
    changes = [call.change for call in unit if call.change is not None]
    if changes:
        record(connection, changes)
    return [(call, call.work(connection) if call.work else None) for call in unit]


def _resolve(answers: _Answers) -> None:
    for call, answer in answers:
        if call.future.done():
            continue
        if isinstance(answer, Exception):
            call.future.set_exception(answer)
        else:
            call.future.set_result(answer)


def log(text: str) -> None:
    """Write one line to the executor's log."""
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
    sys.stderr.flush()

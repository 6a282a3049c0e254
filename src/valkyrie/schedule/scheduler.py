"""How much of this machine trials may have, and how much is in use."""

from __future__ import annotations

import asyncio
import math
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from sandboxes.protocol import host_memory_mb, raise_open_files
from valkyrie.domain import Category, Json, Outcome, TrialState
from valkyrie.errors import LeaseLostError, StoreError
from valkyrie.schedule.policy import backoff, policy_for
from valkyrie.store import executors, leases
from valkyrie.store.journal import Advance, Finish, Save, Writer, log
from valkyrie.store.leases import Leased, Room, Tick, TickResult
from valkyrie.trial.attempt import AttemptEnding, AttemptFailure, classify, failure_of
from valkyrie.trial.context import RunContext
from valkyrie.trial.lifecycle import run_attempt

if TYPE_CHECKING:
    from valkyrie.store import Connection


MEMORY_SHARE = 0.9
FILES_PER_TRIAL = 16
"""Open at once for one trial at most: its sandbox, pipes, log, network and connections."""
FILES_OF_OUR_OWN = 200


def trials_by_files(limit: int) -> int:
    """Return how many trials at once a limit on open files allows."""
    return max(1, (limit - FILES_OF_OUR_OWN) // FILES_PER_TRIAL)


def host_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(slots=True)
class HostRoom:
    """Room for trials, by what their tasks declare."""

    cpus: float
    memory_mb: float
    trials: int = sys.maxsize
    """So many at once have files enough."""
    used_cpus: float = 0.0
    used_memory_mb: float = 0.0
    running: int = 0

    @classmethod
    def measure(cls, cpu_overcommit: float) -> HostRoom:
        """This machine's. Agents mostly wait for a model, so cpus may be promised several times over;
        memory never is."""
        return cls(
            cpus=host_cpus() * cpu_overcommit,
            memory_mb=host_memory_mb() * MEMORY_SHARE,
            trials=trials_by_files(raise_open_files()),
        )

    def take(self, leased: Leased) -> None:
        self.used_cpus += leased.cpus
        self.used_memory_mb += leased.memory_mb
        self.running += 1

    def give(self, leased: Leased) -> None:
        self.used_cpus -= leased.cpus
        self.used_memory_mb -= leased.memory_mb
        self.running -= 1

    def left(self) -> Room:
        return Room(
            self.cpus - self.used_cpus,
            self.memory_mb - self.used_memory_mb,
            idle=self.running == 0,
            trials=self.trials - self.running,
        )


# Which trial runs next: leases as many as fit, runs them, writes how they ended, and looks again.

LOOK_EVERY_S = 1.0
TOLD_EVERY_S = 5.0
"""How often an executor's log says what it took and gave back."""
_ENDS = {TrialState.FINISHED: "graded", TrialState.ERROR: "failed", TrialState.PENDING: "to try again"}
"""How often another process's changes are looked for when nobody wakes us."""


REGRADED = ("regrade", "timing", "earlier")
"""What an attempt that grades kept work again was told, and the next one must be told as well."""


class RunContexts(Protocol):
    """Gives each run its context."""

    def ready(self) -> Collection[str]:
        """Runs whose context is open."""
        ...

    def waiting(self) -> Collection[str]:
        """Runs that wait for something only a person can give; their note says what."""
        ...

    def __getitem__(self, run_id: str) -> RunContext: ...

    async def open(self, run_id: str) -> None:
        """Make a run ready, or waiting, or end it in ERROR."""
        ...

    async def conclude(self, run_id: str) -> None:
        """The run's last trial ended: write its score, close its context."""
        ...


@dataclass(slots=True)
class _Work:
    leased: Leased
    task: asyncio.Task[None]
    ending: bool = False
    """Its end is being committed; the lease decides whether it may be, not we."""


class Activity:
    """What an executor took and gave back, for its log: a line for each run, not more often than is read."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}
        self._told_at = -math.inf

    def add(self, run_id: str, what: str) -> None:
        """Count one trial of a run that was taken, ended so, or was given back."""
        self._counts.setdefault(run_id, Counter())[what] += 1

    def lines(self, now: float, in_hand: Mapping[str, int]) -> Iterator[str]:
        """Tell what was not told yet, unless something was told just now."""
        if not self._counts or now - self._told_at < TOLD_EVERY_S:
            return
        counts, self._counts, self._told_at = self._counts, {}, now
        for run_id, found in counts.items():
            said = ", ".join(f"{what} {count}" for what, count in found.items())
            yield f"run {run_id[:8]}: {said}; {in_hand.get(run_id, 0)} in hand"


class Scheduler:
    """Works off every open run of a store, until drained or nothing is left for a while."""

    def __init__(
        self,
        executor_id: str,
        writer: Writer,
        open_runs: RunContexts,
        room: HostRoom,
        *,
        bound: str | None = None,
    ) -> None:
        self._executor_id = executor_id
        self._writer = writer
        self._open_runs = open_runs
        self._room = room
        self._bound = bound
        self._rng = random.Random()  # noqa: S311 - jitter, not secrets
        self._wake = asyncio.Event()
        # By trial and lease: what was taken from us may still be ending here when the trial is ours again.
        self._work: dict[tuple[int, int], _Work] = {}
        self._active: Counter[str] = Counter()
        self._activity = Activity()
        self._chores: dict[str, asyncio.Task[None]] = {}
        self._data_version = -1
        self._busy_at = time.monotonic()
        self.draining = False
        self._leaving = False
        self.idle_exit_s: float | None = None
        """How long to stay without work; None is for ever."""
        self.on_ended: Callable[[Leased, Finish], None] = lambda _leased, _finish: None
        """Called when an attempt's end is committed."""
        self.decide: Callable[[Connection, Collection[str], float], bool] = lambda *_: False
        """Called with the jobs that stop when they are decided, before a look for work; whether trials were
        skipped."""
        self._ruled: Collection[str] = ()
        self.say: Callable[[str], None] = log
        """Where remarks go that belong to no trial's log."""

    @property
    def active(self) -> int:
        return len(self._work)

    def wake(self) -> None:
        self._wake.set()

    def drain(self) -> None:
        """Begin nothing more; `run` returns when what is in hand has ended."""
        self.draining = True
        self.wake()

    async def abandon(self) -> None:
        """End everything in hand at once; its trials go back to the queue."""
        self._leaving = True
        self.drain()
        await self._writer.call(
            lambda connection: executors.abandon(connection, self._executor_id, time.time())
        )
        for work in list(self._work.values()):
            work.task.cancel()

    async def run(self) -> None:
        """Work until drained, or without work for `idle_exit_s`."""
        self._busy_at = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                busy = bool(self._work)
                found = await self._look(group)
                self._tell()
                # What ended while we looked is seen only with the next look, and may be a run's last.
                if self.draining and not (busy or self._work or self._chores):
                    self._tell(last=True)
                    return
                if self._work or self._chores or set(found.open_runs) - set(self._open_runs.waiting()):
                    self._busy_at = time.monotonic()
                elif self._idle_for() >= (math.inf if self.idle_exit_s is None else self.idle_exit_s):
                    self._tell(last=True)
                    return
                await self._pause(found.wake_at)

    def _tell(self, *, last: bool = False) -> None:
        for line in self._activity.lines(math.inf if last else time.monotonic(), self._active):
            self.say(line)

    def _idle_for(self) -> float:
        return time.monotonic() - self._busy_at

    async def _look(self, group: asyncio.TaskGroup) -> TickResult:
        if self._ruled and not self._leaving:
            await self._decide(self._ruled)
        found, ours, self._data_version = await self._writer.call(self._tick)
        self._ruled = found.ruled
        if ours is not None:
            self._drop(ours)
        for leased in found.leased:
            self._begin(group, leased)
        for run_id in set(found.ended) - set(self._open_runs.waiting()):
            if not self._active[run_id]:
                self._chore(group, run_id, self._open_runs.conclude(run_id))
        if self.draining:
            return found
        for run_id in set(found.open_runs) - {
            *self._open_runs.ready(),
            *self._open_runs.waiting(),
            *found.ended,
        }:
            self._chore(group, run_id, self._open_runs.open(run_id))
        return found

    async def _decide(self, job_ids: Collection[str]) -> None:
        """Commit what is decided and the trials that skips; those in hand end with the look that follows."""
        for job_id in job_ids:
            # Each by itself: a transaction that has locked one job's runs may not lock another's.
            if await self._writer.call(partial(self._decide_one, job_id)):
                self._data_version = -1

    def _decide_one(self, job_id: str, connection: Connection) -> bool:
        return self.decide(connection, [job_id], time.time())

    def _tick(self, connection: Connection) -> tuple[TickResult, set[int] | None, int]:
        """On the writer's thread: lease what fits; after a foreign change, see what is still ours."""
        version = leases.data_version(connection)
        changed = version != self._data_version
        ours = executors.still_ours(connection, self._executor_id) if changed else None
        known = {trial_id for trial_id, _ in list(self._work)}
        if ours and ours - known:
            # A connection broke before we learned what we had leased.
            executors.give_back_unknown(connection, self._executor_id, known, time.time())
        if self._leaving:
            return TickResult([], [], [], None), ours, version
        here = self._open_runs.ready()
        ready = () if self.draining else here
        tick = Tick(self._executor_id, time.time(), self._room.left(), dict(self._active), ready, self._bound)
        found = leases.lease(connection, tick)
        if self.draining:
            # Nothing begins any more, but what ended in our hands is scored.
            found = replace(found, ended=[run_id for run_id in found.ended if run_id in here])
        return found, ours, version

    def _chore(self, group: asyncio.TaskGroup, run_id: str, work: Coroutine[Any, Any, None]) -> None:
        """Open or conclude a run beside the trials; one at a time for each run."""
        if run_id in self._chores:
            work.close()
            return

        async def do() -> None:
            try:
                await work
            finally:
                del self._chores[run_id]
                self._wake.set()

        self._chores[run_id] = group.create_task(do())

    def _begin(self, group: asyncio.TaskGroup, leased: Leased) -> None:
        self._room.take(leased)
        self._active[leased.run_id] += 1
        self._activity.add(leased.run_id, "took")
        work = _Work(leased, group.create_task(self._attempt(leased)))
        self._work[leased.trial_id, leased.epoch] = work

    def _drop(self, ours: set[int]) -> None:
        """Force stop, or another executor: end attempts whose trials were taken from us."""
        for (trial_id, _), work in self._work.items():
            # Once: a second blow would hit the attempt while it removes its sandbox. And not while its end is
            # committed: the look that found it gone may be the very one that shares its transaction.
            if trial_id not in ours and not (work.ending or work.task.cancelling()):
                leased = work.leased
                self.say(f"trial {leased.task_id!r} of run {leased.run_id} was taken from us; it ends here")
                work.task.cancel()

    async def _attempt(self, leased: Leased) -> None:
        try:
            await self._run(leased)
        except LeaseLostError as error:
            self._activity.add(leased.run_id, "lost")
            self.say(str(error))
        except asyncio.CancelledError:
            self._activity.add(
                leased.run_id, "gave back"
            )  # The trial was taken from us; whoever holds it now will end it.
        finally:
            self._end(leased)

    async def _run(self, leased: Leased) -> None:
        """Run an attempt and write how it ended. Only the store's own failure may end the other attempts."""
        try:
            context = self._open_runs[leased.run_id]
            ending = await run_attempt(leased, context, self)
            finish = self._finish(leased, ending, context.max_attempts)
            await self._commit_end(leased, replace(finish, told=True) if context.told else finish)
        except (LeaseLostError, StoreError):
            raise
        except Exception as error:  # noqa: BLE001 - an ending that cannot be written is an error of its own
            before = await self._writer.call(lambda connection: leases.state_of(connection, leased))
            if before is not None:
                ending = AttemptEnding(before, {}, failure=classify(error))
                await self._commit_end(leased, self._finish(leased, ending, None))

    async def _commit_end(self, leased: Leased, finish: Finish) -> None:
        """Write how an attempt ended, and tell of it; LeaseLostError when the trial is no longer ours."""
        self._work[leased.trial_id, leased.epoch].ending = True
        await self._writer.record(finish)
        self._activity.add(leased.run_id, _ENDS.get(finish.after, str(finish.after)))
        self.on_ended(leased, finish)

    async def enter(self, leased: Leased, before: TrialState, after: TrialState) -> None:
        """Commit that a trial enters its next phase (the attempts' journal)."""
        await self._writer.record(Advance(leased, before, after))

    async def save(self, leased: Leased, saved: Json) -> None:
        """Commit from what grading can go on (the attempts' journal)."""
        if leased.saved and leased.grading:
            saved = {**{name: leased.saved[name] for name in REGRADED if name in leased.saved}, **saved}
        await self._writer.record(Save(leased, saved))

    def _end(self, leased: Leased) -> None:
        del self._work[leased.trial_id, leased.epoch]
        self._room.give(leased)
        self._active[leased.run_id] -= 1
        if not self._active[leased.run_id]:
            del self._active[leased.run_id]
        self._wake.set()

    def _finish(self, leased: Leased, ending: AttemptEnding, max_attempts: int | None) -> Finish:
        """Return what an ending leaves the trial at: graded, in error, or pending again after a back-off."""
        now = time.time()
        finish = Finish(
            leased,
            ending.state,
            TrialState.FINISHED,
            Outcome.GRADED,
            now,
            exit_code=ending.exit.exit_code if ending.exit else None,
            exit_reason=ending.exit.reason if ending.exit else None,
            timing={**_agent_timing(leased), **ending.timing},
            cost=ending.cost,
            usage=asdict(ending.usage) if ending.usage else None,
        )
        if ending.grade is not None:
            grade = ending.grade
            finish = replace(
                finish,
                score=grade.score,
                passed=grade.passed,
                result=grade.result,
                confirmed=grade.confirmed,
                score_confirmed=grade.score_confirmed,
                evidence=grade.evidence or None,
            )
            return replace(finish, **_remark(ending))
        failure = ending.failure or AttemptFailure(
            Category.INTERNAL, "internal", "ended without grade or failure"
        )
        policy = policy_for(failure.category, failure.cause)
        failures = leased.failures + 1
        most = max_attempts if max_attempts and policy.retryable else policy.attempts
        again = failures < most
        return replace(
            finish,
            after=TrialState.PENDING if again else TrialState.ERROR,
            outcome=Outcome.FAILED,
            category=failure.category,
            cause=failure.cause,
            message=failure.message,
            not_before=now + backoff(policy, failures, failure.retry_after, self._rng) if again else None,
        )

    async def _pause(self, wake_at: float | None) -> None:
        limit = LOOK_EVERY_S if wake_at is None else min(LOOK_EVERY_S, max(0.0, wake_at - time.time()))
        try:
            async with asyncio.timeout(limit):
                await self._wake.wait()
        except TimeoutError:
            return


def _agent_timing(leased: Leased) -> Json:
    """Of work that is graded again: what its agent took."""
    found: Json = (leased.saved or {}).get("timing") or {}
    return {name: seconds for name, seconds in found.items() if name != "total"}


def _remark(ending: AttemptEnding) -> Json:
    """Return why the score is 0 without a verdict, or why an agent gave up that was graded all the same."""
    if ending.grade is not None and ending.grade.cause is not None:
        return {"category": Category.AGENT, "cause": ending.grade.cause, "message": ending.grade.message}
    if ending.exit is None or ending.exit.trouble is None:
        return {}
    failure = failure_of(ending.exit.trouble)
    return {"category": failure.category, "cause": failure.cause, "message": failure.message}

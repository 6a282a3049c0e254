"""The verbs on a store of this machine: embedded mode."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from valkyrie import handed
from valkyrie.errors import InfrastructureError, StoreError, UsageError, UserError
from valkyrie.executor.client import ExecutorClient, Starting
from valkyrie.nouns import Json, RunState, TrialState
from valkyrie.store import Store, runs
from valkyrie.store.layout import DataFolder, encode_task_id
from valkyrie.tracker.files import copy_outputs, disk_view, if_there, read_log
from valkyrie.tracker.moving import moved
from valkyrie.tracker.present import attempt_view, group_errors, run_view, trial_view
from valkyrie.views import (
    AttemptView,
    DiskView,
    ErrorGroup,
    PlanView,
    RunFilter,
    RunPage,
    RunRequest,
    RunView,
    StartedRun,
    TrialFilter,
    TrialView,
)

if TYPE_CHECKING:
    from valkyrie.store import Connection
    from valkyrie.tracker.planning import PreparedRun

LOOK_EVERY_S = 0.2
HANDOVER_S = 3.0
"""Between two executors (one was drained, the next takes over) none answers for a moment."""


@dataclass(frozen=True, slots=True)
class Again:
    """Which trials of a run go on, and how."""

    concurrency: int | None
    task_ids: Sequence[str] | None
    headers: Mapping[str, str]
    errors_too: bool = False
    category: str | None = None
    from_scratch: bool = False


class LocalTracker:
    """Everything a person can ask, answered from one data folder."""

    def __init__(self, root: Path, starting: Starting | None = None) -> None:
        self._data = DataFolder(root)
        self._opened: Store | None = None
        self._executor = ExecutorClient(self._data)
        self._starting = starting

    @property
    def _store(self) -> Store:
        if self._opened is None:
            self._data.make()
            self._opened = Store(self._data.database)
        return self._opened

    def close(self) -> None:
        if self._starting:
            self._starting.leave()
            self._starting = None
        if self._opened:
            self._opened.close()
            self._opened = None

    # Starting

    def plan(self, request: RunRequest) -> PlanView:
        from valkyrie.tracker.planning import prepare

        return prepare(request, self._data).view()

    def start(self, request: RunRequest) -> StartedRun:
        prepared = self._prepare(request)
        run_id = self._write(prepared)
        notices = self._hand_over(run_id, prepared.secrets)
        return StartedRun(self.fetch(run_id), [*prepared.notices, *notices])

    def enqueue(self, request: RunRequest) -> str:
        """Plan, check and store a run, and leave it to whichever executor comes; its id."""
        return self._write(self._prepare(request))

    def _prepare(self, request: RunRequest) -> PreparedRun:
        from valkyrie.tracker.planning import prepare, refuse

        prepared = prepare(request, self._data)
        if prepared.problems:
            raise refuse(prepared.problems)
        return prepared

    def _write(self, prepared: PreparedRun) -> str:
        """Freeze the agent, then store run and trials in one transaction; a failure leaves nothing."""
        from valkyrie import agents
        from valkyrie.tracker.record import run_values

        run_id = str(uuid.uuid4())
        folder = self._data.run(run_id)
        try:
            frozen = agents.freeze(prepared.agent, folder.agent)
            values = run_values(prepared, run_id, frozen)
            trials = [
                runs.NewTrial(one.task_id, one.k, one.digest, one.cpus, one.memory_mb)
                for one in prepared.trials
            ]
            with self._store.writing() as connection:
                runs.create(connection, values, trials)
        except BaseException:
            # Ctrl+C may come after the commit: then the run exists, and needs its agent.
            if not self._is_stored(run_id):
                shutil.rmtree(folder.root, ignore_errors=True)
            raise
        return run_id

    def _is_stored(self, run_id: str) -> bool:
        try:
            with self._store.reading() as connection:
                return runs.version(connection, run_id) is not None
        except StoreError:
            return False

    def _hand_over(self, run_id: str, values: Mapping[str, str]) -> Sequence[str]:
        """See that an executor takes the run up, with its secrets; what the user should know of it."""
        starting, self._starting = self._starting, None
        self._executor.ensure(starting)
        if not values:
            return []
        answer = self._executor.ask("secrets", run_id=run_id, values=dict(values))
        if answer is None:
            raise InfrastructureError(
                f"The executor went away before run {run_id[:8]} could be handed over; "
                f"`valk run resume {run_id[:8]}` goes on."
            )
        if not answer["draining"]:
            return []
        return [
            "An executor that is leaving finishes its trials first, and takes what it knows with it; when "
            f"the run then waits for its secrets, `valk run resume {run_id[:8]}` supplies them."
        ]

    # Looking

    def fetch(self, ref: str) -> RunView:
        with self._store.reading() as connection:
            return self._view(connection, runs.resolve(connection, ref), detailed=True)

    def _view(self, connection: Connection, run_id: str, *, detailed: bool) -> RunView:
        row = runs.get(connection, run_id)
        scores: dict[str, list[float]] | None = None
        if detailed and row.fraction:
            scores = {}
            for row_score in runs.scores(connection, run_id):
                if row_score.score is not None:
                    scores.setdefault(row_score.task_id, []).append(row_score.score)
        return run_view(row, executor=self._alive(), folder=str(self._data.run(run_id).root), scores=scores)

    def _alive(self) -> Literal["alive", "none"]:
        return "alive" if self._executor.status() else "none"

    def follow(self, ref: str, *, interval: float = 0.2) -> Iterator[RunView]:
        view = self.fetch(ref)
        yield view
        if RunState(view.state).terminal:
            return
        for _ in self._store.changes(interval):
            with self._store.reading() as connection:
                version = runs.version(connection, view.id)
                if version is None:
                    return
                if version == view.version and self._alive() == view.executor:
                    continue
                view = self._view(connection, view.id, detailed=True)
            yield view
            if RunState(view.state).terminal:
                return

    def list(self, query: RunFilter) -> RunPage:
        equal = {
            "agent": query.agent,
            "benchmark": query.benchmark,
            "model": query.model,
            "dataset": query.dataset,
            "state": query.state,
            "label": query.label,
        }
        wanted = runs.RunQuery(
            {name: value for name, value in equal.items() if value is not None},
            query.newest_first,
            query.limit,
            query.cursor,
        )
        executor = self._alive()
        with self._store.reading() as connection:
            rows, total, cursor = runs.page(connection, wanted)
        views = [run_view(row, executor=executor, folder=str(self._data.run(row.id).root)) for row in rows]
        return RunPage(views, total, cursor)

    def trials(self, ref: str, query: TrialFilter) -> tuple[Sequence[TrialView], int]:
        wanted = runs.TrialQuery(
            query.states, query.search, query.sort, query.descending, query.limit, query.offset
        )
        with self._store.reading() as connection:
            rows, total = runs.trials(connection, runs.resolve(connection, ref), wanted)
        return [trial_view(row) for row in rows], total

    def attempts(self, ref: str, task_id: str, k: int = 0) -> Sequence[AttemptView]:
        with self._store.reading() as connection:
            run_id = runs.resolve(connection, ref)
            trial = runs.one_trial(connection, run_id, task_id, k)
            rows = runs.attempts(connection, trial.id)
        folder = self._data.run(run_id)
        return [
            attempt_view(
                row,
                current=trial.state,
                log=if_there(folder.log(task_id, k, row.number)),
                artifacts=if_there(folder.attempt(task_id, k, row.number)),
            )
            for row in rows
        ]

    def errors(self, ref: str) -> Sequence[ErrorGroup]:
        with self._store.reading() as connection:
            return group_errors(runs.errors(connection, runs.resolve(connection, ref)))

    # Steering

    def stop(self, ref: str, *, force: bool = False, task_ids: Sequence[str] | None = None) -> RunView:
        with self._store.writing() as connection:
            run_id = runs.resolve(connection, ref)
            if task_ids is not None:
                runs.check_tasks(connection, run_id, task_ids)
            runs.stop(connection, run_id, time.time(), force=force, task_ids=task_ids)
        self._executor.ensure()  # it ends what was taken from it, and writes the score
        return self.fetch(run_id)

    def resume(
        self,
        ref: str,
        *,
        concurrency: int | None = None,
        task_ids: Sequence[str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> StartedRun:
        again = Again(concurrency, task_ids, headers or {})
        return self._again(ref, again)

    def retry(
        self,
        ref: str,
        *,
        concurrency: int | None = None,
        task_ids: Sequence[str] | None = None,
        category: str | None = None,
        headers: Mapping[str, str] | None = None,
        from_scratch: bool = False,
    ) -> StartedRun:
        again = Again(concurrency, task_ids, headers or {}, True, category, from_scratch)
        return self._again(ref, again)

    def _again(self, ref: str, again: Again) -> StartedRun:
        """Reopen what may run again, with secrets resolved anew: nothing is changed when one is missing."""
        with self._store.reading() as connection:
            row = runs.get(connection, runs.resolve(connection, ref))
        run_id = row.id
        values, notices = _handed_again(row, again.headers)
        change = moved(row) if RunState(row.state).terminal or not self._executor.status() else None
        with self._store.writing() as connection:
            if change:
                runs.set_values(connection, run_id, **change[0])
                notices = [*notices, change[1]]
            if again.task_ids is not None:
                runs.check_tasks(connection, run_id, again.task_ids)
            before = runs.get(connection, run_id)
            reopened = runs.reopen(
                connection,
                run_id,
                errors_too=again.errors_too,
                category=again.category,
                task_ids=again.task_ids,
                concurrency=again.concurrency,
                from_scratch=again.from_scratch,
            )
            finished = not reopened and before.state == RunState.FINISHED
            if finished:
                runs.set_values(connection, run_id, state=before.state, finished_at=before.finished_at)
        if finished:
            return StartedRun(self.fetch(run_id), ["nothing is left to run"])
        notices = [*notices, *self._hand_over(run_id, values)]
        view = self.fetch(run_id)
        if not reopened and view.counts[TrialState.PENDING] == 0:
            notices = [*notices, "nothing was left to run; the score is computed again"]
        return StartedRun(view, notices)

    def update(self, ref: str, *, concurrency: int | None = None, label: str | None = None) -> RunView:
        values: Json = {}
        if concurrency is not None:
            if concurrency < 1:
                raise UsageError(f"--concurrency must be at least 1, not {concurrency}.")
            values["concurrency"] = concurrency
        if label is not None:
            values["label"] = label
        if not values:
            raise UsageError("There is nothing to change; give --concurrency or --label.")
        with self._store.writing() as connection:
            run_id = runs.resolve(connection, ref)
            runs.set_values(connection, run_id, **values)
        self._executor.ask("wake")
        return self.fetch(run_id)

    def wait(self, ref: str, *, timeout: float | None = None) -> RunView:
        deadline = None if timeout is None else time.monotonic() + timeout
        view = self.fetch(ref)
        seen_at = time.monotonic()
        while not RunState(view.state).terminal:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"Run {view.id[:8]} did not end within {timeout:g} s; it goes on.")
            if view.executor == "alive":
                seen_at = time.monotonic()
            elif time.monotonic() - seen_at > HANDOVER_S:
                raise UserError(f"Run {view.id[:8]} will not end by itself: {view.note}.")
            time.sleep(LOOK_EVERY_S)  # the executor may die without writing, so changes alone do not tell
            view = self.fetch(view.id)
        return view

    def delete(self, ref: str) -> None:
        with self._store.writing() as connection:
            run_id = runs.resolve(connection, ref)
            runs.forget(connection, run_id)
        self._executor.ask("forget", run_id=run_id)
        shutil.rmtree(self._data.run(run_id).root, ignore_errors=True)

    # Results

    def results(self, ref: str, *, task_ids: Sequence[str] | None = None) -> Json:
        from valkyrie.report.results import results_document

        with self._store.reading() as connection:
            run_id = runs.resolve(connection, ref)
            if task_ids is not None:
                runs.check_tasks(connection, run_id, task_ids)
            view = self._view(connection, run_id, detailed=True)
            evaluation = runs.get(connection, run_id).final_evaluation
            wanted = None if task_ids is None else set(task_ids)
            rows = (
                row for row in runs.each_result(connection, run_id) if wanted is None or row.task_id in wanted
            )
            return results_document(view, evaluation, rows)

    def outputs(
        self, ref: str, destination: Path, *, task_ids: Sequence[str] | None = None
    ) -> Sequence[Path]:
        written: list[Path] = []
        with self._store.reading() as connection:
            run_id = runs.resolve(connection, ref)
            if task_ids is not None:
                runs.check_tasks(connection, run_id, task_ids)
            rows = [
                (row.task_id, row.k, row.attempts)
                for row in runs.each_result(connection, run_id)
                if task_ids is None or row.task_id in task_ids
            ]
        folder = self._data.run(run_id)
        for task_id, k, number in rows:
            target = destination / encode_task_id(task_id) / (str(k) if k else "")
            if number and copy_outputs(folder, (task_id, k, number), target):
                written.append(target)
        return written

    def logs(
        self, ref: str, task_id: str, *, k: int = 0, attempt: int | None = None, follow: bool = False
    ) -> Iterator[str]:
        found = self.attempts(ref, task_id, k)
        if not found:
            raise UserError(f"Task {task_id!r} has not been attempted yet.")
        numbers = [one.number for one in found]
        number = attempt if attempt is not None else numbers[-1]
        if number not in numbers:
            raise UsageError(f"Task {task_id!r} has attempts {numbers[0]} to {numbers[-1]}, not {number}.")
        with self._store.reading() as connection:
            path = self._data.run(runs.resolve(connection, ref)).log(task_id, k, number)

        def ended() -> bool:
            return not follow or self.attempts(ref, task_id, k)[number - 1].outcome is not None

        return read_log(path, ended)

    # The machine

    def shell(self, ref: str, task_id: str, k: int = 0) -> Sequence[str]:
        with self._store.reading() as connection:
            run_id = runs.resolve(connection, ref)
            runs.one_trial(connection, run_id, task_id, k)
        answer = self._executor.ask("shell", run_id=run_id, task_id=task_id, k=k)
        if not answer or not answer["argv"]:
            raise UserError(
                f"No sandbox of task {task_id!r} is kept. Start the run with --keep-sandbox; kept sandboxes "
                "end with their executor, after some hours, or when the run is deleted."
            )
        argv: Sequence[str] = answer["argv"]
        return argv

    def disk(self) -> DiskView:
        self._data.make()
        with self._store.reading() as connection:
            states = {row.id: row.state for row in runs.page(connection, runs.RunQuery({}, limit=100_000))[0]}
        return disk_view(self._data, states)

    def executor_status(self) -> Json | None:
        return self._executor.status()


def _handed_again(row: Any, headers: Mapping[str, str]) -> tuple[Mapping[str, str], Sequence[str]]:
    """What the run must be handed, from wherever it is now."""
    if not headers and not handed.wanted(row.arguments):
        return {}, []
    from valkyrie.tracker.supplying import supply_again

    return supply_again(row, headers)

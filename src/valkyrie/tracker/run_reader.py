"""Read verbs: runs, trials, attempts, errors, the queue."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from valkyrie import views
from valkyrie.domain import Json, RunState
from valkyrie.errors import UserError
from valkyrie.report.formats import number
from valkyrie.report.presentation import (
    attempt_view,
    group_errors,
    needs_scores,
    run_links,
    run_view,
    scores_view,
    trial_view,
)
from valkyrie.store import executors, notifications, runs, trials
from valkyrie.tracker.app import CallerContext

if TYPE_CHECKING:
    from valkyrie.store import Connection
    from valkyrie.store.rows import ExecutorRow, RegradeRow, RunRow

LOOK_EVERY_S = 0.2
HANDOVER_S = 10.0
"""Between two executors (one was drained, the next takes over) none answers for a moment."""


class RunReader:
    """Reads what the store says of the runs of one organisation."""

    def __init__(self, context: CallerContext) -> None:
        self._context = context

    def fetch(self, ref: str) -> views.RunView:
        with self._context.store.reading() as connection:
            return self.view(connection, self._context.resolve(connection, ref), detailed=True)

    def view(self, connection: Connection, run_id: str, *, detailed: bool) -> views.RunView:
        """Return one run; `detailed` adds what takes all of its trials to tell."""
        row = runs.get(connection, run_id)
        scores = trials.scores(connection, run_id) if detailed and needs_scores(row) else None
        families = trials.families(connection, run_id) if scores is not None else None
        view = run_view(
            row,
            executor=self.executor_state(),
            folder=self.folder(run_id),
            scores=scores,
            families=families,
            org=self._context.identity.org,
            hooks=notifications.of_run(connection, run_id),
            links=run_links(row.place, run_id),
        )
        if detailed and view.done and not RunState(row.state).terminal:
            view = replace(view, exit_codes=runs.exit_codes(connection, run_id))
        return _with_regrade(view, row, runs.regrades_under_way(connection, [run_id]).get(run_id))

    def folder(self, run_id: str) -> str:
        """Return where the run's files are; "" on a server, whose callers cannot look there."""
        return "" if self._context.app.server else str(self._context.data.run(run_id).root)

    def executor_state(self) -> Literal["alive", "away", "none"]:
        """Return whether an executor works on this store; one that is away may come back."""
        if self._context.dispatch.alive():
            return "alive"
        return "away" if self._context.app.server else "none"

    def follow(self, ref: str, *, interval: float = 0.2) -> Iterator[views.RunView]:
        view = self.fetch(ref)
        yield view
        if RunState(view.state).terminal:
            return
        for _ in self._context.store.changes(interval):
            with self._context.store.reading() as connection:
                version = runs.version(connection, view.id)
                if version is None:
                    return
                if version == view.version and self.executor_state() == view.executor:
                    continue
                view = self.view(connection, view.id, detailed=True)
            yield view
            if RunState(view.state).terminal:
                return

    def list(self, query: views.RunFilter) -> views.RunPage:
        equal = {
            "org_id": self._context.identity.org_id,
            "job_id": query.job and self._job_id(query.job),
            "agent": query.agent,
            "benchmark": query.benchmark,
            "model": query.model,
            "dataset": query.dataset,
            "state": query.state,
            "label": query.label,
        }
        wanted = runs.RunQuery(
            {name: value for name, value in equal.items() if value is not None},
            tuple(query.started_by),
            query.newest_first,
            query.limit,
            query.cursor,
        )
        executor = self.executor_state()
        with self._context.store.reading() as connection:
            rows, total, cursor = runs.page(connection, wanted)
            open_runs = [row.id for row in rows if not RunState(row.state).terminal]
            regraded = runs.regrades_under_way(connection, open_runs) if open_runs else {}
        listed = [
            _with_regrade(
                run_view(row, executor=executor, folder=self.folder(row.id), org=self._context.identity.org),
                row,
                regraded.get(row.id),
            )
            for row in rows
        ]
        return views.RunPage(listed, total, cursor)

    def _job_id(self, ref: str) -> str:
        with self._context.store.reading() as connection:
            return self._context.resolve_job(connection, ref)

    def trials(self, ref: str, query: views.TrialFilter) -> tuple[Sequence[views.TrialView], int]:
        wanted = trials.TrialQuery(
            query.states,
            query.search,
            query.sort,
            query.descending,
            query.limit,
            query.offset,
            query.after,
            query.detail,
            query.failed,
        )
        with self._context.store.reading() as connection:
            rows, total = trials.trials(connection, self._context.resolve(connection, ref), wanted)
        made = scores_view if query.detail == "scores" else trial_view
        return [made(row) for row in rows], total

    def attempts(self, ref: str, task_id: str, k: int = 0) -> Sequence[views.AttemptView]:
        with self._context.store.reading() as connection:
            run_id = self._context.resolve(connection, ref)
            trial = trials.one_trial(connection, run_id, task_id, k)
            rows = trials.attempts(connection, trial.id)
        folder = self._context.data.run(run_id)
        return [
            attempt_view(
                row,
                current=trial.state,
                log=_if_there(folder.log(task_id, k, row.number)),
                artifacts=_if_there(folder.attempt(task_id, k, row.number)),
            )
            for row in rows
        ]

    def errors(self, ref: str) -> Sequence[views.ErrorGroup]:
        with self._context.store.reading() as connection:
            run_id = self._context.resolve(connection, ref)
            return group_errors(trials.errors(connection, run_id), trials.passes_failed(connection, run_id))

    def wait(self, ref: str, *, timeout: float | None = None) -> views.RunView:
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

    def queue(self) -> views.QueueView:
        with self._context.store.reading() as connection:
            rows = runs.queue(connection, self._context.identity.org_id)
            living = executors.living(connection)
        entries = [
            views.QueueEntry(
                run_id=row.id,
                agent=row.agent,
                benchmark=row.benchmark,
                priority=row.priority,
                state=row.state,
                pending=row.n_pending,
                active=row.n_building + row.n_in_progress + row.n_evaluating,
                concurrency=row.concurrency,
                created_at=row.created_at,
                started_by=row.started_by,
                note=row.note,
            )
            for row in rows
        ]
        return views.QueueView(entries, [self._executor_view(row) for row in living])

    def _executor_view(self, row: ExecutorRow) -> views.ExecutorView:
        """One executor; what it holds may be other organisations' and is told to the default one only."""
        shared = not self._context.sees_machine
        return views.ExecutorView(
            id=row.id,
            host="" if shared else row.host,
            pid=0 if shared else row.pid,
            version=row.version,
            started_at=row.started_at,
            heartbeat_at=row.heartbeat_at,
            active=0 if shared else row.active,
        )

    def executor_status(self) -> Json | None:
        status = self._context.dispatch.status()
        if status is None or self._context.sees_machine:
            return status
        return {name: status[name] for name in ("version", "started_at", "draining") if name in status}


def _if_there(path: Path) -> str | None:
    return str(path) if path.exists() else None


def _with_regrade(view: views.RunView, row: RunRow, regrade: RegradeRow | None) -> views.RunView:
    """Say in a run's note how far grading its kept work again has come, and the score it had before."""
    if regrade is None:
        return view
    total = int(regrade.arguments.get("trials", 0))
    left = row.n_pending + row.n_building + row.n_in_progress + row.n_evaluating
    before = f"grading {row.grading}"
    if row.final_score is not None:
        before += f" had {number(row.final_score, fraction=row.fraction)}"
    note = (
        f"regrading: {total - left} of {total} trials are graded again (grading {regrade.number}); {before}"
    )
    return replace(view, note=f"{note}; {view.note}" if view.note else note)

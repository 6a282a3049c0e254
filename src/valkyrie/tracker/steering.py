"""Verbs that change a run under way, or end it for good."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict

from valkyrie.errors import UsageError, UserError
from valkyrie.keeping.keys import run_prefix
from valkyrie.store import runs
from valkyrie.tracker.bounds import check_text
from valkyrie.tracker.looking import Looking
from valkyrie.views import RunView, StopRequest, UpdateRequest

PRIORITIES = range(5)


def check_priority(priority: int) -> int:
    """0 (first) to 4 (last), or UsageError."""
    if priority not in PRIORITIES:
        raise UsageError(f"--priority must be 0 (first) to 4 (last), not {priority}.")
    return priority


def check_max_cost(max_cost: float) -> float:
    """A sum of money, or UsageError."""
    if not (math.isfinite(max_cost) and max_cost > 0):
        raise UsageError(f"--max-cost must be above 0 US dollars, not {max_cost:g}.")
    return max_cost


def check_update(request: UpdateRequest) -> None:
    """UsageError for what no run can become."""
    if request.concurrency is not None and request.concurrency < 1:
        raise UsageError(f"--concurrency must be at least 1, not {request.concurrency}.")
    check_text("label", request.label)
    if request.max_cost is not None:
        check_max_cost(request.max_cost)
    if request.priority is not None:
        check_priority(request.priority)
    if request.abort_after is not None and request.abort_after < 0:
        raise UsageError(f"--abort-after must be at least 0, not {request.abort_after}.")


class Steering(Looking):
    """Stop, change, delete; look into a sandbox."""

    def stop(self, ref: str, request: StopRequest = StopRequest()) -> RunView:
        with self.store.writing() as connection:
            run_id = self.resolve(connection, ref)
            if request.task_ids is not None:
                runs.check_tasks(connection, run_id, request.task_ids)
            runs.stop(connection, run_id, time.time(), force=request.force, task_ids=request.task_ids)
        self.office.handing.wake(needed=True)  # it ends what was taken from it, and writes the score
        return self.fetch(run_id)

    def update(self, ref: str, request: UpdateRequest) -> RunView:
        values = {name: value for name, value in asdict(request).items() if value is not None}
        if not values:
            raise UsageError(
                "There is nothing to change; give --concurrency, --label, --priority, --max-cost or "
                "--abort-after."
            )
        check_update(request)
        with self.store.writing() as connection:
            run_id = self.resolve(connection, ref)
            runs.set_values(connection, run_id, **values)
        self.office.handing.wake()
        return self.fetch(run_id)

    def delete(self, ref: str) -> None:
        with self.store.writing() as connection:
            run_id = self.resolve(connection, ref)
            place = runs.get(connection, run_id).place
            runs.forget(connection, run_id)
        self.office.handing.forget(run_id)
        shutil.rmtree(self.data.run(run_id).root, ignore_errors=True)
        if place and (artifacts := self.organisation.artifacts(place.get("artifacts"))):
            artifacts.delete(run_prefix(run_id))
        self.store.give_back()

    def shell(self, ref: str, task_id: str, k: int = 0) -> Sequence[str]:
        with self.store.reading() as connection:
            run_id = self.resolve(connection, ref)
            runs.one_trial(connection, run_id, task_id, k)
        argv = self.office.handing.shell(run_id, task_id, k)
        if not argv:
            raise UserError(
                f"No sandbox of task {task_id!r} is kept. Start the run with --keep-sandbox; kept sandboxes "
                "end with their executor, after some hours, or when the run is deleted."
            )
        return argv

"""`benchmark-job cancel`, `resume`, `retry`, `delete`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.cli.command_result import CommandResult
from tests.unit.cli.filled_store import FilledStore, lost, passed, unended
from tests.unit.cli.recorded_tracker import RecordedTracker
from valkyrie.views.jobs import JobAgent, JobChange, JobRetry, JobStop

Valk = Callable[..., CommandResult]


NULL = ("--benchmark", "valkyrie.testing.null:NullBenchmark", "--dataset", "5", "--provider", "null")
TASKS = [f"task-{number}" for number in range(5)]
UNDER_WAY = [passed(TASKS[0]), *(unended("IN_PROGRESS", task) for task in TASKS[1:4])]


@pytest.fixture
def run_id(valk: Valk, filled: FilledStore) -> str:
    """The run of a job that is called nightly, under way."""
    assert valk("job", "run", "--agent", "nop", *NULL, "-n", "nightly").code == 0
    (found,) = filled.run_ids()
    return filled.add_run(found, [*UNDER_WAY, unended("PENDING", TASKS[4])])


def job_id(valk: Valk) -> str:
    (job,) = valk("job", "list", "--all", "--json").json["jobs"]
    return str(job["id"])


def test_cancel_lets_trials_finish_unless_forced(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore, run_id: str
) -> None:
    filled.executor.on_wake = filled.conclude_runs
    done = valk("job", "cancel", "nightly")
    assert done.code == 0 and "In Progress: 3 │ Stopped: 1" in done.out
    assert tracker.asked("stop_job") == [(job_id(valk), JobStop(False))]
    asks = valk("job", "cancel", "nightly", "--force")
    assert asks.code == 2 and "Kill 3 trials of job nightly" in asks.err and "--yes" in asks.err
    assert valk("job", "cancel", "nightly", "--force", "--yes", "--json").json["state"] == "cancelled"
    assert tracker.asked("stop_job")[1:] == [(job_id(valk), JobStop(True))]
    assert filled.run_row(run_id).n_stopped == 4


def test_resume_says_what_is_different(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore, run_id: str
) -> None:
    done = valk(
        *("job", "resume", "nightly", "--agent", "codex:gpt-5", "--scenarios", "a", "b", "--n-attempts", "5"),
        *("--n-concurrent-trials", "50", "--timeout", "60", "--timeout-multiplier", "2", "--time-limit", "9"),
    )
    assert done.code == 2 and "'a'" in done.err
    added = [JobAgent("codex", "gpt-5")]
    assert tracker.asked("resume_job") == [("nightly", JobChange(added, ("a", "b"), 5, 50, 60, 2, 9))]
    done = valk("job", "resume", "nightly", "--n-concurrent-trials", "50")
    assert done.code == 0 and "Job goes on" in done.out and filled.run_row(run_id).n_pending == 1
    valk("job", "resume", "nightly")
    assert tracker.asked("resume_job")[-1] == ("nightly", JobChange(agents=[]))


def test_retry_and_delete(valk: Valk, tracker: RecordedTracker, filled: FilledStore, run_id: str) -> None:
    broken = lost(TASKS[2], category="benchmark", cause="task_broken")
    filled.add_run(run_id, [passed(TASKS[0]), lost(TASKS[1]), broken])
    assert valk("job", "retry", "nightly", "--category", "infrastructure").code == 0
    assert tracker.asked("retry_job") == [("nightly", JobRetry("infrastructure", None))]
    row = filled.run_row(run_id)
    assert (row.n_pending, row.n_error) == (1, 1)
    assert valk("job", "retry", "nightly", "--category", "nonsense").code == 2
    filled.end_runs()
    assert valk("job", "delete", "nightly").code == 2
    known = job_id(valk)
    assert valk("job", "delete", "nightly", "--yes", "-o", "json").json["job_id"] == known
    assert tracker.asked("delete_job") == [known] and filled.run_ids() == []


def test_a_job_with_nothing_left_is_not_followed(valk: Valk, filled: FilledStore, run_id: str) -> None:
    filled.add_run(run_id, [passed(task) for task in TASKS])
    done = valk("job", "resume", "nightly", "--follow")
    assert done.code == 0 and "Nothing to do" in done.out

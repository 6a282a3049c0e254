"""`benchmark-job watch`, `summary`, `list` in a pipe."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from tests.unit.cli.command_result import CommandResult
from tests.unit.cli.filled_store import (
    BEGUN,
    CODEX,
    JOB,
    NOP,
    FilledStore,
    failed,
    graded,
    lost,
    passed,
    unended,
)
from tests.unit.cli.recorded_tracker import RecordedTracker
from valkyrie.views.jobs import JobFilter

Valk = Callable[..., CommandResult]


@pytest.fixture(autouse=True)
def job(filled: FilledStore) -> str:
    return filled.add_job_of_two()


def cells(line: str) -> list[str]:
    return [cell for cell in line.split("  ") if cell.strip()]


def test_summary_counts_partial_credit_apart(valk: Valk, filled: FilledStore) -> None:
    done = valk("job", "summary", "nightly")
    row = next(line for line in done.out.splitlines() if line.startswith("codex:gpt-5  "))
    assert [cell.strip() for cell in cells(row)[1:7]] == [
        "3 (75.0 %)", "1 (25.0 %)", "0 (0.0 %)", "0 (0.0 %)", "4", "87.5 %",
    ]  # fmt: skip
    assert "depending on 1 ungraded trial; it is ranked by the lower end." in done.out
    assert "codex:gpt-5 is ahead by 87.5 points" in done.out
    assert "pass@2" in done.out and "Open" not in done.out
    assert "fix/it#1" not in done.out
    assert done.code == 0


def test_summary_extended_shows_the_scenarios(valk: Valk) -> None:
    said = valk("job", "summary", "nightly", "-e").out
    assert said.count("fix/it#1") == 2
    assert "infrastructure/sandbox_failed: no room" in said and "TIMEOUT" in said


def test_summary_shows_cost_and_tokens(valk: Valk, filled: FilledStore) -> None:
    filled.change_run(CODEX, cost_sum=1.25, n_costed=4, input_tokens=12_345, output_tokens=678)
    said = valk("job", "summary", JOB).out
    assert "$1.25" in said and "12.3k / 678" in said


def test_summary_of_a_job_that_goes_on_says_so(valk: Valk, filled: FilledStore) -> None:
    filled.add_run(CODEX, [passed("add"), graded(0.5, "fix/it"), unended("PENDING"), unended("PENDING")])
    said = valk("job", "summary", JOB)
    assert said.code == 0 and "The job is running; these numbers are what is known so far." in said.out
    assert "Open" in said.out and "valk job fetch bbbb2222 --connect" in said.out


def test_summary_json_has_the_fields_of_the_reference(valk: Valk) -> None:
    document = valk("job", "summary", "nightly", "-o", "json").json
    first, second = document["benchmark_outcomes"]
    assert (first["n_completed"], first["n_failed"], first["n_timeout"]) == (4, 0, 0)
    assert (second["n_completed"], second["n_failed"], second["n_timeout"]) == (2, 1, 1)
    states = [outcome["state"] for outcome in second["scenario_outcomes"]]
    assert states == ["COMPLETED", "TIMEOUT", "COMPLETED", "FAILED"]
    assert second["scenario_outcomes"][3]["failure_reason"] == {
        "exception_type": "infrastructure/sandbox_failed",
        "exception_message": "no room",
    }
    assert second["scenario_outcomes"][1]["scenario_run_id"] == f"{NOP}/fix/it"
    assert document["statistics"][0]["scores"]["infrastructure_excluded"]["mean"] == 0.875
    assert document["comparisons"][0]["verdict"] == "unclear"
    assert document["job_spec"]["agent_configs"][0]["model_name"] == "gpt-5"
    assert document["create_time_ms"] == 1_700_000_000_000


def test_a_job_whose_runs_were_deleted_can_be_looked_at(valk: Valk, filled: FilledStore) -> None:
    for run_id in (CODEX, NOP):
        assert valk("run", "delete", run_id, "--yes").code == 0
    for words in (["summary", JOB, "-e"], ["summary", JOB, "--json"], ["list"], ["logs", JOB]):
        done = valk("job", *words)
        assert done.code == 0, done.err
    assert valk("job", "watch", JOB).code == 1 and filled.run_ids() == []


def test_unknown_jobs_are_refused(valk: Valk) -> None:
    for verb in ("watch", "summary", "logs", "cancel", "resume", "retry", "delete"):
        assert valk("job", verb, "nothing").code == 2


def test_watch_prints_a_line_per_change_and_the_table(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore
) -> None:
    halves = [unended("IN_PROGRESS"), unended("IN_PROGRESS"), unended("EVALUATING")]
    filled.add_run(CODEX, [passed("add"), *halves], arguments={"agent": "codex", "trials": 1})
    four = [passed(f"t{number}") for number in range(4)]
    tracker.changes["follow_job"] = [lambda: filled.add_run(CODEX, four)]
    done = valk("job", "watch", "nightly")
    lines = done.out.splitlines()
    assert lines[0].endswith("codex:gpt-5  IN_PROGRESS  1/4  score so far 100.0 %  2 running, 1 scoring")
    nop = "nop  FINISHED  4/4  score 0.0 % to 25.0 %, depending on 1 ungraded trial  1 error"
    assert lines[1].endswith(nop)
    assert lines[2].endswith("codex:gpt-5  FINISHED  4/4  score 100.0 % (39.8–100.0)")
    assert "job nightly  completed  8/8" in lines[3]
    assert "Agent" in done.out and "\x1b" not in done.out and done.code == 1
    assert "Not passed: nop: 1 error open" in done.err


def test_an_agent_that_gave_up_and_was_graded_is_told(valk: Valk, filled: FilledStore) -> None:
    gave_up = failed("fix/it", category="agent", cause="agent_gave_up", message="no more turns")
    filled.add_run(CODEX, [passed("add"), gave_up])
    assert "agent/agent_gave_up (graded): no more turns" in valk("job", "summary", "nightly", "-e").out


def test_watch_shows_a_stopped_run_by_what_was_graded(valk: Valk, filled: FilledStore) -> None:
    filled.add_run("cccc", [passed(), *[unended("STOPPED")] * 3], agent="codex")
    filled.add_job("dddd", ["cccc"], name="stopped", created_at=time.time())
    done = valk("job", "watch", "stopped")
    assert "score 25.0 % to 100.0 %, depending on 3 ungraded trials  3 stopped" in done.out.splitlines()[0]
    assert "cancelled  1/4" in done.out
    assert " 1/4 " in valk("job", "list").out


def test_watch_says_of_what_a_score_is_where_errors_make_two(valk: Valk, filled: FilledStore) -> None:
    broken = lost(category="benchmark", cause="task_broken")
    filled.add_run("cccc", [passed(), broken], agent="codex", fraction=False)
    filled.add_job("dddd", ["cccc"], name="two")
    said = valk("job", "watch", "two").out.splitlines()[0]
    assert said.endswith("2/2  score 0.5 of all, 1 of graded  1 error")


@pytest.mark.parametrize(("state", "ends_at"), [("failed", None), ("cancelled", None), ("timeout", BEGUN)])
def test_watch_tells_the_end_by_its_exit_code(
    valk: Valk, filled: FilledStore, state: str, ends_at: float | None
) -> None:
    if state == "failed":
        filled.add_run("cccc", [passed()], state="ERROR", error="no score")
    else:
        filled.add_run("cccc", [passed(), unended("STOPPED")])
    filled.add_job("dddd", ["cccc"], name="ended", ends_at=ends_at)
    done = valk("job", "watch", "ended")
    assert done.code == 1 and state in done.out


def test_watch_writes_json_lines(valk: Valk, tracker: RecordedTracker, filled: FilledStore) -> None:
    filled.add_run(CODEX, [passed("add"), unended("IN_PROGRESS")])
    tracker.changes["follow_job"] = [filled.end_runs]
    done = valk("job", "watch", "nightly", "--json")
    events = [json.loads(line) for line in done.out.splitlines()]
    assert [event["event"] for event in events] == ["snapshot", "update", "complete"]
    assert "benchmark_outcomes" in events[-1] and "benchmark_outcomes" not in events[0]


def query(tracker: RecordedTracker) -> JobFilter:
    found = tracker.asked("list_jobs")[0]
    assert isinstance(found, JobFilter)
    return found


def test_list_looks_at_the_last_day(valk: Valk, tracker: RecordedTracker, filled: FilledStore) -> None:
    filled.add_run("cccc", [passed()], agent="mine")
    filled.add_job("dddd", ["cccc"], name="today", created_at=time.time())
    done = valk("job", "list")
    since = query(tracker).since
    assert since is not None and abs(time.time() - 86400 - since) < 60
    assert "today" in done.out and "mine" in done.out and "1/1" in done.out and "nightly" not in done.out
    done = valk("job", "list", "--all")
    assert "nightly" in done.out and "codex:gpt-5, nop" in done.out and "8/8" in done.out


def test_list_filters(valk: Valk, tracker: RecordedTracker) -> None:
    valk("job", "list", "--all", "--status", "canceled, FAILED,cancelled", "-n", "x")
    assert query(tracker) == JobFilter(since=None, states=("cancelled", "failed"), name="x", limit=200)
    tracker.forget()
    valk("job", "list", "--days", "7")
    since = query(tracker).since
    assert since is not None and abs(time.time() - 7 * 86400 - since) < 60


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--status", "complete"], "Did you mean 'completed'?"),
        (["--status", " , "], "names no state"),
        (["--days", "1", "--all"], "exclude each other"),
        (["--days", "0"], "x>0"),
    ],
)
def test_list_refuses(valk: Valk, words: list[str], complaint: str) -> None:
    done = valk("job", "list", *words)
    assert done.code == 2 and complaint in done.err


def test_list_goes_through_all_pages(valk: Valk, filled: FilledStore) -> None:
    assert "--all shows older ones" in valk("job", "list").out
    filled.add_jobs([f"{number:04x}" for number in range(249)], created_at=time.time())
    document = valk("job", "list", "--all", "-o", "json").json
    assert len(document["jobs"]) == 250 and document["truncated"] is False
    done = valk("job", "list", "--limit", "3")
    assert "The newest 3 jobs" in done.err

"""`benchmark-job watch`, `summary`, `list` in a pipe."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

import valkyrie.tracker
from tests.unit.cli.fake_jobs import COST, FakeJobs, make_job
from tests.unit.cli.fake_tracker import HALFWAY, make_run, make_trial
from tests.unit.cli.said import Said
from valkyrie.views import ScoreView, TokensView
from valkyrie.views.jobs import JobFilter

Valk = Callable[..., Said]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeJobs:
    tracker = FakeJobs()
    monkeypatch.setattr(valkyrie.tracker, "open_tracker", lambda **_options: tracker)
    return tracker


def cells(line: str) -> list[str]:
    return [cell for cell in line.split("  ") if cell.strip()]


def test_summary_counts_partial_credit_apart(valk: Valk, fake: FakeJobs) -> None:
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


def test_summary_shows_cost_and_tokens(valk: Valk, fake: FakeJobs) -> None:
    job = make_job()
    runs = [replace(run, cost=COST, tokens=TokensView(12_345, 0, 678)) for run in job.runs]
    fake.jobs = {job.id: replace(job, runs=runs)}
    said = valk("job", "summary", job.id).out
    assert "$1.25" in said and "12.3k / 678" in said


def test_summary_of_a_job_that_goes_on_says_so(valk: Valk, fake: FakeJobs) -> None:
    going = make_run("run-one", state="IN_PROGRESS", total=4, counts={"FINISHED": 2, "PENDING": 2})
    fake.jobs = {"job-1": make_job("job-1", state="running", runs=[going])}
    fake.by_run["run-one"][2:] = [make_trial("x", state="PENDING", score=None, passed=None)] * 2
    said = valk("job", "summary", "job-1")
    assert said.code == 0 and "The job is running; these numbers are what is known so far." in said.out
    assert "Open" in said.out and "valk job fetch job-1 --connect" in said.out


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
    assert second["scenario_outcomes"][1]["scenario_run_id"] == "run-two/fix/it"
    assert document["statistics"][0]["scores"]["infrastructure_excluded"]["mean"] == 0.875
    assert document["comparisons"][0]["verdict"] == "unclear"
    assert document["job_spec"]["agent_configs"][0]["model_name"] == "gpt-5"
    assert document["create_time_ms"] == 1_700_000_000_000


def test_a_job_whose_runs_were_deleted_can_be_looked_at(valk: Valk, fake: FakeJobs) -> None:
    fake.jobs = {"job-1": replace(make_job("job-1", state="cancelled"), runs=[])}
    for words in (["summary", "job-1", "-e"], ["summary", "job-1", "--json"], ["list"], ["logs", "job-1"]):
        done = valk("job", *words)
        assert done.code == 0, done.err
    assert valk("job", "watch", "job-1").code == 1


def test_unknown_jobs_are_refused(valk: Valk) -> None:
    for verb in ("watch", "summary", "logs", "cancel", "resume", "retry", "delete"):
        assert valk("job", verb, "nothing").code == 2


def test_watch_prints_a_line_per_change_and_the_table(valk: Valk, fake: FakeJobs) -> None:
    ended = make_job()
    going = make_run("run-one", agent="codex", model="gpt-5", state="IN_PROGRESS", total=4, score=HALFWAY,
                     counts={"FINISHED": 1, "IN_PROGRESS": 2, "EVALUATING": 1})  # fmt: skip
    fake.job_steps = [replace(ended, state="running", runs=[going, ended.runs[1]]), ended]
    done = valk("job", "watch", "nightly")
    lines = done.out.splitlines()
    assert lines[0].endswith("codex:gpt-5  IN_PROGRESS  1/4  score so far 80.0 %  2 running, 1 scoring")
    assert lines[1].endswith("nop  FINISHED  4/4  score 0.0 % (0.0–56.0)  1 error")
    assert lines[2].endswith("codex:gpt-5  FINISHED  4/4  score 100.0 % (75.7–100.0)")
    assert "job nightly  completed  8/8" in lines[3]
    assert "Agent" in done.out and "\x1b" not in done.out and done.code == 1
    assert "Not passed: nop: 1 error open" in done.err


def test_an_agent_that_gave_up_and_was_graded_is_told(valk: Valk, fake: FakeJobs) -> None:
    fake.by_run["run-one"][1] = make_trial(
        "fix/it", score=0.0, passed=False, category="agent", cause="agent_gave_up", message="no more turns"
    )
    assert "agent/agent_gave_up (graded): no more turns" in valk("job", "summary", "nightly", "-e").out


def test_watch_shows_a_stopped_run_by_what_was_graded(valk: Valk, fake: FakeJobs) -> None:
    part = ScoreView(0.25, 1.0, 1, 4, 0.25, {}, False, True, 1, (0.2, 1.0), "Wilson")
    stopped = make_run(
        "run-one", agent="codex", state="STOPPED", total=4, score=part, counts={"FINISHED": 1, "STOPPED": 3}
    )
    fake.jobs = {"job-1": make_job("job-1", state="cancelled", runs=[stopped])}
    done = valk("job", "watch", "job-1")
    assert "1/4  score 100.0 % (20.0–100.0)  3 stopped" in done.out.splitlines()[0]
    assert "cancelled  1/4" in done.out
    assert " 1/4 " in valk("job", "list").out


def test_watch_says_of_what_a_score_is_where_errors_make_two(valk: Valk, fake: FakeJobs) -> None:
    two = ScoreView(0.5, 1.0, 1, 2, 0.5, {"benchmark": 1}, False, True, 1, (0.2, 1.0), "Wilson")
    run = make_run("run-one", agent="codex", total=2, score=two, counts={"FINISHED": 1, "ERROR": 1})
    fake.jobs = {"job-1": make_job("job-1", runs=[run])}
    said = valk("job", "watch", "job-1").out.splitlines()[0]
    assert said.endswith("2/2  score 50.0 % of all, 100.0 % of graded  1 error")


@pytest.mark.parametrize("state", ["failed", "cancelled", "timeout"])
def test_watch_tells_the_end_by_its_exit_code(valk: Valk, fake: FakeJobs, state: str) -> None:
    fake.jobs = {"job-1": make_job("job-1", state=state)}
    assert valk("job", "watch", "job-1").code == 1


def test_watch_writes_json_lines(valk: Valk, fake: FakeJobs) -> None:
    ended = make_job()
    fake.job_steps = [replace(ended, state="running"), ended]
    done = valk("job", "watch", "nightly", "--json")
    events = [json.loads(line) for line in done.out.splitlines()]
    assert [event["event"] for event in events] == ["snapshot", "update", "complete"]
    assert "benchmark_outcomes" in events[-1] and "benchmark_outcomes" not in events[0]


def query(fake: FakeJobs) -> JobFilter:
    found = fake.asked[0][1]
    assert isinstance(found, JobFilter)
    return found


def test_list_looks_at_the_last_day(valk: Valk, fake: FakeJobs) -> None:
    done = valk("job", "list")
    since = query(fake).since
    assert since is not None and abs(time.time() - 86400 - since) < 60
    assert "nightly" in done.out and "codex:gpt-5, nop" in done.out and "8/8" in done.out


def test_list_filters(valk: Valk, fake: FakeJobs) -> None:
    valk("job", "list", "--all", "--status", "canceled, FAILED,cancelled", "-n", "x")
    assert query(fake) == JobFilter(since=None, states=("cancelled", "failed"), name="x", limit=200)
    fake.asked.clear()
    valk("job", "list", "--days", "7")
    since = query(fake).since
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


def test_list_goes_through_all_pages(valk: Valk, fake: FakeJobs) -> None:
    fake.jobs = {f"job-{number}": make_job(f"job-{number}") for number in range(250)}
    document = valk("job", "list", "--all", "-o", "json").json
    assert len(document["jobs"]) == 250 and document["truncated"] is False
    done = valk("job", "list", "--limit", "3")
    assert "The newest 3 jobs" in done.err
    fake.jobs = {}
    assert "--all shows older ones" in valk("job", "list").out

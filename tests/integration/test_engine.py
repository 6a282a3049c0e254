"""The verbs against a real executor process, on a sandbox that does nothing."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import alive, until
from tests.integration.scripted import open_gate
from tests.live_folders import contents_below
from valkyrie.config import values
from valkyrie.errors import MissingSecretError, UsageError, UserError
from valkyrie.executor.client import ExecutorClient
from valkyrie.report.formats import score_rows
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import (
    OutputsWanted,
    ResumeRequest,
    RetryRequest,
    RunFilter,
    RunRequest,
    RunView,
    StopRequest,
    TrialFilter,
    UpdateRequest,
)

ROOT = Path(__file__).parents[2]
BENCHMARK = "tests.integration.scripted:ScriptedBenchmark"
AGENT = "tests.integration.scripted:ScriptedAgent"
KEYED = "tests.integration.scripted:KeyedAgent"


def request(dataset: str, **more: Any) -> RunRequest:
    return RunRequest(
        **{"agent": AGENT, "benchmark": BENCHMARK, "dataset": dataset, "provider": "null", **more}
    )


def finished(tracker: LocalTracker, dataset: str, **more: Any) -> RunView:
    return tracker.wait(tracker.start(request(dataset, **more)).run.id, timeout=60)


def test_a_run_from_start_to_score(tracker: LocalTracker) -> None:
    run = finished(tracker, "ok*3,score=0,score=0.5", label="first")
    assert (run.state, run.counts["FINISHED"], run.total) == ("FINISHED", 5, 5)
    score = run.score
    assert (score.final_score, score.score_graded, score.coverage, score.passed) == (0.7, 0.7, 1.0, 3)
    assert score.interval_method == "Gaffke over tasks"
    assert score.interval is not None and score.interval[0] < 0.7 < score.interval[1]
    assert not score.provisional
    document = tracker.results(run.id)
    assert document["final_evaluation"]["final_score"] == 0.7
    assert document["evaluation_results"]["score=0.5-0"]["reward"] == 0.5
    assert set(document["average_task_breakdown"]) >= {"agent_run_duration", "sandbox_run_duration"}
    json.dumps(document)
    assert tracker.list(RunFilter(label="first")).runs[0].id == run.id
    assert tracker.list(RunFilter(label="other")).total == 0


def test_trials_repeat_tasks(tracker: LocalTracker) -> None:
    run = finished(tracker, "ok*2", trials=3)
    rows, total = tracker.trials(run.id, TrialFilter())
    assert total == 6
    assert [(row.task_id, row.k) for row in rows] == [(f"ok-{n}", k) for k in range(3) for n in range(2)]
    assert len({row.digest for row in rows}) == 6


def test_every_failure_has_a_category_and_never_scores(tracker: LocalTracker) -> None:
    run = finished(tracker, "ok,ungraded,install,bug", max_attempts=1)
    assert run.state == "FINISHED"
    assert run.score.errors == {"agent": 1, "benchmark": 1, "internal": 1}
    # What ended by the agent's doing counts 0, the others are not graded.
    assert (run.score.graded, run.score.score_graded, run.score.final_score) == (1, 0.5, 0.25)
    groups = {group.cause: group for group in tracker.errors(run.id)}
    assert set(groups) == {"grader_no_verdict", "agent_install_failed", "internal"}
    assert groups["internal"].message == "ZeroDivisionError: a defect"
    assert tracker.results(run.id)["task_errors"]["ungraded-0"].startswith("benchmark (grader_no_verdict)")


def test_a_run_all_of_whose_trials_fail_stops_by_itself_and_goes_on(tracker: LocalTracker) -> None:
    run = finished(tracker, "ungraded*12,ok*8", abort_after=4, concurrency=2)
    assert run.state == "STOPPED"
    assert run.note is not None and run.note.startswith("stopped by itself: the first ")
    assert 4 <= run.counts["ERROR"] <= 6 and run.counts["STOPPED"] == 20 - run.counts["ERROR"]
    assert tracker.results(run.id)["stop_reason"] == run.note
    tracker.update(run.id, UpdateRequest(abort_after=0))
    tracker.resume(run.id)
    ended = tracker.wait(run.id, timeout=60)
    assert (ended.state, ended.note) == ("FINISHED", None)
    assert (ended.counts["ERROR"], ended.counts["FINISHED"]) == (12, 8)


def test_an_agent_that_never_started_counts_as_zero_and_is_no_graded_trial(tracker: LocalTracker) -> None:
    run = finished(tracker, "exit=127,exit=126,exit=3,ok", max_attempts=5)
    assert (run.state, run.score.graded, run.score.errors) == ("FINISHED", 2, {"agent": 2})
    assert (run.score.final_score, run.score.score_graded) == (0.5, 0.5)
    assert run.exit_codes == {"3": 1, "126": 1, "127": 1}
    causes = {group.cause: group for group in tracker.errors(run.id)}
    assert set(causes) == {"agent_not_started"} and not causes["agent_not_started"].retryable
    assert "exit code 12" in causes["agent_not_started"].message
    tracker.retry(run.id)
    tracker.wait(run.id, timeout=60)
    assert [len(tracker.attempts(run.id, f"exit={code}-0")) for code in (126, 127)] == [1, 1]
    assert tracker.results(run.id)["exit_codes"] == {"3": 1, "126": 1, "127": 1}


def test_a_run_of_which_nothing_was_graded_has_no_score(tracker: LocalTracker) -> None:
    run = finished(tracker, "ungraded*3", max_attempts=1)
    assert (run.score.final_score, run.score.score_graded, run.score.score_low) == (None, None, None)
    assert run.score.score_high is None and run.score.final_interval is None
    document = tracker.results(run.id)
    assert document["final_evaluation"]["final_score"] is None
    assert document["score"]["final_score"] is None
    assert dict(score_rows(run.score, ended=True))["score"] == "none: no trial was graded"


def test_infrastructure_errors_make_a_result_provisional(tracker: LocalTracker) -> None:
    run = finished(tracker, "ok*3,sandbox", max_attempts=1)
    assert run.score.provisional
    assert (run.score.score_graded, run.score.final_score) == (1.0, 0.75)
    assert run.score.coverage == 0.75


def test_a_flaky_provider_is_waited_for_and_the_slot_is_free_meanwhile(tracker: LocalTracker) -> None:
    full = tracker.start(request("full,ok*5", concurrency=1)).run
    until(lambda: tracker.fetch(full.id).counts["FINISHED"] == 5)
    assert tracker.fetch(full.id).counts["PENDING"] == 1
    tracker.stop(full.id)
    run = finished(tracker, "flaky", concurrency=1)
    assert run.counts["FINISHED"] == 1
    attempts = tracker.attempts(run.id, "flaky-0")
    assert [(one.outcome, one.cause) for one in attempts] == [
        ("failed", "sandbox_capacity"),
        ("graded", None),
    ]
    assert attempts[1].started_at - (attempts[0].finished_at or 0) >= 0.3


def test_agent_exits(tracker: LocalTracker) -> None:
    run = finished(tracker, "exit=3,timeout")
    rows, _ = tracker.trials(run.id, TrialFilter())
    assert [(row.state, row.exit_code, row.exit_reason) for row in rows] == [
        ("FINISHED", 3, None),
        ("FINISHED", 124, "TIMEOUT"),
    ]
    strict = finished(tracker, "exit=3,timeout,ok", on_agent_failure="error")
    assert strict.score.errors == {"agent": 1}
    assert strict.counts["FINISHED"] == 2


def test_stop_lets_running_trials_finish(tracker: LocalTracker) -> None:
    run = tracker.start(request("held*2,ok*20", concurrency=2)).run
    until(lambda: tracker.fetch(run.id).counts["IN_PROGRESS"] == 2)
    assert tracker.stop(run.id[:8]).state == "STOPPING"
    open_gate()
    ended = tracker.wait(run.id, timeout=60)
    assert (ended.state, ended.counts["FINISHED"], ended.counts["STOPPED"]) == ("STOPPED", 2, 20)
    with pytest.raises(UserError, match="STOPPED already"):
        tracker.stop(run.id)
    resumed = tracker.resume(run.id, ResumeRequest(concurrency=10))
    assert resumed.run.concurrency == 10
    ended = tracker.wait(run.id, timeout=60)
    assert (ended.state, ended.counts["FINISHED"], ended.score.final_score) == ("FINISHED", 22, 1.0)
    assert len(tracker.attempts(run.id, "held-0")) == 1
    again = tracker.resume(run.id)
    assert (again.run.state, again.run.finished_at) == ("FINISHED", ended.finished_at)
    assert again.notices == ["nothing is left to run"]


def test_retrying_a_run_without_errors_concludes_it_again(tracker: LocalTracker, tmp_path: Path) -> None:
    values.set_value("artifacts_folder", str(tmp_path / "kept"))
    run = finished(tracker, "ok*2")

    def uploads() -> list[tuple[str, str]]:
        return [(hook.trigger, hook.state) for hook in tracker.fetch(run.id).hooks]

    until(lambda: uploads() == [("ended:1", "done")])
    (file,) = (tmp_path / "kept" / "benchmarks" / run.id).glob("*.json")
    file.unlink()
    tracker.retry(run.id)
    ended = tracker.wait(run.id, timeout=60)
    assert (ended.state, ended.score.final_score, ended.counts["FINISHED"]) == ("FINISHED", 1.0, 2)
    until(lambda: uploads() == [("ended:1", "done"), ("ended:2", "done")])
    assert file.is_file() and len(tracker.attempts(run.id, "ok-0")) == 1
    assert tracker.retry(run.id, RetryRequest(category="infrastructure")).notices == [
        "nothing is left to run"
    ]


def test_a_task_that_is_named_is_run_again_after_an_error(tracker: LocalTracker) -> None:
    run = finished(tracker, "exit=3*2,ok", on_agent_failure="error")
    assert tracker.resume(run.id).notices == ["nothing is left to run"]
    tracker.resume(run.id, ResumeRequest(task_ids=["exit=3-1", "ok-0"]))
    tracker.wait(run.id, timeout=60)
    assert [len(tracker.attempts(run.id, task)) for task in ("exit=3-0", "exit=3-1", "ok-0")] == [1, 2, 1]


def test_force_stop_ends_running_trials_at_once(tracker: LocalTracker) -> None:
    run = tracker.start(request("held*3", concurrency=3)).run
    until(lambda: tracker.fetch(run.id).counts["IN_PROGRESS"] == 3)
    tracker.stop(run.id, StopRequest(force=True))
    ended = tracker.wait(run.id, timeout=60)
    assert (ended.state, ended.counts["STOPPED"]) == ("STOPPED", 3)
    assert [one.outcome for one in tracker.attempts(run.id, "held-0")] == ["stopped"]
    status = tracker.executor_status()
    assert status is not None and status["active"] == 0


def test_stopping_single_tasks(tracker: LocalTracker) -> None:
    run = tracker.start(request("held*2,ok", concurrency=2)).run
    until(lambda: tracker.fetch(run.id).counts["IN_PROGRESS"] == 2)
    tracker.stop(run.id, StopRequest(force=True, task_ids=["held-1"]))
    open_gate()
    ended = tracker.wait(run.id, timeout=60)
    assert (ended.counts["FINISHED"], ended.counts["STOPPED"]) == (2, 1)
    with pytest.raises(UsageError, match="has no task 'nope'"):
        tracker.stop(run.id, StopRequest(task_ids=["nope"]))


def test_concurrency_changes_live(tracker: LocalTracker) -> None:
    run = tracker.start(request("held*8", concurrency=1)).run
    until(lambda: tracker.fetch(run.id).counts["IN_PROGRESS"] == 1)
    assert tracker.update(run.id, UpdateRequest(concurrency=8)).concurrency == 8
    until(lambda: tracker.fetch(run.id).counts["IN_PROGRESS"] == 8)
    open_gate()
    assert tracker.wait(run.id, timeout=60).counts["FINISHED"] == 8


def test_retry_runs_errors_again_and_keeps_history(tracker: LocalTracker) -> None:
    run = finished(tracker, "ok,flaky*2", max_attempts=1)
    assert run.score.errors == {"infrastructure": 2}
    tracker.retry(run.id, RetryRequest(category="agent"))
    assert tracker.wait(run.id, timeout=60).counts["ERROR"] == 2
    tracker.retry(run.id, RetryRequest(task_ids=["flaky-0"]))
    assert tracker.wait(run.id, timeout=60).counts["ERROR"] == 1
    tracker.retry(run.id)
    ended = tracker.wait(run.id, timeout=60)
    assert (ended.counts["FINISHED"], ended.score.errors) == (3, {})
    assert [one.outcome for one in tracker.attempts(run.id, "flaky-1")] == ["failed", "graded"]
    assert len(tracker.attempts(run.id, "ok-0")) == 1


def test_an_end_by_the_agents_doing_counts_and_is_tried_again_only_on_demand(tracker: LocalTracker) -> None:
    run = finished(tracker, "ok*2,exit=3*2", on_agent_failure="error", max_attempts=5)
    assert (run.score.errors, run.score.final_score) == ({"agent": 2}, 0.5)

    def tries() -> list[int]:
        return [len(tracker.attempts(run.id, task)) for task in ("ok-0", "exit=3-0", "exit=3-1")]

    assert tries() == [1, 1, 1], "not even where more attempts are allowed"
    (said, *_) = tracker.retry(run.id).notices
    assert said == "2 trials that ended by the agent's own doing count as they are; " + (
        "--category agent runs them again"
    )
    ended = tracker.wait(run.id, timeout=60)
    assert (tries(), ended.score.errors) == ([1, 1, 1], {"agent": 2})
    (said, *_) = tracker.retry(run.id, RetryRequest(category="agent")).notices
    assert said.startswith("2 trials that had counted, by the agent's own doing, get a second try")
    ended = tracker.wait(run.id, timeout=60)
    assert (tries(), ended.score.second_tries) == ([1, 2, 2], 2)
    assert ("tries", "2 second tries after ends by the agent's own doing: not one try each") in score_rows(
        ended.score, ended=True
    )


def test_a_score_that_cannot_be_computed_is_a_run_error(tracker: LocalTracker) -> None:
    run = finished(tracker, "unscorable")
    assert run.state == "ERROR"
    assert run.error is not None and "aggregate cannot be computed" in run.error


def test_secrets_travel_by_hand_and_leave_no_trace(
    tracker: LocalTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("API_KEY", raising=False)
    with pytest.raises(UserError, match="API_KEY"):
        tracker.start(request("ok", agent=KEYED))
    assert tracker.list(RunFilter()).total == 0
    monkeypatch.setenv("API_KEY", "secret-value-123")
    run = finished(tracker, "ok,install", agent=KEYED)
    log = "".join(tracker.logs(run.id, "ok-0"))
    assert "the key is ***" in log
    status = tracker.executor_status()
    assert status is not None
    environment = Path(f"/proc/{status['pid']}/environ").read_bytes()
    assert b"secret-value-123" not in environment
    for path, content in contents_below(Path(os.environ["VALKYRIE_HOME"])):
        assert b"secret-value-123" not in content, path


def test_an_executor_without_the_secret_waits_and_says_so(
    tracker: LocalTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "secret-value-123")
    run = tracker.start(request("held*2", agent=KEYED, concurrency=1)).run
    until(lambda: tracker.fetch(run.id).counts["IN_PROGRESS"] == 1)
    status = tracker.executor_status()
    assert status is not None
    os.kill(status["pid"], signal.SIGKILL)
    until(lambda: tracker.fetch(run.id).executor == "none")
    note = tracker.fetch(run.id).note
    assert note is not None and f"valk run resume {run.id[:8]}" in note
    finished(tracker, "ok")  # another run starts an executor; the first waits for its secret
    until(lambda: "API_KEY" in (tracker.fetch(run.id).note or ""))
    until(lambda: tracker.fetch(run.id).counts["PENDING"] == 2)
    monkeypatch.delenv("API_KEY")
    with pytest.raises(MissingSecretError, match="API_KEY"):
        tracker.resume(run.id)
    monkeypatch.setenv("API_KEY", "secret-value-123")
    tracker.resume(run.id)
    until(lambda: tracker.fetch(run.id).counts["IN_PROGRESS"] == 1)
    tracker.stop(run.id, StopRequest(force=True))
    tracker.wait(run.id, timeout=60)


def test_logs_can_be_followed(tracker: LocalTracker) -> None:
    run = tracker.start(request("held")).run
    until(lambda: tracker.fetch(run.id).counts["IN_PROGRESS"] == 1)
    following = iter(tracker.logs(run.id, "held-0", follow=True))
    text = next(following)
    open_gate()
    text += "".join(following)
    assert "working on held-0" in text
    assert tracker.wait(run.id, timeout=60).state == "FINISHED"
    with pytest.raises(UsageError, match="attempts 1 to 1, not 7"):
        tracker.logs(run.id, "held-0", attempt=7)


def test_follow_ends_with_the_run(tracker: LocalTracker) -> None:
    run = tracker.start(request("slow=0.3*4", concurrency=2)).run
    views = list(tracker.follow(run.id, interval=0.05))
    assert views[-1].state == "FINISHED"
    assert [view.done for view in views] == sorted(view.done for view in views)


def test_outputs_and_delete(tracker: LocalTracker, tmp_path: Path) -> None:
    run = finished(tracker, "ok*2")
    written = tracker.outputs(run.id, tmp_path / "out", OutputsWanted(task_ids=["ok-1"]))
    assert [path.name for path in written] == ["ok-1"]
    assert (tmp_path / "out" / "ok-1" / "grading" / "verdict.txt").exists()
    assert "working on ok-1" in (tmp_path / "out" / "ok-1" / "attempt.log").read_text()
    assert Path(run.folder).exists()
    tracker.delete(run.id)
    assert not Path(run.folder).exists()
    with pytest.raises(UsageError, match="No run"):
        tracker.fetch(run.id)


def test_a_live_run_is_not_deleted(tracker: LocalTracker) -> None:
    run = tracker.start(request("held")).run
    with pytest.raises(UserError, match=r"stop .* --force"):
        tracker.delete(run.id)
    tracker.stop(run.id, StopRequest(force=True))
    tracker.wait(run.id, timeout=60)


def test_one_executor_serves_a_data_folder(tracker: LocalTracker) -> None:
    first = tracker.start(request("slow=1")).run
    pid = (tracker.executor_status() or {})["pid"]
    second = tracker.start(request("slow=1")).run
    assert (tracker.executor_status() or {})["pid"] == pid
    assert {tracker.wait(run.id, timeout=60).state for run in (first, second)} == {"FINISHED"}


def test_an_idle_executor_leaves(tracker: LocalTracker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALKYRIE_EXECUTOR_IDLE_S", "0.2")
    finished(tracker, "ok")
    until(lambda: tracker.executor_status() is None)


def test_an_executor_of_another_version_is_drained_and_replaced(
    tracker: LocalTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tracker.start(request("held,ok*2", concurrency=1)).run
    until(lambda: tracker.fetch(run.id).counts["IN_PROGRESS"] == 1)
    old = (tracker.executor_status() or {})["pid"]
    with monkeypatch.context() as newer:
        newer.setattr("valkyrie.executor.client.__version__", "9.9.9")
        ExecutorClient(DataFolder(Path(os.environ["VALKYRIE_HOME"]))).ensure()
    open_gate()
    until(lambda: not alive(old))
    until(lambda: tracker.fetch(run.id).state == "FINISHED")
    assert (tracker.executor_status() or {}).get("pid") != old
    assert len(tracker.attempts(run.id, "held-0")) == 1


def test_bad_requests_leave_nothing_behind(tracker: LocalTracker) -> None:
    for bad in (
        request("ok", agent="nobody"),
        request("ok", benchmark="nothing"),
        request("ok", task_ids=["ko-0"]),
        request("ok", slice="a:b"),
        request("ok", concurrency=0),
        request("ok", trials=0),
        request("ok", timeout_multiplier=0.0),
        request("ok", provider="locla"),
    ):
        with pytest.raises((UserError, UsageError)):
            tracker.start(bad)
    assert tracker.list(RunFilter()).total == 0
    until(lambda: tracker.executor_status() is None)
    runs = Path(os.environ["VALKYRIE_HOME"]) / "runs"
    assert not runs.exists() or not list(runs.iterdir())

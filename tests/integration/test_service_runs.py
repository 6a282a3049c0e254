"""Runs on benchmark services: good ones, failing ones, hostile ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest
from starlette.responses import HTMLResponse, JSONResponse, Response

from tests.integration.benchmark_service.conftest import serving
from tests.integration.conftest import until
from tests.integration.faulty_service import FaultyService
from tests.ports import free_port
from valkyrie.agents.protocol import AgentExit, AgentTrial
from valkyrie.config import values
from valkyrie.domain import Json
from valkyrie.errors import InfrastructureError, UsageError, UserError, ValkyrieError
from valkyrie.report.tables import started_rows
from valkyrie.testing.null import NapAgent
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import (
    ResultsWanted,
    RetryRequest,
    RunRequest,
    RunView,
    StopRequest,
    TrialFilter,
    TrialView,
)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NAP = "tests.integration.test_service_runs:SilentAgent"
Serve = Callable[[FaultyService], str]


class SilentAgent(NapAgent):
    """Does nothing, and is counted by its log."""

    name = "silent"
    frozen: ClassVar[Json] = {"kind": "plugin", "target": NAP}
    digest = "silent:1"
    final_output: str | None = "/answer.txt"

    async def run(self, trial: AgentTrial) -> AgentExit:
        trial.log("stdout", "the agent runs\n")
        await trial.sandbox.upload_file("/answer.txt", f"answer to {trial.task.id}".encode())
        return AgentExit(0)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts services; each is known to the config by the name `faulty`."""
    with ExitStack() as stack:

        def start(service: FaultyService) -> str:
            url = stack.enter_context(serving(service.app()))
            values.set_entry("custom_benchmark_services", "faulty", url)
            return url

        yield start


def request(**more: Any) -> RunRequest:
    return RunRequest(**{"agent": NAP, "benchmark": "faulty", "provider": "null", "max_attempts": 1, **more})


def finished(tracker: LocalTracker, **more: Any) -> RunView:
    return tracker.wait(tracker.start(request(**more)).run.id, timeout=60)


def trials(tracker: LocalTracker, run: RunView) -> dict[str, TrialView]:
    found, _ = tracker.trials(run.id, TrialFilter(limit=500))
    return {one.task_id: one for one in found}


def test_from_service_to_score(tracker: LocalTracker, serve: Serve) -> None:
    service = FaultyService(["ok-1", "ok-2", "setup-recovered-1"])
    serve(service)
    run = finished(tracker)
    assert (run.state, run.score.final_score, run.score.fraction) == ("FINISHED", 100.0, False)
    assert run.score.interval is None
    assert run.arguments["service"]["grading"] == "sandbox"
    assert run.arguments["service"]["versions"]["service_version"] == "1.2"
    assert any(name == "Service" and "version 1.2" in text for name, text in started_rows(run))
    document = tracker.results(run.id)
    assert document["evaluation_results"]["ok-1"]["by"] == "evaluate"
    assert document["final_evaluation"] == {"final_score": 100.0, "properties": {"good": 3}}
    log = "".join(tracker.logs(run.id, "setup-recovered-1"))
    assert "error: a hiccup, going on" in log and "setting up setup-recovered-1" in log
    assert service.asked["evaluate", "ok-1"] == 1


def test_some_tasks_are_scored_by_the_service_and_the_run_keeps_its_own_score(
    tracker: LocalTracker, serve: Serve
) -> None:
    values.set_entry("benchmark_auth", "faulty", "Bearer let-me-in")
    service = FaultyService(["ok-1", "ok-2", "grade-error-1"], key="Bearer let-me-in")
    serve(service)
    run = finished(tracker)
    part = tracker.results(run.id, ResultsWanted(task_ids=["ok-2"]))
    assert part["final_evaluation"] == {"final_score": 100.0, "properties": {"good": 1}}
    assert list(service.scored[-1]) == ["ok-2"] and part["subset"] == ["ok-2"]
    assert (part["score"]["planned"], part["score"]["coverage"], part["score"]["errors"]) == (1, 1.0, {})
    wrong = tracker.results(run.id, ResultsWanted(task_ids=["ok-1", "grade-error-1"]))["score"]
    assert (wrong["final_score"], wrong["score_graded"], wrong["errors"]) == (50.0, 100.0, {"benchmark": 1})
    whole = tracker.results(run.id)
    assert whole["score"]["planned"] == 3 and whole["final_evaluation"]["properties"] == {"good": 2}
    values.remove_entry("benchmark_auth", "faulty")
    alone = tracker.results(run.id, ResultsWanted(task_ids=["ok-2"]))
    assert "Authorization" in alone["final_evaluation"]["properties"]["not_computed"]
    assert alone["score"]["final_score"] is None and alone["score"]["graded"] == 1
    given = {"authorization": "Bearer let-me-in"}
    assert (
        tracker.results(run.id, ResultsWanted(task_ids=["ok-2"], headers=given))["score"]["final_score"]
        == 100.0
    )


def test_every_fault_has_its_category_and_hurts_nobody_else(tracker: LocalTracker, serve: Serve) -> None:
    expected = {
        "setup-error-1": ("benchmark", "service_failed", "the dataset's checksum is wrong"),
        "setup-drop-1": ("infrastructure", "service_unreachable", "1012"),
        "setup-malformed-1": ("benchmark", "service_protocol", "malformed chunk"),
        "setup-huge-1": ("benchmark", "service_protocol", "larger than"),
        "setup-forever-1": ("benchmark", "setup_timeout", "longer than"),
        "grade-error-1": ("benchmark", "service_failed", "the dataset's checksum is wrong"),
        "grade-malformed-1": ("benchmark", "service_protocol", "malformed chunk"),
        "grade-nan-1": ("benchmark", "service_protocol", ""),
    }
    good = [f"ok-{number}" for number in range(6)] + ["grade-big-1", "grade-recovered-1", "grade-drop-once-1"]
    service = FaultyService([*expected, *good])
    serve(service)
    # Alone in its haste: the others have the time they need.
    hasty = tracker.start(request(task_ids=["setup-forever-1"], timeout_multiplier=0.002)).run
    run = finished(tracker, concurrency=20, task_ids=[*(expected.keys() - {"setup-forever-1"}), *good])
    found = trials(tracker, run) | trials(tracker, tracker.wait(hasty.id, timeout=60))
    for task, (category, cause, words) in expected.items():
        trial = found[task]
        assert (trial.state, trial.category, trial.cause) == ("ERROR", category, cause), (task, trial.message)
        assert words in (trial.message or "") and "\n" not in (trial.message or ""), trial.message
    assert [found[task].state for task in good] == ["FINISHED"] * len(good)
    assert run.state == "FINISHED" and run.score.graded == len(good)
    # Once about the agent's sandbox, once about the control's.
    assert service.asked["evaluate", "grade-error-1"] == 2
    assert tracker.executor_status() is not None


def test_a_service_that_comes_back_grades_the_same_sandbox_again(tracker: LocalTracker, serve: Serve) -> None:
    service = FaultyService(["grade-drop-once-1"])
    serve(service)
    run = finished(tracker)
    assert run.score.final_score == 100.0
    log = "".join(tracker.logs(run.id, "grade-drop-once-1"))
    assert log.count("the agent runs") == 1
    assert len(tracker.attempts(run.id, "grade-drop-once-1")) == 1


def test_grading_goes_on_from_its_saved_state(tracker: LocalTracker, serve: Serve) -> None:
    service = FaultyService(["grade-checkpoint-1", "grade-checkpoint-lost-1"])
    serve(service)
    run = finished(tracker)
    found = trials(tracker, run)
    assert found["grade-checkpoint-1"].state == "FINISHED"
    lost = found["grade-checkpoint-lost-1"]
    assert (lost.state, lost.cause) == ("ERROR", "service_unreachable")
    again = tracker.wait(tracker.retry(run.id).run.id, timeout=60)
    assert again.score.final_score == 100.0
    first, second = tracker.attempts(run.id, "grade-checkpoint-lost-1")
    assert "agent" in first.timing and "agent" not in second.timing
    assert "the agent runs" not in "".join(tracker.logs(run.id, "grade-checkpoint-lost-1"))
    assert service.asked["evaluate", "grade-checkpoint-lost-1"] == 1
    assert tracker.results(run.id)["evaluation_results"]["grade-checkpoint-lost-1"]["by"] == "resume"


@pytest.mark.slow
def test_from_scratch_forgets_the_saved_state(tracker: LocalTracker, serve: Serve) -> None:
    service = FaultyService(["grade-checkpoint-lost-1"])
    serve(service)
    run = finished(tracker)
    tracker.wait(tracker.retry(run.id, RetryRequest(from_scratch=True)).run.id, timeout=60)
    assert service.asked["evaluate", "grade-checkpoint-lost-1"] == 2
    assert "agent" in tracker.attempts(run.id, "grade-checkpoint-lost-1")[1].timing


def test_text_answers_are_graded_and_never_asked_for_twice(tracker: LocalTracker, serve: Serve) -> None:
    service = FaultyService(["ok-1", "fails-once-1", "html-1"], eval_mode="text")
    serve(service)
    run = finished(tracker)
    found = trials(tracker, run)
    assert found["ok-1"].state == "FINISHED"
    failed = found["fails-once-1"]
    # It crashed over the answer, and graded an empty one. The answer is not judged a second time: one that
    # makes a judge fail unless it passes would have two tries.
    assert (failed.category, failed.cause) == ("agent", "grader_broken_by_work")
    assert "the judge crashed" in (failed.message or "")
    assert service.responses["fails-once-1"] == ["answer to fails-once-1", ""]
    assert (found["html-1"].category, found["html-1"].cause) == ("benchmark", "service_protocol")
    again = tracker.wait(tracker.retry(run.id, RetryRequest(task_ids=["fails-once-1"])).run.id, timeout=60)
    assert again.counts["FINISHED"] == 2
    assert service.responses["fails-once-1"] == ["answer to fails-once-1", "", "answer to fails-once-1"]
    assert "agent" not in tracker.attempts(run.id, "fails-once-1")[1].timing
    assert run.arguments["settings"] and tracker.results(run.id)["evaluation_results"]["ok-1"]["correct"]


def test_text_grading_can_be_configured(tracker: LocalTracker, serve: Serve) -> None:
    service = FaultyService(["ok-1"])
    url = serve(service)
    values.set_entry("custom_benchmark_services", "faulty", {"url": url, "grading": "text"})
    assert finished(tracker).score.final_score == 100.0
    assert service.asked["response", "ok-1"] == 1 and not service.asked["evaluate", "ok-1"]


@pytest.mark.parametrize(
    ("listing", "kind", "words"),
    [
        (JSONResponse({"detail": "Internal server error"}, 500), ValkyrieError, "500"),
        (JSONResponse({"detail": "Dataset not allowed"}, 403), UserError, "Dataset not allowed"),
        (JSONResponse({"detail": [{"msg": "bad"}]}, 422), UsageError, "422"),
        (HTMLResponse("<html><title>Welcome</title></html>"), ValkyrieError, "text/html"),
        (JSONResponse({"task_ids": []}), UsageError, "no tasks"),
        (JSONResponse({"ids": 3}), ValkyrieError, "faulty"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    tracker: LocalTracker, serve: Serve, listing: Response, kind: type[ValkyrieError], words: str
) -> None:
    service = FaultyService(["ok-1"])
    service.listing = listing
    serve(service)
    with pytest.raises(kind, match=words):
        tracker.start(request())


def test_a_service_that_is_down_is_named(tracker: LocalTracker) -> None:
    values.set_entry("custom_benchmark_services", "faulty", "http://127.0.0.1:9")
    with pytest.raises(InfrastructureError, match=r"faulty.*127\.0\.0\.1:9"):
        tracker.start(request())


def test_unknown_dataset_task_and_task_needs(tracker: LocalTracker, serve: Serve) -> None:
    serve(FaultyService(["ok-1", "image-1", "gpu-1"]))
    with pytest.raises(UsageError, match="Available"):
        tracker.start(request(dataset="x"))
    with pytest.raises(UsageError, match="unknown task id 'ok-3'"):
        tracker.start(request(task_ids=["ok-3"]))
    with pytest.raises(UserError, match=r"python:3\.12-slim.*--host-image"):
        tracker.start(request(task_ids=["image-1"], provider="process"))
    with pytest.raises(UserError, match="asks for a GPU"):
        tracker.start(request(task_ids=["gpu-1"]))
    assert finished(tracker, task_ids=["image-1"], host_image=True).score.final_score == 100.0


def test_the_credential_is_sent_kept_out_of_sight_and_asked_for_again(
    tracker: LocalTracker, serve: Serve, tmp_path: Path
) -> None:
    secret = "Bearer s3cret-credential-of-mine"
    service = FaultyService(["ok-1", "grade-error-1"], key=secret)
    serve(service)
    with pytest.raises(UserError, match="config auth set faulty"):
        tracker.start(request())
    run = finished(tracker, headers={"Authorization": secret, "X-Team": "blue"})
    assert run.counts["FINISHED"] == 1
    assert service.seen_headers[-1]["x-team"] == "blue"
    with pytest.raises(UserError, match="-H Authorization VALUE -H X-Team VALUE"):
        tracker.retry(run.id)
    tracker.wait(
        tracker.retry(run.id, RetryRequest(headers={"authorization": secret, "X-Team": "b"})).run.id,
        timeout=60,
    )
    values.set_entry("benchmark_auth", "faulty", secret)
    tracker.wait(tracker.retry(run.id, RetryRequest(headers={"X-Team": "b"})).run.id, timeout=60)
    assert len(tracker.attempts(run.id, "grade-error-1")) == 3
    said = json.dumps(tracker.results(run.id)) + json.dumps(run.arguments)
    kept = b"".join(path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file())
    assert "s3cret" not in said and b"s3cret" not in kept


def test_a_service_elsewhere_needs_a_way_to_our_sandboxes(
    tracker: LocalTracker, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    from valkyrie.benchmarks.service.address import ServiceAddress

    serve(FaultyService(["ok-1"]))
    monkeypatch.setattr(ServiceAddress, "on_loopback", False)
    with pytest.raises(UserError, match=r"sandbox_public_url.*--provider daytona"):
        tracker.start(request())
    plan = tracker.plan(request())
    assert len(plan.problems) == 1


@pytest.mark.slow
def test_a_service_elsewhere_is_told_the_public_address(
    tracker: LocalTracker, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    from valkyrie.benchmarks.service.address import ServiceAddress

    service = FaultyService(["ok-1"])
    serve(service)
    port = free_port()
    monkeypatch.setattr(ServiceAddress, "on_loopback", False)
    values.set_value("sandbox_public_url", f"http://127.0.0.1:{port}")
    values.set_value("sandbox_port", str(port))
    assert finished(tracker).score.final_score == 100.0
    assert {headers["x-api-url"] for headers in service.stream_headers} == {f"http://127.0.0.1:{port}/api"}


@pytest.mark.slow
def test_ten_thousand_tasks(tracker: LocalTracker, serve: Serve) -> None:
    ids = [f"ok-{number}" for number in range(10_000)]
    serve(FaultyService(ids))
    plan = tracker.plan(request(task_ids=ids))
    assert not plan.problems and len(plan.trials) == 10_000


@pytest.mark.slow
def test_several_trials_a_task_are_scored_round_by_round(tracker: LocalTracker, serve: Serve) -> None:
    service = FaultyService(["ok-1", "ok-2"])
    serve(service)
    run = finished(tracker, trials=2)
    assert run.score.final_score == 100.0 and len(service.scored) == 2
    assert all(set(found) == {"ok-1", "ok-2"} for found in service.scored)


def test_a_service_that_moved_is_found_where_it_is_now(tracker: LocalTracker, serve: Serve) -> None:
    first, second = FaultyService(["ok-1", "grade-error-1"]), FaultyService(["ok-1", "grade-error-1"])
    serve(first)
    run = finished(tracker)
    url = serve(second)
    started = tracker.retry(run.id)
    assert any(url in notice for notice in started.notices)
    again = tracker.wait(run.id, timeout=60)
    assert second.asked["evaluate", "grade-error-1"] == 1 and second.scored
    assert again.arguments["service"]["url"] == url


def test_what_is_tried_again_is_not_kept_quiet(tracker: LocalTracker, serve: Serve) -> None:
    serve(FaultyService(["setup-drop-1", "ok-1"]))
    run = tracker.start(request(max_attempts=3)).run
    until(lambda: tracker.errors(run.id))
    (group,) = tracker.errors(run.id)
    assert (group.retrying, group.cause, group.task_ids) == (True, "service_unreachable", ["setup-drop-1"])
    tracker.stop(run.id, StopRequest(force=True))
    tracker.wait(run.id, timeout=60)

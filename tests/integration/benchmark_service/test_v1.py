"""The `/v1` routes over HTTP: access, grading as text, scores, task lists, inputs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmark_service import BenchmarkService
from benchmark_service.schemas import StreamErrorChunk, StreamMessageChunk, StreamResultChunk
from tests.integration.benchmark_service.quizzes import Hosted, Quiz, hosted, submission


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hosted]:
    async with hosted(monkeypatch) as running:
        yield running


async def test_a_right_and_a_wrong_answer(service: Hosted) -> None:
    async with service.caller() as caller:
        right = await caller.post("/v1/evaluate", json=submission("4"))
        wrong = await caller.post("/v1/evaluate", json=submission("5"))
    assert right.json() == {
        "run_id": "r1",
        "task_id": "q1",
        "status": "evaluated",
        "evaluator_version": "7.1",
        "result": {"resolved": True, "secret_key_facts": "the answer was 4"},
        "errors": [],
    }
    assert wrong.json()["result"]["resolved"] is False


async def test_a_failure_in_grading_is_an_answer_without_a_traceback(
    service: Hosted, caplog: pytest.LogCaptureFixture
) -> None:
    async with service.caller() as caller:
        answer = await caller.post("/v1/evaluate", json=submission("crash"))
    assert answer.status_code == 200
    body = answer.json()
    assert (body["status"], body["result"]) == ("error", None)
    [error] = body["errors"]
    assert "the judge is down" in error
    assert "Traceback" not in answer.text
    error_id = error.rpartition("error id ")[2].rstrip(")")
    [logged] = [record for record in caplog.records if error_id in record.getMessage()]
    assert logged.exc_info


async def test_a_result_that_is_not_json_is_a_failure_in_grading(service: Hosted) -> None:
    async with service.caller() as caller:
        body = (await caller.post("/v1/evaluate", json=submission("nan"))).json()
    assert body["status"] == "error"
    assert "not a JSON number" in body["errors"][0]


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        (submission(task_id="q9"), 404, "Task not found: q9"),
        (submission(dataset="private"), 403, "Dataset=private access not allowed"),
        (submission(dataset="no-such"), 403, "Dataset=no-such access not allowed"),
        (submission(dataset="unloaded"), 404, "Dataset not found: unloaded"),
        (submission({"not": "text"}), 400, "Payload not accepted: data of a text payload must be a string"),
        (
            submission(payload={"type": "artifact", "schema": "s", "data": "k"}),
            400,
            "Payload not accepted: only text",
        ),
    ],
)
async def test_refusals(service: Hosted, body: dict[str, Any], status: int, detail: str) -> None:
    async with service.caller() as caller:
        answer = await caller.post("/v1/evaluate", json=body)
    assert (answer.status_code, answer.json()) == (status, {"detail": detail})


async def test_malformed_bodies_are_422(service: Hosted) -> None:
    async with service.caller() as caller:
        for path in ("/v1/evaluate", "/v1/score", "/v1/submissions/upload-url"):
            for body in ({}, [], {"run_id": 1}):
                assert (await caller.post(path, json=body)).status_code == 422


async def test_scores_are_of_raw_results(service: Hosted) -> None:
    results = {
        "q1": {"status": "evaluated", "result": {"resolved": True}},
        "q2": {"status": "error", "result": {"resolved": True}, "errors": ["boom"]},
    }
    async with service.caller() as caller:
        answer = await caller.post("/v1/score", json={"run_id": "r", "evaluation_results": results})
        assert answer.json() == {
            "run_id": "r",
            "tasks_evaluated": ["q1", "q2"],
            "final_score": 50.0,
            "metadata": {"solved": ["q1"]},
        }
        assert Quiz.scored == {"q1": {"resolved": True}, "q2": None}
        absent = {"run_id": "r", "evaluation_results": {"q1": None}}
        assert (await caller.post("/v1/score", json=absent)).json()["final_score"] == 0.0
        unknown = await caller.post("/v1/score", json={"run_id": "r", "evaluation_results": {"zz": None}})
        assert (unknown.status_code, unknown.json()) == (400, {"detail": "Task ID not found: zz"})
        for dataset, status in (("private", 403), ("unloaded", 404)):
            body = {"run_id": "r", "dataset": dataset, "evaluation_results": {}}
            assert (await caller.post("/v1/score", json=body)).status_code == status


async def test_task_lists_check_access_before_existence(service: Hosted) -> None:
    async with service.caller() as caller:
        hard = await caller.get("/v1/datasets/hard/tasks")
        assert hard.json() == {
            "dataset": "hard",
            "dataset_version": None,
            "tasks": [{"id": "h1", "question": "?", "timeout": 5.0, "hint": "42"}],
        }
        for name, status, text in (
            ("private", 403, "Dataset=private access not allowed"),
            ("no-such", 403, "Dataset=no-such access not allowed"),
            ("unloaded", 404, "Dataset not found: unloaded"),
        ):
            answer = await caller.get(f"/v1/datasets/{name}/tasks")
            assert (answer.status_code, answer.json()) == (status, {"detail": text})


async def test_trial_tenants_see_less(service: Hosted) -> None:
    async with service.caller("tiny-key") as caller:
        good = (await caller.post("/v1/evaluate", json=submission("4"))).json()
        assert (good["status"], good["result"], good["evaluator_version"]) == (
            "evaluated",
            {"resolved": True},
            None,
        )
        bad = (await caller.post("/v1/evaluate", json=submission("crash"))).json()
        assert (bad["status"], bad["errors"]) == ("error", ["error"])
        results = {"q1": {"status": "evaluated", "result": {"resolved": True}}}
        score = (await caller.post("/v1/score", json={"run_id": "r", "evaluation_results": results})).json()
        assert (score["final_score"], score["metadata"]) == (100.0, {})
        listed = (await caller.get("/v1/datasets/default/tasks")).json()
        assert listed["tasks"][0] == {"id": "q1", "question": "?", "timeout": 5.0}
        upload = {"run_id": "r", "task_id": "q1", "filename": "f"}
        assert (await caller.post("/v1/submissions/upload-url", json=upload)).status_code == 403


class Plain(Quiz):
    """Neither lists its tasks nor serves trials; streams its grading, with an error on the way."""

    list_tasks = BenchmarkService.list_tasks
    project_trial_result = BenchmarkService.project_trial_result
    accepted_submission_schemas: ClassVar[Any] = {"text": frozenset({"quiz.text.v1"})}

    async def stream_evaluate_response(self, request: Any, dataset: str | None = None) -> Any:
        yield StreamMessageChunk(type="message", data="thinking")
        yield StreamErrorChunk(type="error", data="the judge stumbled")
        if request.response != "no result":
            yield StreamResultChunk(type="result", data=request.response)
            raise AssertionError("nothing is asked of a stream after its result")


async def test_what_a_service_does_not_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosted(monkeypatch, Plain) as service, service.caller() as caller:
        assert (await caller.get("/v1/datasets/default/tasks")).status_code == 501
        other = {"type": "text", "schema": "quiz.text.v2", "data": "x"}
        refused = await caller.post("/v1/evaluate", json=submission(payload=other))
        assert refused.status_code == 400
        assert "quiz.text.v2" in refused.json()["detail"]
        async with service.caller("tiny-key") as trial:
            assert (await trial.post("/v1/evaluate", json=submission())).status_code == 501


async def test_an_error_chunk_is_fatal_only_without_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosted(monkeypatch, Plain) as service, service.caller() as caller:
        assert (await caller.post("/v1/evaluate", json=submission("fine"))).json()["result"] == "fine"
        failed = (await caller.post("/v1/evaluate", json=submission("no result"))).json()
        assert (failed["status"], failed["errors"]) == ("error", ["the judge stumbled"])


class Slow(Quiz):
    """Grades when it is told to."""

    go: ClassVar[asyncio.Event]
    started: ClassVar[asyncio.Event]

    async def evaluate_response(self, request: Any, dataset: str | None = None) -> Any:
        self.started.set()
        await self.go.wait()
        return {"resolved": True}


async def test_duplicates_and_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    Slow.go, Slow.started = asyncio.Event(), asyncio.Event()
    monkeypatch.setenv("GRADING_MAX_CONCURRENCY", "1")
    monkeypatch.setenv("GRADING_MAX_QUEUED", "0")
    monkeypatch.setenv("GRADING_QUEUE_TIMEOUT_S", "12")
    async with (
        hosted(monkeypatch, Slow) as service,
        service.caller() as caller,
        service.caller("tiny-key") as other,
    ):
        running = asyncio.ensure_future(caller.post("/v1/evaluate", json=submission()))
        await Slow.started.wait()
        again = await caller.post("/v1/evaluate", json=submission())
        assert again.status_code == 409
        for who in (caller, other):
            full = await who.post("/v1/evaluate", json=submission(task_id="q2"))
            assert (full.status_code, full.headers["retry-after"]) == (429, "12")
        Slow.go.set()
        assert (await running).json()["status"] == "evaluated"
        assert (await caller.post("/v1/evaluate", json=submission())).status_code == 200


async def test_a_quota_without_a_table_is_503_and_grades_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    monkeypatch.delenv("EVALUATION_QUOTA_TABLE_NAME", raising=False)
    limited = {"acme": {"datasets": ["default"], "evaluation_quota": {"limit": 1, "period": "day"}}}
    async with hosted(monkeypatch, tenants=limited) as service, service.caller() as caller:
        answer = await caller.post("/v1/evaluate", json=submission("crash"))
    assert answer.status_code == 503
    assert "EVALUATION_QUOTA_TABLE_NAME" in caplog.text
    assert "the judge is down" not in caplog.text


async def test_input_files(service: Hosted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Quiz, "inputs_folder", tmp_path)
    (tmp_path / "data.csv").write_bytes(b"a,b\n")
    (tmp_path / "secret.txt").write_bytes(b"no")
    base = "/v1/datasets/default/tasks/q1/inputs"
    async with service.caller() as caller:
        listed = await caller.get(base)
        assert listed.json()["inputs"][0] == {"filename": "data.csv", "dest": "/inputs/data.csv"}
        assert (await caller.get(f"{base}/data.csv")).content == b"a,b\n"
        for name in ("secret.txt", "gone.csv", "..%2Fsecret.txt"):
            assert (await caller.get(f"{base}/{name}")).status_code == 404
        assert (await caller.get("/v1/datasets/private/tasks/p1/inputs")).status_code == 403
        assert (await caller.get("/v1/datasets/default/tasks/zz/inputs")).status_code == 404


async def test_the_schema_names_the_v1_answers(service: Hosted) -> None:
    async with service.caller() as caller:
        schema = (await caller.get("/openapi.json")).json()
    responses = schema["paths"]["/v1/evaluate"]["post"]["responses"]
    assert {"200", "400", "403", "404", "409", "413", "422", "429", "503"} <= set(responses)

"""The HTTP routes as a client meets them, on a live server."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import Request

from benchmark_service import BenchmarkServiceApp, EvalMode
from tests.integration.benchmark_service.conftest import Live, live_app, serving
from tests.integration.benchmark_service.toy_service import ToyService

ALL = ["t1", "t2", "t3", "t4", "t5"]


@pytest.fixture
def http(toy: Live) -> Iterator[httpx.Client]:
    with httpx.Client(verify=False, base_url=toy.url, follow_redirects=True) as client:
        yield client


def test_health_and_version_are_public(http: httpx.Client) -> None:
    assert http.get("/health").json() == {"status": "ok"}
    version = http.get("/version").json()
    assert version["framework_version"]
    assert (version["service_name"], version["service_version"], version["eval_mode"]) == (None, None, None)
    assert version["sandbox_providers"] == [] and version["dataset_version_selection"] is False


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", ALL),
        ("?task_ids=t3&task_ids=t1&task_ids=t3", ["t3", "t1"]),
        ("?slice=1:5:2", ["t2", "t4"]),
        ("?slice=3", ["t4", "t5"]),
        ("?slice=-2:", ["t4", "t5"]),
        ("?dataset=small", ["s1", "t2"]),
        ("?dataset=", ALL),
        ("?task_ids=t2&slice=4:", ["t2"]),
    ],
)
def test_verify_task_ids(http: httpx.Client, query: str, ids: list[str]) -> None:
    assert http.get(f"/verify-task-ids{query}").json() == {"task_ids": ids}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?task_ids=nope", "Task ID not found: nope"),
        ("?dataset=nope", "There is no dataset 'nope', only 'default', 'small'"),
        ("?slice=a:b", "Invalid slice format"),
        ("?slice=::0", "Invalid slice format"),
    ],
)
def test_verify_task_ids_refuses_what_is_not_there(http: httpx.Client, query: str, said: str) -> None:
    answer = http.get(f"/verify-task-ids{query}")
    assert answer.status_code == 400
    assert said in answer.json()["detail"]


def test_ten_thousand_ids_go_in_a_body(http: httpx.Client) -> None:
    asked = {"task_ids": ["t2", "t1"] * 5000, "dataset": None}
    assert http.post("/verify-task-ids", json=asked).json() == {"task_ids": ["t2", "t1"]}
    assert http.post("/verify-task-ids", json={"slice": ":2"}).json() == {"task_ids": ["t1", "t2"]}
    assert http.post("/verify-task-ids", json={"task_ids": ["nope"]}).status_code == 400


def test_retrieve_task(http: httpx.Client) -> None:
    task = http.get("/retrieve-task/", params={"task_id": "t1"}).json()
    assert task["docker_image"] == "python:3.12-slim"
    assert task["source"] == {"type": "image", "image": "python:3.12-slim"}
    assert task["resources"]["vcpu"] == 1
    assert http.get("/retrieve-task/", params={"task_id": "new"}).status_code == 400
    skipping = {"task_id": "new", "skip_validation": "true"}
    assert http.get("/retrieve-task/", params=skipping).status_code == 200
    assert http.get("/retrieve-task/").status_code == 422


def test_a_missing_slash_is_a_307(toy: Live) -> None:
    answer = httpx.post(f"{toy.url}/final-score", json={"evaluation_results": {}})
    assert answer.status_code == 307
    assert answer.headers["location"].endswith("/final-score/")


def test_evaluate_response(http: httpx.Client) -> None:
    def graded(**body: Any) -> Any:
        return http.post("/evaluate-response/", json=body).json()

    assert graded(task_id="t1", response="1") == {"resolved": True}
    assert graded(task_id="t1", response="2", dataset=None) == {"resolved": False}
    assert http.post("/evaluate-response/", json={"task_id": "t1"}).status_code == 422


def test_half_a_surrogate_pair_comes_through(http: httpx.Client) -> None:
    body = b'{"task_id": "t1", "response": "lone \\ud800"}'
    answer = http.post("/evaluate-response/", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.content) == (200, b'{"said":"lone \\ud800"}')


def test_a_service_bug_is_a_generic_500_with_its_traceback_in_the_log(
    http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="benchmark_service"):
        unknown_task = http.post("/evaluate-response/", json={"task_id": "nope", "response": "1"})
        bad_model = http.post("/evaluate-response/", json={"task_id": "t1", "response": "model"})
    for answer, kind in ((unknown_task, "KeyError"), (bad_model, "ValidationError")):
        assert (answer.status_code, answer.json()) == (500, {"detail": "Internal server error"})
        logged = [r for r in caplog.records if answer.headers["x-error-id"] in r.getMessage()]
        assert len(logged) == 1 and kind in caplog.handler.format(logged[0])


@pytest.mark.parametrize(
    ("response", "said"),
    [
        ("set", "result.scores[0] is a set, which is not JSON; make it a list"),
        ("nan", "result.score is nan, which is not a JSON number"),
        ("object", "result.inner is a object, which is not JSON"),
    ],
)
def test_a_result_that_is_not_json_is_named(http: httpx.Client, response: str, said: str) -> None:
    answer = http.post("/evaluate-response/", json={"task_id": "t1", "response": response})
    assert (answer.status_code, answer.json()["detail"]) == (500, said)


def test_troubles_with_the_callers_sandboxes_are_told_apart(http: httpx.Client) -> None:
    def ask(response: str, **more: Any) -> httpx.Response:
        return http.post("/evaluate-response/", json={"task_id": "t1", "response": response, **more})

    modal = {"type": "modal", "MODAL_TOKEN_ID": "i", "MODAL_TOKEN_SECRET": "s"}
    refused = ask("provider", sandbox_provider=modal)
    assert refused.status_code == 400 and "no modal sandboxes" in refused.json()["detail"]
    away, full = ask("away"), ask("full")
    assert (away.status_code, full.status_code) == (503, 503)
    assert "does not answer" in away.json()["detail"] and full.headers["retry-after"] == "3"


def test_unsupported_is_501_and_sys_exit_ends_nothing(http: httpx.Client) -> None:
    answer = http.post("/evaluate-response/", json={"task_id": "t1", "response": "unsupported"})
    assert (answer.status_code, answer.json()["detail"]) == (501, "text answers are not graded here")
    assert http.post("/evaluate-response/", json={"task_id": "t1", "response": "exit"}).status_code == 500
    assert http.get("/health").status_code == 200


def test_what_fails_validation_is_not_echoed(http: httpx.Client) -> None:
    body = (
        '{"task_id": "t1", "response": "1", "sandbox_provider": {"type": "daytona", "DAYTONA_API_KEY": NaN}}'
    )
    answer = http.post("/evaluate-response/", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert all(set(problem) == {"type", "loc", "msg"} for problem in answer.json()["detail"])


def test_docker_needs_to_be_enabled(http: httpx.Client) -> None:
    body = {"task_id": "t1", "response": "1", "sandbox_provider": {"type": "docker"}}
    answer = http.post("/evaluate-response/", json=body)
    assert (answer.status_code, answer.json()["detail"]) == (
        403,
        "Docker sandboxes are disabled on this service",
    )


def test_final_score(http: httpx.Client) -> None:
    results = {"t1": {"resolved": True}, "t2": {"resolved": False}, "t3": None, "t4": {"resolved": False}}
    assert http.post("/final-score/", json={"evaluation_results": results}).json() == {
        "tasks_evaluated": ["t1", "t2", "t3", "t4"],
        "final_score": 25.0,
        "metadata": {"resolved_tasks": ["t1"]},
    }
    assert http.post("/final-score", json={"evaluation_results": {}}).json()["final_score"] == 0.0
    unknown = http.post("/final-score/", json={"evaluation_results": {"nope": None}})
    assert (unknown.status_code, unknown.json()["detail"]) == (400, "Task ID not found: nope")


def test_both_callers_of_final_score_are_understood(http: httpx.Client, toy: Live) -> None:
    """One posts raw results, the other envelopes; the service sees raw results either way."""
    enveloped = {
        "t1": {"task_id": "t1", "status": "evaluated", "result": {"resolved": True}, "error": None},
        "t2": {"task_id": "t2", "status": "error", "result": {"resolved": True}, "error": "boom"},
        "t3": {"resolved": True, "status": "evaluated"},
    }
    answer = http.post("/final-score/", json={"evaluation_results": enveloped}).json()
    assert answer["metadata"] == {"resolved_tasks": ["t1", "t3"]}
    service = toy.app.service
    assert isinstance(service, ToyService)
    assert service.scored[-1] == {"t1": {"resolved": True}, "t2": None, "t3": enveloped["t3"]}


def test_a_score_that_is_not_a_number_is_a_fault_of_the_service(http: httpx.Client) -> None:
    answer = http.post("/final-score/", json={"evaluation_results": {"t5": None}})
    assert answer.status_code == 500
    assert "calculate_final_score returned the score nan" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ({"t1": {"kind": "evaluated"}, "t2": {"kind": "unavailable", "reason": "missing_result"}}, 200),
        ({"t1": {"kind": "evaluated"}}, 400),
        ({"t1": {"kind": "evaluated"}, "t2": {"kind": "evaluated"}}, 400),
        ({"t1": {"kind": "lost"}, "t2": {"kind": "unavailable"}}, 400),
    ],
)
def test_outcomes_must_match_the_results(http: httpx.Client, outcomes: Any, status: int) -> None:
    body = {"evaluation_results": {"t1": {"resolved": True}, "t2": None}, "task_outcomes": outcomes}
    assert http.post("/final-score/", json=body).status_code == status


class Keyed(ToyService):
    async def check_auth(self, headers: dict[str, str]) -> bool:
        return headers.get("authorization") == "my-secret-credential"


def test_a_service_with_auth_of_its_own_guards_everything_but_health_and_version() -> None:
    with live_app(Keyed) as live, httpx.Client(verify=False, base_url=live.url) as http:
        assert http.get("/health").status_code == http.get("/version").status_code == 200
        for path in ("/verify-task-ids", "/openapi.json", "/docs", "/retrieve-task/", "/nowhere", "/health/"):
            answer = http.get(path)
            assert (path, answer.status_code, answer.json()) == (path, 401, {"detail": "Unauthorized"})
        known = {"authorization": "my-secret-credential"}
        assert http.get("/verify-task-ids", headers=known).status_code == 200
        assert http.get("/openapi.json", headers=known).status_code == 200


def test_a_static_key_in_the_environment() -> None:
    with (
        live_app(ToyService, BENCHMARK_API_KEY="k1") as live,
        httpx.Client(verify=False, base_url=live.url) as http,
    ):
        assert http.get("/verify-task-ids").status_code == 401
        assert http.get("/verify-task-ids", headers={"Authorization": "Bearer k2"}).status_code == 401
        assert http.get("/verify-task-ids", headers={"Authorization": "Bearer k1"}).status_code == 200


class Picky(ToyService):
    sandbox_providers = ("daytona",)
    default_sandbox_provider = "daytona"
    eval_mode = EvalMode.TEXT

    async def check_dataset_access(self, tenant: str, dataset: str | None) -> bool:
        return dataset != "small"


def test_a_dataset_that_is_not_allowed_is_403_everywhere() -> None:
    with live_app(Picky) as live, httpx.Client(verify=False, base_url=live.url) as http:
        refused = [
            http.get("/verify-task-ids?dataset=small"),
            http.post("/verify-task-ids", json={"dataset": "small"}),
            http.get("/retrieve-task/?task_id=s1&dataset=small"),
            http.post("/evaluate-response/", json={"task_id": "s1", "response": "", "dataset": "small"}),
            http.post("/final-score/", json={"evaluation_results": {}, "dataset": "small"}),
        ]
        for answer in refused:
            assert (answer.status_code, answer.json()) == (403, {"detail": "Dataset not allowed"})


def test_declared_ways_of_grading_and_providers_are_reported_and_kept_to() -> None:
    with live_app(Picky) as live, httpx.Client(verify=False, base_url=live.url) as http:
        version = http.get("/version").json()
        assert version["eval_mode"] == "text"
        assert (version["sandbox_providers"], version["default_sandbox_provider"]) == (["daytona"], "daytona")
        assert http.get("/retrieve-task/?task_id=t1&sandbox_provider=daytona").status_code == 200
        assert http.get("/retrieve-task/?task_id=t1&sandbox_provider=modal").status_code == 400
        assert http.get("/retrieve-task/?task_id=t1&sandbox_provider=vapour").status_code == 422


def test_a_default_provider_outside_the_declared_ones_is_refused() -> None:
    class Confused(ToyService):
        sandbox_providers = ("daytona",)
        default_sandbox_provider = "modal"

    with pytest.raises(ValueError, match="default_sandbox_provider must be one of"):
        BenchmarkServiceApp(Confused)


def test_a_full_house_answers_429_with_retry_after() -> None:
    class Slow(ToyService):
        async def evaluate_response(self, request: Any, dataset: str | None = None) -> Any:
            inside.set()
            await asyncio.to_thread(leave.wait, 60)
            return {"resolved": True}

    inside, leave = threading.Event(), threading.Event()
    settings = {
        "GRADING_MAX_CONCURRENCY": "1",
        "GRADING_MAX_QUEUED": "0",
        "GRADING_QUEUE_TIMEOUT_S": "7",
    }
    with live_app(Slow, **settings) as live:
        url, body = f"{live.url}/evaluate-response/", {"task_id": "t1", "response": "1"}
        answers: list[httpx.Response] = []
        first = threading.Thread(target=lambda: answers.append(httpx.post(url, json=body, timeout=30)))
        first.start()
        try:
            assert inside.wait(60)
            busy = httpx.post(url, json=body)
        finally:
            leave.set()
            first.join(60)
    assert (busy.status_code, busy.headers["retry-after"]) == (429, "7")
    assert answers[0].status_code == 200


def test_a_service_may_replace_a_route_and_see_its_caller() -> None:
    """As the SkillsBench service does: it takes the route out of the list and puts in its own."""
    app = BenchmarkServiceApp(ToyService)
    app.router.routes = [r for r in app.router.routes if getattr(r, "path", None) != "/retrieve-task/"]

    async def retrieve(request: Request, task_id: str) -> dict[str, Any]:
        if task_id not in app.service.get_dataset():
            raise ValueError(f"no {task_id}")
        return {"mine": task_id, "tenant": request.state.tenant}

    app.add_api_route("/retrieve-task/", retrieve, methods=["GET"])
    app._service_version = "9.9"
    with serving(app) as url, httpx.Client(verify=False, base_url=url) as http:
        assert http.get("/retrieve-task/?task_id=t1").json() == {"mine": "t1", "tenant": "_legacy"}
        assert http.get("/retrieve-task/?task_id=x").json() == {"detail": "no x"}
        assert http.get("/version").json()["service_version"] == "9.9"


def test_a_service_that_cannot_load_does_not_start() -> None:
    class Broken(ToyService):
        async def load_datasets(self) -> dict[str, dict[str, Any]]:
            raise OSError("no such dataset on disk")

    with pytest.raises(RuntimeError, match="did not start"), live_app(Broken):
        pass

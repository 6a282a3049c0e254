"""The client's HTTP calls against a live server: what it sends, retries, accepts and refuses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from benchmark_service.client import BenchmarkServiceClient, VerifyTaskIdsResponse
from benchmark_service.errors import (
    BenchmarkServiceConnectionError,
    BenchmarkServiceError,
    BenchmarkServiceProtocolError,
    BenchmarkServiceUnauthenticatedError,
)
from benchmark_service.schemas import VersionResponse
from benchmark_service.v1_schemas import V1ScoreItem, V1Status
from tests.integration.benchmark_service.scripted_service import (
    JSONResponse,
    Pauses,
    Response,
    ScriptedService,
    client_of,
    unused_url,
)
from tests.secret_forms import FORMS, SECRET, shows_secret

TASK = {
    "docker_image": "python:3.12-slim",
    "problem_path": "/tmp/problem_statement.txt",
    "cwd": "/workspace",
    "resources": {"vcpu": 2, "memory": 4, "disk": 10},
}
SCORE = {"tasks_evaluated": ["a", "b"], "final_score": 50.0, "metadata": {"total": 2}}


class TestRequests:
    async def test_each_call_goes_where_the_protocol_says(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        service.answer("GET /health", JSONResponse({"status": "ok"}))
        service.answer("GET /version", JSONResponse({"framework_version": "0.45.1", "eval_mode": "text"}))
        service.answer("GET /verify-task-ids", JSONResponse({"task_ids": ["a", "b"]}))
        service.answer("GET /retrieve-task/", JSONResponse(TASK))
        service.answer("POST /evaluate-response/", JSONResponse({"resolved": True}))
        service.answer("POST /final-score/", JSONResponse(SCORE))

        assert await client.health_check() is True
        assert (await client.version("lite")).eval_mode == "text"
        verified = await client.verify_task_ids(["a", "b"], slice_str="0:2", dataset="lite")
        assert verified == VerifyTaskIdsResponse(task_ids=["a", "b"])
        task = await client.retrieve_task("a", skip_validation=True, dataset="lite")
        assert task.docker_image == "python:3.12-slim"
        assert await client.evaluate_response("a", "42", dataset="lite") == {"resolved": True}
        score = await client.final_score({"a": {"resolved": True}, "b": None}, dataset="lite")
        assert (score.final_score, score.tasks_evaluated) == (50.0, ["a", "b"])

        assert [(a.method, a.path, a.query, a.body) for a in service.asked] == [
            ("GET", "/health", "", None),
            ("GET", "/version", "dataset=lite", None),
            ("GET", "/verify-task-ids", "task_ids=a&task_ids=b&slice=0%3A2&dataset=lite", None),
            ("GET", "/retrieve-task/", "task_id=a&skip_validation=true&dataset=lite", None),
            ("POST", "/evaluate-response/", "", {"task_id": "a", "response": "42", "dataset": "lite"}),
            (
                "POST",
                "/final-score/",
                "",
                {"evaluation_results": {"a": {"resolved": True}, "b": None}, "dataset": "lite"},
            ),
        ]
        assert {asked.headers["authorization"] for asked in service.asked} == {"Bearer sesame"}

    async def test_v1_calls(self, service: ScriptedService, client: BenchmarkServiceClient) -> None:
        service.answer(
            "GET /v1/datasets/my set/tasks",
            JSONResponse({"dataset": "my set", "tasks": [{"id": "a", "question": "?", "level": 3}]}),
        )
        service.answer(
            "POST /v1/evaluate",
            JSONResponse({"run_id": "r", "task_id": "a", "status": "evaluated", "result": 1}),
        )
        service.answer("POST /v1/score", JSONResponse({"run_id": "r", **SCORE}))
        service.answer(
            "POST /v1/submissions/upload-url",
            JSONResponse({"key": "k", "url": "https://u", "expires_in": 3600}),
        )

        assert (await client.list_tasks("my set")).tasks[0].id == "a"
        assert (await client.v1_evaluate("r", "a", "42", "answer/1")).status is V1Status.EVALUATED
        items = {"a": V1ScoreItem(status=V1Status.EVALUATED, result=1), "b": None}
        assert (await client.v1_score("r", items)).final_score == 50.0
        assert (await client.v1_upload_url("r", "a", "out.zip")).key == "k"

        listed, evaluated, scored, uploaded = service.asked
        assert listed.path == "/v1/datasets/my set/tasks"
        assert evaluated.body == {
            "run_id": "r",
            "task_id": "a",
            "payload": {"type": "text", "schema": "answer/1", "data": "42"},
            "versions": {"runner": None},
        }
        assert scored.body["evaluation_results"] == {
            "a": {"status": "evaluated", "result": 1, "errors": []},
            "b": None,
        }
        assert uploaded.body == {"run_id": "r", "task_id": "a", "filename": "out.zip"}

    async def test_run_and_task_travel_as_headers(self, service: ScriptedService) -> None:
        service.answer("GET /health", JSONResponse({"status": "ok"}))
        async with client_of(service.url, run_id="run-1", task_id="tâche") as client:
            await client.health_check()
        headers = service.asked[0].headers
        assert (headers["x-vals-run-id"], headers["x-vals-task-id"]) == ("run-1", "t%C3%A2che")

    async def test_a_service_without_version_says_nothing(self, client: BenchmarkServiceClient) -> None:
        assert await client.version() == VersionResponse()

    async def test_a_redirect_within_the_service_is_followed_with_the_body(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        moved = Response(status_code=307, headers={"Location": "/final-score"})
        service.answer("POST /final-score/", moved)
        service.answer("POST /final-score", JSONResponse(SCORE))
        assert (await client.final_score({"a": None})).final_score == 50.0
        assert service.asked[-1].body == {"evaluation_results": {"a": None}}

    async def test_proxies_of_the_environment_are_not_used_for_loopback(
        self, service: ScriptedService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, unused_url())
        monkeypatch.delenv("no_proxy", raising=False)
        service.answer("GET /health", JSONResponse({"status": "ok"}))
        async with client_of(service.url) as client:
            assert await client.health_check(retry=False)

    async def test_an_agent_s_answer_that_is_no_text_still_arrives(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        service.answer("POST /evaluate-response/", JSONResponse({}))
        await client.evaluate_response("a", "half \ud800 😀")
        assert service.asked[0].body["response"] == "half ? 😀"

    async def test_what_is_not_json_is_not_sent(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        for bad in (float("nan"), {1, 2}):
            with pytest.raises(ValueError, match="not JSON"):
                await client.final_score({"a": bad})
        assert service.asked == []


class TestVerify:
    IDS = tuple(f"django__django-{number:05d}" for number in range(10_000))

    async def test_many_ids_go_in_one_body(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        service.answer("POST /verify-task-ids", JSONResponse({"task_ids": list(self.IDS)}))
        assert (await client.verify_task_ids(self.IDS, dataset="lite")).task_ids == list(self.IDS)
        assert service.asked[0].body == {"task_ids": list(self.IDS), "dataset": "lite"}
        assert len(service.asked) == 1

    @pytest.mark.parametrize("status", [404, 405])
    async def test_an_older_service_is_asked_in_batches(
        self, service: ScriptedService, client: BenchmarkServiceClient, status: int
    ) -> None:
        async def echo(request: Any) -> Response:
            return JSONResponse({"task_ids": request.query_params.getlist("task_ids")})

        service.answer("POST /verify-task-ids", JSONResponse({"detail": "no"}, status))
        service.answer("GET /verify-task-ids", echo)
        found = await client.verify_task_ids([*self.IDS, self.IDS[0]], dataset="lite")
        assert found.task_ids == list(self.IDS)
        asked = service.asked[1:]
        assert max(len(request.query) for request in asked) <= 6000
        assert all("dataset=lite" in request.query for request in asked)

    async def test_an_unknown_id_raises_with_the_service_s_words(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        service.answer("POST /verify-task-ids", JSONResponse({"detail": "Task ID not found: x"}, 400))
        with pytest.raises(BenchmarkServiceError, match="Task ID not found: x") as caught:
            await client.verify_task_ids(self.IDS)
        assert caught.value.status_code == 400
        assert len(service.asked) == 1

    async def test_no_ids_are_not_all_ids(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        assert (await client.verify_task_ids([])).task_ids == []
        assert service.asked == []


class TestErrors:
    @pytest.mark.parametrize(
        ("status", "detail", "said"),
        [
            (500, "Internal server error", "Internal server error"),
            (403, "Dataset not allowed", "Dataset not allowed"),
            (422, [{"loc": ["query", "task_id"], "msg": "Field required"}], "Field required"),
            (409, "x" * 9000, "xxx"),
        ],
    )
    async def test_a_refusal_keeps_status_and_words(
        self, service: ScriptedService, client: BenchmarkServiceClient, status: int, detail: Any, said: str
    ) -> None:
        service.answer("GET /retrieve-task/", JSONResponse({"detail": detail}, status))
        with pytest.raises(BenchmarkServiceError) as caught:
            await client.retrieve_task("a")
        text = str(caught.value)
        assert text.startswith(f"Retrieve task failed with status code {status}, response: ")
        assert said in text
        assert len(text) < 2200
        assert caught.value.status_code == status
        assert len(service.asked) == 1

    async def test_a_refused_credential_is_named_and_not_shown(self, service: ScriptedService) -> None:
        service.answer("GET /retrieve-task/", JSONResponse({"detail": "bad key sesame-4711"}, 401))
        async with client_of(service.url, {"Authorization": "Bearer sesame-4711"}) as client:
            with pytest.raises(BenchmarkServiceUnauthenticatedError) as caught:
                await client.retrieve_task("a")
        assert str(caught.value) == "Authentication failed: bad key ***"
        assert "sesame" not in repr(client)

    @pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
    async def test_a_service_that_echoes_a_form_of_the_credential(
        self, service: ScriptedService, form: str
    ) -> None:
        service.answer("GET /retrieve-task/", JSONResponse({"detail": f"bad key <{form}>"}, 401))
        async with client_of(service.url, {"Authorization": f"Bearer {SECRET}"}) as client:
            with pytest.raises(BenchmarkServiceUnauthenticatedError) as caught:
                await client.retrieve_task("a")
        assert "bad key <" in str(caught.value) and "***" in str(caught.value)
        assert not shows_secret(str(caught.value))

    async def test_a_page_instead_of_json(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        page = "<!doctype html>\n<title>ngrok</title>"
        service.answer("GET /retrieve-task/", Response(page, media_type="text/html"))
        with pytest.raises(BenchmarkServiceProtocolError) as caught:
            await client.retrieve_task("a")
        for piece in (service.url, "text/html", "<!doctype html>"):
            assert piece in str(caught.value)
        assert "ngrok" not in str(caught.value)

    async def test_a_gateway_s_page_is_read_as_text(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        page = "<html><body><h1>500 Oops</h1><p>try later</p></body></html>"
        service.answer("GET /retrieve-task/", Response(page, 500, media_type="text/html"))
        with pytest.raises(BenchmarkServiceError, match=r"response: 500 Oops try later$"):
            await client.retrieve_task("a")

    async def test_json_of_another_shape(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        service.answer("GET /retrieve-task/", JSONResponse({"problem_path": 7}))
        with pytest.raises(BenchmarkServiceProtocolError, match="problem_path"):
            await client.retrieve_task("a")

    async def test_nobody_there(self) -> None:
        pauses = Pauses()
        async with client_of(unused_url(), pause=pauses) as client:
            with pytest.raises(BenchmarkServiceConnectionError, match="check that it is running"):
                await client.retrieve_task("a")
        assert len(pauses.taken) == 4

    async def test_a_service_that_does_not_answer(self, service: ScriptedService) -> None:
        released = asyncio.Event()

        async def wait(_: Any) -> Response:
            await released.wait()
            return JSONResponse({})

        service.answer("GET /retrieve-task/", wait)
        for seconds in (0.05, 0.5, 5.0):  # all must have arrived, which takes a busy machine longer
            before = service.count("/retrieve-task/")
            async with client_of(service.url, timeout=seconds) as client:
                with pytest.raises(BenchmarkServiceConnectionError) as caught:
                    await client.retrieve_task("a")
            arrived = service.count("/retrieve-task/") - before
            if arrived == 5:
                break
        released.set()
        assert arrived == 5 and "did not answer" in str(caught.value)

    @pytest.mark.parametrize(
        "url",
        ["", "service:8001", "ftp://host", "http://", "http://h:99999999", "http://[::1", "http://h/?a=b"],
    )
    async def test_what_is_no_url(self, url: str) -> None:
        with pytest.raises(ValueError, match="looks like http"):
            BenchmarkServiceClient(url)

    async def test_a_header_that_cannot_travel_is_named_without_its_value(self) -> None:
        with pytest.raises(ValueError, match="X-Key") as caught:
            BenchmarkServiceClient("http://localhost", {"X-Key": "se\ncret"})
        assert "cret" not in str(caught.value)


class TestDatasetVersion:
    async def test_is_sent_and_must_be_confirmed(self, service: ScriptedService) -> None:
        name = "X-Benchmark-Dataset-Version"
        service.answer("GET /retrieve-task/", JSONResponse(TASK, headers={name: "v7"}), JSONResponse(TASK))
        service.answer(
            "POST /resolve-dataset",
            JSONResponse({"dataset": "lite", "version": {"id": "v7", "label": "7"}}),
        )
        async with client_of(service.url, dataset_version="v7") as client:
            assert (await client.resolve_dataset("lite")).id == "v7"
            await client.retrieve_task("a")
            with pytest.raises(BenchmarkServiceProtocolError, match="may not support choosing versions"):
                await client.retrieve_task("a")
        assert [asked.headers.get(name.lower()) for asked in service.asked] == [None, "v7", "v7"]

"""The client's streams against a live server: requests, chunks, ends, breaks and resuming."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from benchmark_service.client import BenchmarkServiceClient
from benchmark_service.errors import (
    BenchmarkServiceConnectionError,
    BenchmarkServiceError,
    BenchmarkServiceProtocolError,
    BenchmarkServiceStreamClosedError,
    BenchmarkServiceUnauthenticatedError,
)
from sandboxes.retry import LONGEST_ASKED_S
from sandboxes.types import ModalProviderConfig
from tests.integration.benchmark_service.scripted_service import (
    JSONResponse,
    Pauses,
    ScriptedService,
    WebSocketDisconnect,
    chunks,
    client_of,
    scripted,
)
from tests.integration.benchmark_service.stream_messages import (
    DAYTONA,
    EVALUATE,
    RESULT,
    RESUME,
    SETUP,
    error,
    message,
)


class TestAddresses:
    """Where connections go to is up to whoever made the client, if they say so."""

    async def test_calls_and_streams_go_where_the_resolver_says(self, service: ScriptedService) -> None:
        asked: list[tuple[str, int]] = []
        port = int(service.url.rpartition(":")[2])

        async def resolve(host: str, at: int) -> list[str]:
            asked.append((host, at))
            return ["127.0.0.2" if at != port else "127.0.0.1"]

        service.stream(EVALUATE, chunks(RESULT))
        async with client_of(f"http://quiz.test:{port}", resolve=resolve) as client:
            assert not await client.health_check(), "answered, by a script that knows no /health"
            assert await client.evaluate_instance("a", "box") == {"resolved": True}
        assert asked == [("quiz.test", port)] * 2

    async def test_what_it_refuses_is_not_connected_to(self, service: ScriptedService) -> None:
        async def resolve(host: str, at: int) -> list[str]:
            raise ConnectionRefusedError(f"{host} leads nowhere good")

        async with client_of(service.url, resolve=resolve) as client:
            for call in (client.health_check(), client.evaluate_instance("a", "box")):
                with pytest.raises(BenchmarkServiceConnectionError, match="nowhere good"):
                    await call
        assert service.asked == []


class TestRequests:
    async def test_setup_sends_one_object_and_the_provider_as_headers(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        result = {"type": "result", "data": {"status": "ok", "skills_dir": "/skills"}}
        service.stream(SETUP, chunks(message("one"), message("two"), result))
        heard: list[str] = []
        done = await client.setup_task("a", "box-1", DAYTONA, heard.append, "lite")
        assert done.model_dump() == {"status": "ok", "skills_dir": "/skills"}
        assert heard == ["one", "two"]
        asked = service.asked[0]
        assert asked.body == {"task_id": "a", "instance_id": "box-1", "dataset": "lite"}
        names = ("authorization", "x-api-key", "x-api-url", "x-target")
        assert [asked.headers[name] for name in names] == ["Bearer sesame", "dtn-secret", "url", "us"]

    async def test_a_provider_that_headers_cannot_name_is_in_the_body(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        service.stream(EVALUATE, chunks(RESULT))
        modal = ModalProviderConfig(MODAL_TOKEN_ID="id", MODAL_TOKEN_SECRET="secret")
        await client.evaluate_instance("a", "box-1", modal)
        assert service.asked[0].body["sandbox_provider"] == {
            "type": "modal",
            "MODAL_TOKEN_ID": "id",
            "MODAL_TOKEN_SECRET": "secret",
        }
        assert "x-api-key" not in service.asked[0].headers

    async def test_resuming_sends_the_state_untouched_and_the_provider_in_the_body(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        service.stream(RESUME, chunks(RESULT))
        saved = {"patch": "diff", "nothing": None}
        assert await client.resume_evaluation("a", saved, DAYTONA, dataset="lite") == {"resolved": True}
        assert service.asked[0].body == {
            "task_id": "a",
            "dataset": "lite",
            "eval_resume_state": saved,
            "sandbox_provider": {
                "type": "daytona",
                "DAYTONA_API_KEY": "dtn-secret",
                "DAYTONA_API_URL": "url",
                "DAYTONA_TARGET": "us",
            },
        }

    async def test_config_headers_win_over_the_client_s_own(self, service: ScriptedService) -> None:
        service.stream(EVALUATE, chunks(RESULT))
        async with client_of(service.url, {"X-API-Key": "old", "X-Other": "kept"}) as client:
            await client.evaluate_instance("a", "box-1", DAYTONA)
        assert service.asked[0].headers["x-api-key"] == "dtn-secret"
        assert service.asked[0].headers["x-other"] == "kept"

    async def test_proxies_of_the_environment_are_not_used_for_loopback(
        self, service: ScriptedService, client: BenchmarkServiceClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        monkeypatch.delenv("no_proxy", raising=False)
        service.stream(EVALUATE, chunks(RESULT))
        assert await client.evaluate_instance("a", "i") == {"resolved": True}


class TestChunks:
    async def test_errors_do_not_end_a_stream(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        service.stream(EVALUATE, chunks(message("m"), error("odd", error_code=None), RESULT))
        heard: list[str] = []
        assert await client.evaluate_instance("a", "i", on_message=heard.append) == {"resolved": True}
        assert heard == ["m", "error: odd"]

    async def test_errors_have_a_callback_of_their_own(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        service.stream(EVALUATE, chunks(error("odd"), RESULT))
        heard: list[str] = []
        said: list[str] = []
        await client.evaluate_instance("a", "i", on_message=heard.append, on_error=said.append)
        assert (heard, said) == ([], ["odd"])

    async def test_the_last_error_is_raised_when_no_result_comes(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        service.stream(EVALUATE, chunks(error("first"), message("m"), error("second", status_code=409)))
        with pytest.raises(BenchmarkServiceError, match=r"Evaluate instance failed: second$") as caught:
            await client.evaluate_instance("a", "i")
        assert not isinstance(caught.value, BenchmarkServiceConnectionError)
        assert caught.value.status_code == 409

    async def test_unknown_types_are_mentioned_once(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        frames = [{"type": "progress", "data": 1}, {"type": "eta"}, {"type": "progress"}]
        service.stream(EVALUATE, chunks(*frames, RESULT))
        heard: list[str] = []
        await client.evaluate_instance("a", "i", on_message=heard.append)
        assert len(heard) == 1
        assert "'progress'" in heard[0]

    @pytest.mark.parametrize(
        "frame",
        [
            "not json",
            "[1]",
            '{"data": "x"}',
            '{"type": 1, "data": "x"}',
            '{"type": "message", "data": 1}',
            '{"type": "eval_resume_state", "data": "x"}',
            '{"type": "result"}',
            '{"type": "result", "data": NaN}',
            "[" * 100_000,
            b"\xff\xfe",
        ],
    )
    async def test_malformed(
        self, service: ScriptedService, client: BenchmarkServiceClient, frame: str | bytes
    ) -> None:
        service.stream(EVALUATE, chunks(frame, RESULT))
        with pytest.raises(BenchmarkServiceProtocolError, match="malformed chunk") as caught:
            await client.evaluate_instance("a", "i")
        assert len(str(caught.value)) < 1000

    async def test_the_stream_is_closed_at_the_result(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        left: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def stay(ws: Any) -> None:
            await ws.begin()
            await ws.send_json(RESULT)
            try:
                await ws.receive_text()
            except WebSocketDisconnect as gone:
                left.set_result(gone.code)

        service.stream(EVALUATE, stay)
        assert await client.evaluate_instance("a", "i") == {"resolved": True}
        assert await left == 1000

    async def test_a_result_may_be_null(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        service.stream(EVALUATE, chunks({"type": "result", "data": None}))
        assert await client.evaluate_instance("a", "i") is None

    async def test_a_setup_result_of_another_shape(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        service.stream(SETUP, chunks({"type": "result", "data": "done"}))
        with pytest.raises(BenchmarkServiceProtocolError, match="does not fit"):
            await client.setup_task("a", "i")


class TestEnds:
    @pytest.mark.parametrize("code", [1000, 1001, 1011, 1012, 1013, None])
    async def test_without_a_result(
        self, service: ScriptedService, client: BenchmarkServiceClient, code: int | None
    ) -> None:
        service.stream(EVALUATE, chunks(message("m"), close=code, reason="bye"))
        with pytest.raises(BenchmarkServiceStreamClosedError) as caught:
            await client.evaluate_instance("a", "i")
        assert caught.value.close_code == (code or 1006)
        assert caught.value.close_reason == ("bye" if code else "")
        assert caught.value.idle_s is not None
        assert len(service.asked) == 1

    @pytest.mark.parametrize("code", [None, 1001, 1012])
    async def test_a_break_after_an_error_is_still_a_break(
        self, service: ScriptedService, client: BenchmarkServiceClient, code: int | None
    ) -> None:
        service.stream(EVALUATE, chunks(error("flaky test"), close=code))
        with pytest.raises(BenchmarkServiceStreamClosedError, match="flaky test"):
            await client.evaluate_instance("a", "i")

    async def test_a_request_the_service_cannot_read(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        service.stream(EVALUATE, chunks(error("task_id: too long"), close=1007), chunks(close=1009))
        with pytest.raises(BenchmarkServiceError, match="task_id: too long"):
            await client.evaluate_instance("a", "i")
        with pytest.raises(BenchmarkServiceProtocolError, match="did not accept our request"):
            await client.evaluate_instance("a", "i")

    async def test_unauthorized(self, service: ScriptedService, client: BenchmarkServiceClient) -> None:
        service.stream(EVALUATE, chunks(close=1008, reason="Unauthorized"))
        with pytest.raises(
            BenchmarkServiceUnauthenticatedError, match=r"^Authentication failed: Unauthorized"
        ):
            await client.evaluate_instance("a", "i")

    async def test_a_dataset_that_is_not_allowed(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        service.stream(EVALUATE, chunks(close=1008, reason="Dataset not allowed"))
        with pytest.raises(BenchmarkServiceError, match="Dataset not allowed") as caught:
            await client.evaluate_instance("a", "i")
        assert caught.value.status_code == 403

    async def test_a_quota(self, service: ScriptedService, client: BenchmarkServiceClient) -> None:
        reason = "Evaluation quota reached; retry after 2100-01-01T00:00:00Z."
        service.stream(EVALUATE, chunks(close=1008, reason=reason))
        with pytest.raises(BenchmarkServiceError, match="quota reached") as caught:
            await client.evaluate_instance("a", "i")
        assert caught.value.status_code == 429
        assert caught.value.retry_after == LONGEST_ASKED_S

    async def test_a_refused_handshake(
        self, service: ScriptedService, client: BenchmarkServiceClient
    ) -> None:
        async def refuse(ws: Any) -> None:
            await ws.send_denial_response(JSONResponse({"detail": "no key sesame"}, 401))

        service.stream(EVALUATE, refuse)
        with pytest.raises(BenchmarkServiceUnauthenticatedError, match=r"no key \*\*\*"):
            await client.evaluate_instance("a", "i")


class TestOpening:
    async def test_is_repeated_while_the_service_is_busy(self, service: ScriptedService) -> None:
        async def busy(ws: Any) -> None:
            await ws.send_denial_response(JSONResponse({}, 503, {"Retry-After": "3"}))

        service.stream(EVALUATE, busy, busy, chunks(RESULT))
        pauses = Pauses()
        async with client_of(service.url, pause=pauses, jitter=lambda: 0.0) as client:
            assert await client.evaluate_instance("a", "i") == {"resolved": True}
        assert pauses.taken == [3, 3]

    async def test_gives_up_on_a_service_that_is_down(self) -> None:
        async with scripted() as gone:
            url = gone.url
        pauses = Pauses()
        async with client_of(url, pause=pauses) as client:
            with pytest.raises(BenchmarkServiceConnectionError, match="check that it is running"):
                await client.evaluate_instance("a", "i")
        assert len(pauses.taken) == 4


class TestDatasetVersion:
    async def test_must_be_confirmed_first(self, service: ScriptedService) -> None:
        confirmed = {"type": "dataset_version", "data": {"id": "v7", "label": "7"}}
        service.stream(EVALUATE, chunks(confirmed, RESULT), chunks(RESULT))
        async with client_of(service.url, dataset_version="v7") as client:
            assert await client.evaluate_instance("a", "i") == {"resolved": True}
            with pytest.raises(BenchmarkServiceProtocolError, match="may not support choosing versions"):
                await client.evaluate_instance("a", "i")
        assert service.asked[0].headers["x-benchmark-dataset-version"] == "v7"

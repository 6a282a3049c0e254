"""The judges' client: patience, bounds, and nothing said about keys."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from benchmark_runner.models import client as answer_stream
from benchmark_runner.models.dialect import Reply
from tests.unit.benchmark_runner.canned import answering, http
from tests.unit.grade.judges.judge_server import QUICKLY, asked_at, grade, judge, prompt_spec, trial
from valkyrie.errors import GraderError, JudgeError, UserError
from valkyrie.grade.judges import JudgeClient, PromptGrader, shared_client
from valkyrie.grade.judges.client import BACKOFF, JudgeEndpoint
from valkyrie.grade.judges.config import SCALES
from valkyrie.grade.judges.conversation import grade_tool
from valkyrie.testing import Fault, ModelServer, Script
from valkyrie.testing.model_server.script import Turn

TOOL = grade_tool(SCALES["binary"])
KEY = "sk-hush-hush-hush"


class Pauses:
    """Pauses that take no time and are remembered."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


def endpoint(url: str, key: str | None = KEY, api: str = "chat") -> JudgeEndpoint:
    paths = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}
    return JudgeEndpoint(api, f"{url}/v1{paths[api]}", "m", key=key)


async def asked(client: JudgeClient, at: JudgeEndpoint) -> Reply:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    return await client.ask(at, messages, TOOL)


@pytest.mark.parametrize("kind", ["server_error", "overloaded", "rate_limit", "cut"])
async def test_what_may_pass_is_tried_again_with_growing_pauses(kind: Any) -> None:
    pauses = Pauses()
    script = Script.of(Fault(kind, times=3), grade(1))
    async with ModelServer(script) as server, JudgeClient(backoff=replace(BACKOFF, sleep=pauses)) as client:
        answer = await asked(client, endpoint(server.url))
    assert answer.calls[0].name == "submit_grade"
    assert len(server.requests) == 4 and len(pauses.taken) == 3
    for pause, longest in zip(pauses.taken, (0.5, 1.0, 2.0), strict=True):
        assert 0 <= pause <= longest


async def test_a_server_that_asks_for_time_gets_it() -> None:
    pauses = Pauses()
    script = Script.of(Fault("rate_limit", times=1, retry_after=7), grade(1))
    async with ModelServer(script) as server, JudgeClient(backoff=replace(BACKOFF, sleep=pauses)) as client:
        await asked(client, endpoint(server.url))
    assert len(pauses.taken) == 1 and 7 <= pauses.taken[0] <= 7.5


async def test_a_server_that_asks_for_much_time_is_left_to_the_next_attempt() -> None:
    pauses = Pauses()
    script = Script.of(Fault("rate_limit", retry_after=120))
    async with ModelServer(script) as server, JudgeClient(backoff=replace(BACKOFF, sleep=pauses)) as client:
        with pytest.raises(JudgeError, match="Tried 1 time") as caught:
            await asked(client, endpoint(server.url))
    assert caught.value.retry_after == 120
    assert not pauses.taken


async def test_nobody_there() -> None:
    async with ModelServer(Script.of()) as server:
        gone = endpoint(server.url)
    async with JudgeClient(backoff=QUICKLY) as client:
        with pytest.raises(JudgeError, match="cannot be reached") as caught:
            await asked(client, gone)
    assert KEY not in f"{caught.value!r}{caught.value.__cause__}{caught.value.__context__}"


@pytest.mark.parametrize("echo", ["Incorrect API key provided: {}.", "Bearer {}", "x" * 290 + "{}"])
async def test_an_endpoint_that_echoes_the_key_does_not_get_it_into_the_error(echo: str) -> None:
    script = Script.of(Fault("unauthorized", message=echo.format(KEY)))
    async with ModelServer(script) as server, JudgeClient() as client:
        with pytest.raises(UserError) as caught:
            await asked(client, endpoint(server.url))
    assert "hush" not in str(caught.value)
    assert "VALKYRIE_JUDGE_API_KEY" in str(caught.value)


async def test_the_key_goes_where_each_api_wants_it() -> None:
    async with ModelServer(Script.of(grade(1))) as server, JudgeClient() as client:
        await asked(client, endpoint(server.url))
        await asked(client, endpoint(server.url, api="messages"))
        await asked(client, endpoint(server.url, key=None))
    chat, messages, bare = (request.headers for request in server.requests)
    assert chat["authorization"] == f"Bearer {KEY}" and "x-api-key" not in chat
    assert messages["x-api-key"] == KEY and "anthropic-version" in messages
    assert "authorization" not in bare


async def test_an_endpoint_that_takes_no_tool_choice_is_asked_without() -> None:
    refusal = Fault("context_overflow", times=1, message="tool_choice is not supported with this model")
    async with ModelServer(Script.of(refusal, grade(1))) as server:
        async with JudgeClient(backoff=QUICKLY) as client:
            for _ in range(2):
                await asked(client, endpoint(server.url))
    assert ["tool_choice" in request.body for request in server.requests] == [True, False, False]


@pytest.mark.parametrize(
    ("answer", "cause", "words"),
    [
        (
            http(b'{"error": {"code": "insufficient_quota", "message": "spent"}}', "429 Too Many Requests"),
            "judge_refused",
            "spent",
        ),
        (http(b"", "302 Found", location="http://elsewhere/"), "judge_refused", "Redirects are not followed"),
        (
            http(b'{"error": {"code": "content_filter", "message": "no"}}', "400 Bad Request"),
            "judge_refused_question",
            "no",
        ),
    ],
)
async def test_what_will_not_pass_is_asked_once(answer: bytes, cause: str, words: str) -> None:
    async with answering(answer) as server, JudgeClient(backoff=QUICKLY) as client:
        with pytest.raises(UserError, match=words) as caught:
            await asked(client, endpoint(server.url))
    assert caught.value.cause == cause
    assert len(server.requests) == 1


async def test_a_server_of_another_kind_may_say_that_a_question_is_too_long() -> None:
    answer = http(b'{"error": {"message": "prompt is too long"}}', "422 Unprocessable Entity")
    async with answering(answer) as server, JudgeClient(backoff=QUICKLY) as client:
        with pytest.raises(GraderError) as caught:
            await asked(client, endpoint(server.url))
    assert caught.value.cause == "judge_too_long"


async def test_a_response_that_failed_is_asked_for_again() -> None:
    failed = {"status": "failed", "output": [], "error": {"code": "server_error", "message": "oops"}}
    call = {"type": "function_call", "call_id": "1", "name": "submit_grade", "arguments": "{}"}
    answers = [http(json.dumps(data).encode()) for data in (failed, {"output": [call]})]
    async with answering(*answers) as server, JudgeClient(backoff=QUICKLY) as client:
        reply = await asked(client, endpoint(server.url, api="responses"))
    assert len(reply.calls) == 1
    assert len(server.requests) == 2


async def test_an_endless_answer_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_stream, "MOST_BYTES", 1000)
    async with answering(*[http(b"x" * 5000)] * 4) as server, JudgeClient(backoff=QUICKLY) as client:
        with pytest.raises(JudgeError, match="more than 1000 bytes"):
            await asked(client, endpoint(server.url))


async def test_only_so_many_requests_are_in_flight() -> None:
    now, most = 0, 0
    enough = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal now, most
        await reader.readuntil(b"\r\n\r\n")
        now += 1
        most = max(most, now)
        if now == 3:
            enough.set()
        await enough.wait()
        await asyncio.sleep(0)
        now -= 1
        body = b'{"choices": [{"message": {"content": "x"}}]}'
        head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    at = endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with server, JudgeClient(most_at_once=3) as client:
        answers = await asyncio.gather(*(asked(client, at) for _ in range(12)))
    assert len(answers) == 12
    assert most == 3


async def test_one_client_is_shared_and_closed_by_the_last_who_leaves() -> None:
    async with shared_client() as first:
        async with shared_client() as second:
            assert second is first
        async with ModelServer(Script.of(grade(1))) as server:
            at = endpoint(server.url)
            await asked(first, at)
    async with shared_client() as third:
        assert third is not first
    with pytest.raises(AssertionError):
        await asked(first, at)


async def test_an_endpoint_that_fails_half_the_time_changes_no_verdict() -> None:
    """Every other request fails; trials that run out of tries are judged again, as the engine does."""
    scores = {f"stimulus-{number:02d}": number % 5 + 1 for number in range(40)}

    async def all_judged(flaky: bool) -> tuple[dict[str, tuple[bool, float]], int, int]:
        fault: list[Turn] = [Fault("overloaded", every=2)] if flaky else []
        script = Script(
            {"default": [], **{name: [*fault, grade(score)] for name, score in scores.items()}},
            {name: name for name in scores},
        )
        errors = 0
        found: dict[str, tuple[bool, float]] = {}
        async with ModelServer(script) as server:
            # One try only, so that errors reach the grader's caller as well.
            async with shared_client(replace(BACKOFF, attempts=1)):
                grader = PromptGrader(prompt_spec())
                for name in scores:
                    while name not in found:
                        try:
                            result = await grader.grade(asked_at(server, trial(f"answer of {name}")))
                        except JudgeError:
                            errors += 1
                        else:
                            found[name] = (result.passed, result.score)
            return found, errors, len(server.requests)

    sound, no_errors, _ = await all_judged(flaky=False)
    found, errors, requests = await all_judged(flaky=True)
    assert found == sound == {name: (score >= 3, (score - 1) / 4) for name, score in scores.items()}
    assert (no_errors, errors, requests) == (0, 40, 80)


async def test_within_one_call_half_failing_is_not_even_an_error() -> None:
    async with judge(Fault("server_error", every=2), grade(5)) as server:
        grader = PromptGrader(prompt_spec())
        results = [await grader.grade(asked_at(server, trial())) for _ in range(10)]
    assert [result.score for result in results] == [1.0] * 10
    assert len(server.requests) == 20

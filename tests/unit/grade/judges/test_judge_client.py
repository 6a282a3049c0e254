"""The judges' client: patience, bounds, and nothing said about keys."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from judge_world import asked_at, grade, judge, prompt_spec, trial

from valkyrie.errors import JudgeError, UserError
from valkyrie.grade.judges import JudgeClient, PromptGrader, shared_client
from valkyrie.grade.judges.client import BACKOFF
from valkyrie.grade.judges.endpoint import Endpoint
from valkyrie.grade.judges.scales import SCALES
from valkyrie.grade.judges.speaking import Answer
from valkyrie.grade.judges.verdicts import grade_tool
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


def endpoint(server: ModelServer, provider: str = "openai") -> Endpoint:
    return Endpoint(provider, f"{server.url}/v1/chat/completions", "m", KEY)


async def asked(client: JudgeClient, at: Endpoint) -> Answer:
    return await client.ask(at, "s", [{"role": "user", "content": "q"}], TOOL)


@pytest.mark.parametrize("kind", ["server_error", "overloaded", "rate_limit", "cut"])
async def test_what_may_pass_is_tried_again_with_growing_pauses(kind: Any) -> None:
    pauses = Pauses()
    script = Script.of(Fault(kind, times=3), grade(1))
    async with ModelServer(script) as server, JudgeClient(backoff=replace(BACKOFF, sleep=pauses)) as client:
        answer = await asked(client, endpoint(server))
    assert answer.calls[0].name == "submit_grade"
    assert len(server.requests) == 4 and client.retries == 3
    for at, (low, high) in enumerate([(0.25, 0.5), (0.5, 1.0), (1.0, 2.0)]):
        assert low <= pauses.taken[at] <= high


async def test_a_server_that_asks_for_time_gets_it() -> None:
    pauses = Pauses()
    script = Script.of(Fault("rate_limit", times=1, retry_after=7), grade(1))
    async with ModelServer(script) as server, JudgeClient(backoff=replace(BACKOFF, sleep=pauses)) as client:
        await asked(client, endpoint(server))
    assert 7 <= pauses.taken[0] <= 7.5 and len(pauses.taken) == 1


@pytest.mark.parametrize("seconds", [120, 100_000])
async def test_a_server_that_asks_for_much_time_is_left_to_the_next_attempt(seconds: int) -> None:
    pauses = Pauses()
    script = Script.of(Fault("rate_limit", retry_after=seconds))
    async with ModelServer(script) as server, JudgeClient(backoff=replace(BACKOFF, sleep=pauses)) as client:
        with pytest.raises(JudgeError, match="tried 1 time") as caught:
            await asked(client, endpoint(server))
    assert caught.value.retry_after == seconds
    assert not pauses.taken


async def test_nobody_there() -> None:
    async with ModelServer(Script.of()) as server:
        gone = endpoint(server)
    async with JudgeClient(backoff=replace(BACKOFF, sleep=Pauses())) as client:
        with pytest.raises(JudgeError, match="cannot be reached") as caught:
            await asked(client, gone)
    assert KEY not in f"{caught.value!r}{caught.value.__cause__}{caught.value.__context__}"


@pytest.mark.parametrize("echo", ["Incorrect API key provided: {}.", "Bearer {}"])
async def test_an_endpoint_that_echoes_the_key_does_not_get_it_into_the_error(echo: str) -> None:
    script = Script.of(Fault("unauthorized", message=echo.format(KEY)))
    async with ModelServer(script) as server, JudgeClient() as client:
        with pytest.raises(UserError) as caught:
            await asked(client, endpoint(server))
    assert "hush" not in str(caught.value)
    assert "VALKYRIE_JUDGE_API_KEY" in str(caught.value)


async def test_the_key_goes_where_each_api_wants_it() -> None:
    async with ModelServer(Script.of(grade(1))) as server, JudgeClient() as client:
        await asked(client, endpoint(server))
        await asked(client, Endpoint("anthropic", f"{server.url}/v1/messages", "m", KEY))
        await asked(client, Endpoint("openai", f"{server.url}/v1/chat/completions", "m"))
    chat, messages, bare = (request.headers for request in server.requests)
    assert chat["authorization"] == f"Bearer {KEY}" and "x-api-key" not in chat
    assert messages["x-api-key"] == KEY and "anthropic-version" in messages
    assert "authorization" not in bare


async def test_an_endpoint_that_takes_no_tool_choice_is_asked_without() -> None:
    refusal = Fault("context_overflow", times=1, message="tool_choice is not supported with this model")
    async with ModelServer(Script.of(refusal, grade(1))) as server:
        async with JudgeClient(backoff=replace(BACKOFF, sleep=Pauses())) as client:
            for _ in range(2):
                await asked(client, endpoint(server))
    assert ["tool_choice" in request.body for request in server.requests] == [True, False, False]


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
    at = Endpoint("openai", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", "m")
    async with server, JudgeClient(at_once=3) as client:
        answers = await asyncio.gather(*(asked(client, at) for _ in range(12)))
    assert len(answers) == 12
    assert most == 3


async def test_one_client_is_shared_and_closed_by_the_last_who_leaves() -> None:
    async with shared_client() as first:
        async with shared_client() as second:
            assert second is first
        async with ModelServer(Script.of(grade(1))) as server:
            at = endpoint(server)
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
            async with shared_client(replace(BACKOFF, attempts=1, sleep=Pauses())):
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

"""Asking a scripted model over each API, whole and streamed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmark_runner.chat import ChatModel, Usage, kept_connections
from benchmark_runner.llm import LLMConfig, ProviderConfig
from tests.unit.benchmark_runner.canned import answering, http, looks_around
from valkyrie.testing import ModelServer, Say, Script, ToolRequest
from valkyrie.testing.model_server.script import TokenCounts

KEY = "sk-test-0123456789"
WAYS = [
    pytest.param("llama", False, stream, id=f"chat-{'stream' if stream else 'whole'}")
    for stream in (True, False)
]
WAYS += [
    pytest.param(model, True, stream, id=f"{api}-{'stream' if stream else 'whole'}")
    for model, api in (("openai/gpt-x", "responses"), ("anthropic/claude-y", "messages"))
    for stream in (True, False)
]


def config(url: str, *, native: bool = True, stream: bool = True, **more: Any) -> LLMConfig:
    return LLMConfig(
        custom_endpoint=url,
        custom_api_key=KEY,
        native=native,
        provider_config=ProviderConfig(stream_completions=stream),
        **more,
    )


@pytest.mark.parametrize(("model", "native", "stream"), WAYS)
async def test_text_usage_and_reason_come_back(model: str, native: bool, stream: bool) -> None:
    text = "Eight, if it has all of them: “eight” — 8. " * 3
    script = Script.of(Say(text, tokens=TokenCounts(input=20, output=7, cached=5)), Say("And two more."))
    async with ModelServer(script) as server:
        async with ChatModel(model, config(server.url, native=native, stream=stream)) as chat:
            asked: list[dict[str, Any]] = [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "How many legs has a spider?"},
            ]
            reply = await chat.ask(asked)
            assert (reply.text, reply.finish_reason) == (text, "stop")
            assert reply.usage == Usage(20, 7, 5)
            assert reply.model == model.rpartition("/")[2]
            assert text in json.dumps(reply.raw, ensure_ascii=False)
            more = await chat.ask([*asked, reply.message, {"role": "user", "content": "And?"}])
            assert more.text == "And two more."
            assert chat.usage == reply.usage + more.usage
    assert bool(server.requests[0].body.get("stream")) is stream


@pytest.mark.parametrize(
    ("model", "native", "sent"),
    [
        ("llama", False, {"max_tokens": 50, "reasoning_effort": "low"}),
        ("openai/gpt-x", True, {"max_output_tokens": 50, "reasoning": {"effort": "low"}, "store": False}),
        ("anthropic/claude-y", True, {"max_tokens": 50 + 2048, "thinking": {"budget_tokens": 2048}}),
    ],
)
async def test_the_config_goes_into_the_request(model: str, native: bool, sent: dict[str, Any]) -> None:
    chosen = {"max_tokens": 50, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "reasoning_effort": "low"}
    async with ModelServer(Script.of(Say("ok"))) as server:
        async with ChatModel(model, config(server.url, native=native, **chosen)) as chat:
            await chat.ask("Hi.", extra={"stop": ["END"]})
        async with ChatModel(model, config(server.url, native=native)) as chat:
            await chat.ask("Hi.")
    body, plain = (request.body for request in server.requests)
    for key, value in ({**sent, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "stop": ["END"]}).items():
        assert _includes(body[key], value), key
    assert not {"temperature", "top_p", "top_k", "reasoning_effort", "reasoning", "thinking"} & set(plain)


@pytest.mark.parametrize(("effort", "budget"), [("minimal", 1024), ("xhigh", 32768), ("max", 65536)])
async def test_every_effort_lets_an_anthropic_model_think(effort: str, budget: int) -> None:
    async with ModelServer(Script.of(Say("ok"))) as server:
        async with ChatModel("anthropic/claude-y", config(server.url, reasoning_effort=effort)) as chat:
            await chat.ask("Hi.")
    body = server.requests[0].body
    assert body["thinking"] == {"type": "enabled", "budget_tokens": budget}
    assert body["max_tokens"] > budget


async def test_the_system_has_its_own_place_at_anthropic() -> None:
    async with ModelServer(Script.of(Say("ok"))) as server:
        async with ChatModel("anthropic/claude-y", config(server.url)) as chat:
            await chat.ask(
                [
                    {"role": "system", "content": "One."},
                    {"role": "user", "content": "Hi."},
                    {"role": "system", "content": "Two."},
                ]
            )
    request = server.requests[0]
    assert request.body["system"] == "One.\n\nTwo."
    assert request.body["messages"] == [{"role": "user", "content": "Hi."}]
    assert request.headers["x-api-key"] == KEY


@pytest.mark.parametrize(("model", "native", "stream"), WAYS)
async def test_a_tools_call_is_read_and_in_the_raw_answer(model: str, native: bool, stream: bool) -> None:
    async with ModelServer(Script.of(ToolRequest("look_up", {"word": "spider"}))) as server:
        async with ChatModel(model, config(server.url, native=native, stream=stream)) as chat:
            parameters = {"type": "object", "properties": {}}
            tool: dict[str, Any] = {"name": "look_up", "parameters": parameters, "input_schema": parameters}
            reply = await chat.ask("Hi.", extra={"tools": [{"type": "function", "function": tool, **tool}]})
    assert reply.finish_reason == "tool_calls"
    said = json.dumps(reply.raw).replace("\\", "")
    assert "look_up" in said and '"word": "spider"' in said
    assert [(call.name, call.arguments) for call in reply.calls] == [("look_up", {"word": "spider"})]


async def test_every_question_is_kept_without_the_key(tmp_path: Path) -> None:
    async with ModelServer(Script.of(Say(f"Your key is {KEY}."))) as server:
        async with ChatModel("llama", config(server.url), log_dir=tmp_path / "agent_logs") as chat:
            reply = await chat.ask("Hi.")
            await chat.ask([{"role": "user", "content": "Hi."}, reply.message])
    kept = (tmp_path / "agent_logs" / "chat.jsonl").read_text()
    assert KEY not in kept
    first, second = map(json.loads, kept.splitlines())
    assert first["request"]["messages"] == [{"role": "user", "content": "Hi."}]
    assert first["response"]["choices"][0]["message"]["content"] == "Your key is ***."
    assert (second["model"], second["url"]) == ("llama", chat.endpoint.url)


async def test_a_question_that_is_given_up_is_kept_too(tmp_path: Path) -> None:
    async with ModelServer(Script.of(Say("too late", delay=30))) as server:
        async with ChatModel("llama", config(server.url), log_dir=tmp_path) as chat:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await chat.ask("Hi.")
    kept = json.loads((tmp_path / "chat.jsonl").read_text())
    assert kept["request"]["messages"] and kept["error"] is None


async def test_all_models_of_a_loop_share_connections() -> None:
    answer = {"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]}
    async with answering(*[http(json.dumps(answer).encode())] * 6) as server:
        async with kept_connections():
            for _ in range(3):
                async with ChatModel("llama", config(server.url)) as chat:
                    await chat.ask("Hi.")
            assert server.connections == 1
            async with ChatModel("llama", config(server.url)) as chat:
                await asyncio.gather(*(chat.ask("Hi.") for _ in range(3)))
            assert server.connections <= 3


async def test_a_connection_the_server_closed_is_replaced() -> None:
    answer = http(json.dumps({"choices": [{"message": {"content": "ok"}}]}).encode())
    async with answering(answer, answer) as server:
        async with ChatModel("llama", config(server.url)) as chat:
            await chat.ask("Hi.")
            server.drop()
            await looks_around()
            assert (await chat.ask("Hi.")).text == "ok"
    assert server.connections == 2


async def test_asking_needs_the_model_open() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await ChatModel("llama", config("http://127.0.0.1:1")).ask("Hi.")


def _includes(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(key in found and _includes(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        return list(found) == list(wanted)
    return bool(found == wanted)

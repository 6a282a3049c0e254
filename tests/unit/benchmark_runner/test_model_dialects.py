"""What each wire format makes of an answer, and of a conversation with calls of functions."""

from __future__ import annotations

from typing import Any

import pytest

from benchmark_runner.models.client import DIALECTS
from benchmark_runner.models.dialect import FunctionCall, FunctionTool, ModelRequest, TokenUsage
from benchmark_runner.models.endpoint import Endpoint, UnreadableAnswerError

APIS = ("chat", "responses", "messages")
TOOL = FunctionTool("submit", "Submit it.", {"type": "object", "properties": {}})
WORDS: dict[str, dict[str, Any]] = {
    "chat": {"choices": [{"message": {"content": "Hm."}}]},
    "responses": {"output": [{"type": "message", "content": [{"type": "output_text", "text": "Hm."}]}]},
    "messages": {"content": [{"type": "text", "text": "Hm."}]},
}
CALLS: dict[str, dict[str, Any]] = {
    "chat": {
        "choices": [
            {
                "message": {
                    "content": None,
                    "tool_calls": [
                        {"id": "1", "type": "function", "function": {"name": "submit", "arguments": "{}"}},
                        {"id": "2", "type": "function", "function": {"name": "submit", "arguments": "[1]"}},
                        {"id": "3", "type": "custom", "custom": {"name": "free", "input": "x"}},
                        "nonsense",
                    ],
                }
            }
        ]
    },
    "responses": {
        "output": [
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "function_call", "call_id": "1", "name": "submit", "arguments": "{}"},
            {"type": "function_call", "call_id": "2", "name": "submit", "arguments": "[1]"},
            {"type": "custom_tool_call", "call_id": "3", "name": "free", "input": "x"},
            "nonsense",
        ]
    },
    "messages": {
        "content": [
            {"type": "tool_use", "id": "1", "name": "submit", "input": {}},
            {"type": "tool_use", "id": "2", "name": "submit", "input": [1]},
            {"type": "server_tool_use", "id": "3", "name": "free", "input": {}},
            "nonsense",
        ]
    },
}


def body(api: str, **request: Any) -> dict[str, Any]:
    endpoint = Endpoint(api, "http://h/v1", "m")
    return DIALECTS[api].body(endpoint, ModelRequest([{"role": "user", "content": "q"}], **request))


@pytest.mark.parametrize("api", APIS)
def test_a_tool_is_offered_and_asked_for(api: str) -> None:
    asked = body(api, tool=TOOL)
    assert len(asked["tools"]) == 1 and "submit" in str(asked["tools"][0])
    assert "submit" in str(asked["tool_choice"])
    assert "tool_choice" not in body(api, tool=TOOL, forced=False)
    assert not {"tools", "tool_choice", "stream"} & set(body(api))


def test_a_model_that_thinks_is_not_forced_at_anthropic() -> None:
    asked = body("messages", tool=TOOL, sampling={"reasoning_effort": "low"})
    assert "thinking" in asked and "tool_choice" not in asked


@pytest.mark.parametrize("api", APIS)
def test_calls_of_functions_are_read_and_others_left_in_the_raw_answer(api: str) -> None:
    reply = DIALECTS[api].read(CALLS[api])
    assert reply.calls == (FunctionCall("1", "submit", {}), FunctionCall("2", "submit", None))
    assert reply.raw == CALLS[api]


@pytest.mark.parametrize(
    ("api", "results"),
    [
        ("chat", [{"role": "tool", "tool_call_id": id, "content": "Again."} for id in "12"]),
        ("responses", [{"type": "function_call_output", "call_id": id, "output": "Again."} for id in "12"]),
        (
            "messages",
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": id, "content": "Again.", "is_error": True}
                        for id in "12"
                    ],
                }
            ],
        ),
    ],
)
def test_every_call_gets_a_result(api: str, results: list[Any]) -> None:
    dialect = DIALECTS[api]
    said = dialect.follow_up(dialect.read(CALLS[api]), "Again.")
    assert said[-len(results) :] == results
    assert str(said[: -len(results)]).count("submit") == 2


@pytest.mark.parametrize("api", APIS)
def test_words_are_followed_by_words(api: str) -> None:
    dialect = DIALECTS[api]
    first, second = dialect.follow_up(dialect.read(WORDS[api]), "Again.")
    assert (first["role"], second["role"]) == ("assistant", "user")
    assert "Hm." in str(first["content"]) and "Again." in str(second["content"])


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("told", "counted"), [(20, 20), (20.0, 20), (-1, 0), ("20", 0), (None, 0), (float("inf"), 0)]
)
def test_tokens_as_servers_count_them(api: str, told: Any, counted: int) -> None:
    name = "prompt_tokens" if api == "chat" else "input_tokens"
    assert DIALECTS[api].read({**WORDS[api], "usage": {name: told}}).usage == TokenUsage(counted)
    assert DIALECTS[api].read({**WORDS[api], "usage": "none"}).usage == TokenUsage()


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("key", ["choices", "output", "content"])
@pytest.mark.parametrize("value", [None, "text", {"a": 1}])
def test_an_answer_without_its_content_is_unreadable(api: str, key: str, value: Any) -> None:
    with pytest.raises(UnreadableAnswerError):
        DIALECTS[api].read({key: value})

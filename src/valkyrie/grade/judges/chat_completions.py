"""OpenAI's Chat Completions, and the many servers that speak the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from valkyrie.grade.judges.speaking import (
    Answer,
    Tokens,
    Tool,
    ToolCall,
    UnreadableAnswerError,
    arguments_in,
    whole,
    with_key,
)
from valkyrie.nouns import Json

if TYPE_CHECKING:
    from valkyrie.grade.judges.endpoint import Endpoint


class ChatCompletions:
    """`POST …/chat/completions`."""

    def headers(self, endpoint: Endpoint) -> Mapping[str, str]:
        return with_key(endpoint)

    def body(
        self, endpoint: Endpoint, system: str, messages: Sequence[Json], tool: Tool, *, forced: bool
    ) -> Json:
        function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
        body: Json = {
            "model": endpoint.model,
            "messages": [{"role": "system", "content": system}, *messages],
            "tools": [{"type": "function", "function": function}],
        }
        if forced:
            body["tool_choice"] = {"type": "function", "function": {"name": tool.name}}
        if endpoint.reasoning_effort:
            body["reasoning_effort"] = endpoint.reasoning_effort
        return body

    def read(self, data: Json) -> Answer:
        try:
            message = data["choices"][0]["message"]
            calls = [_call(call) for call in message.get("tool_calls") or []]
        except (KeyError, IndexError, TypeError, AttributeError):
            raise UnreadableAnswerError("no `choices` with a message") from None
        usage = data.get("usage")
        kept = {"role": "assistant", "content": message.get("content") or ""}
        if message.get("tool_calls"):
            kept["tool_calls"] = message["tool_calls"]
        return Answer(calls, kept, _tokens(usage if isinstance(usage, dict) else {}), data.get("model"))

    def reminder(self, answer: Answer, text: str) -> list[Json]:
        results: list[Json] = [
            {"role": "tool", "tool_call_id": call.id, "content": text} for call in answer.calls
        ]
        return [answer.message, *(results or [{"role": "user", "content": text}])]


def _call(call: Any) -> ToolCall:
    function = call["function"]
    given = arguments_in(function.get("arguments"))
    return ToolCall(str(call.get("id") or ""), str(function.get("name")), given)


def _tokens(usage: Json) -> Tokens:
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return Tokens(whole(usage.get("prompt_tokens")), whole(usage.get("completion_tokens")), whole(cached))

"""OpenAI's Responses API; some of its models are asked nowhere else."""

from __future__ import annotations

import json
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


class Responses:
    """`POST …/responses`. Nothing of a conversation is left with the vendor."""

    def headers(self, endpoint: Endpoint) -> Mapping[str, str]:
        return with_key(endpoint)

    def body(
        self, endpoint: Endpoint, system: str, messages: Sequence[Json], tool: Tool, *, forced: bool
    ) -> Json:
        function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
        body: Json = {
            "model": endpoint.model,
            "instructions": system,
            "input": list(messages),
            "tools": [{"type": "function", "strict": False, **function}],
            "store": False,
        }
        if forced:
            body["tool_choice"] = {"type": "function", "name": tool.name}
        if endpoint.reasoning_effort:
            body["reasoning"] = {"effort": endpoint.reasoning_effort}
        return body

    def read(self, data: Json) -> Answer:
        items = data.get("output")
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise UnreadableAnswerError("no `output`")
        calls = [_call(item) for item in items if item.get("type") == "function_call"]
        usage = data.get("usage")
        # Thoughts stay behind: they could only go back by their id, and nothing is stored.
        kept = {"items": [*_said(items), *(_again(call) for call in calls)]}
        return Answer(calls, kept, _tokens(usage if isinstance(usage, dict) else {}), data.get("model"))

    def reminder(self, answer: Answer, text: str) -> list[Json]:
        results: list[Json] = [
            {"type": "function_call_output", "call_id": call.id, "output": text} for call in answer.calls
        ]
        return [*answer.message["items"], *(results or [{"role": "user", "content": text}])]


def _call(item: Json) -> ToolCall:
    given = arguments_in(item.get("arguments"))
    return ToolCall(str(item.get("call_id") or ""), str(item.get("name")), given)


def _again(call: ToolCall) -> Json:
    arguments = json.dumps(call.arguments or {})
    return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments}


def _said(items: Sequence[Json]) -> list[Json]:
    """What it said in words, as one message."""
    parts: list[Any] = [
        part for item in items if item.get("type") == "message" for part in item.get("content") or []
    ]
    text = "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
    return [{"role": "assistant", "content": text}] if text else []


def _tokens(usage: Json) -> Tokens:
    details = usage.get("input_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return Tokens(whole(usage.get("input_tokens")), whole(usage.get("output_tokens")), whole(cached))

"""Anthropic's Messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from valkyrie.grade.judges.speaking import Answer, Tokens, Tool, ToolCall, UnreadableAnswerError, whole
from valkyrie.nouns import Json

if TYPE_CHECKING:
    from valkyrie.grade.judges.endpoint import Endpoint

VERSION = "2023-06-01"
_MOST_TOKENS = 8192
_THINKING = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 32768, "max": 65536}
"""Tokens a model may think with, by effort; any other word is no thinking."""


class Messages:
    """`POST …/v1/messages`."""

    def headers(self, endpoint: Endpoint) -> Mapping[str, str]:
        version = {"anthropic-version": VERSION}
        return {**version, "x-api-key": endpoint.key} if endpoint.key else version

    def body(
        self, endpoint: Endpoint, system: str, messages: Sequence[Json], tool: Tool, *, forced: bool
    ) -> Json:
        body: Json = {
            "model": endpoint.model,
            "system": system,
            "messages": list(messages),
            "tools": [{"name": tool.name, "description": tool.description, "input_schema": tool.schema}],
            "max_tokens": _MOST_TOKENS,
        }
        if budget := _THINKING.get(endpoint.reasoning_effort or ""):
            # A model that thinks must not be forced to a tool: the API refuses both together.
            body |= {"thinking": {"type": "enabled", "budget_tokens": budget}}
            body["max_tokens"] = budget + _MOST_TOKENS
        elif forced:
            body["tool_choice"] = {"type": "tool", "name": tool.name}
        return body

    def read(self, data: Json) -> Answer:
        blocks = data.get("content")
        if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
            raise UnreadableAnswerError("no `content`")
        calls = [
            ToolCall(
                str(block.get("id") or ""),
                str(block.get("name")),
                block.get("input") if isinstance(block.get("input"), dict) else None,
            )
            for block in blocks
            if block.get("type") == "tool_use"
        ]
        usage = data.get("usage")
        message = {"role": "assistant", "content": blocks or [{"type": "text", "text": "(nothing)"}]}
        return Answer(calls, message, _tokens(usage if isinstance(usage, dict) else {}), data.get("model"))

    def reminder(self, answer: Answer, text: str) -> list[Json]:
        results: list[Json] = [
            {"type": "tool_result", "tool_use_id": call.id, "content": text, "is_error": True}
            for call in answer.calls
        ]
        return [answer.message, {"role": "user", "content": results or [{"type": "text", "text": text}]}]


def _tokens(usage: Json) -> Tokens:
    cached = whole(usage.get("cache_read_input_tokens"))
    written = whole(usage.get("cache_creation_input_tokens"))
    plain = whole(usage.get("input_tokens"))
    return Tokens(plain + cached + written, whole(usage.get("output_tokens")), cached)

"""Anthropic's Messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from benchmark_runner.models.dialect import (
    FunctionCall,
    Json,
    Message,
    ModelRequest,
    Reply,
    TokenUsage,
    object_in,
    objects_in,
    text_in,
    whole_number,
)
from benchmark_runner.models.endpoint import BrokenStreamError, UnreadableAnswerError

if TYPE_CHECKING:
    from benchmark_runner.models.endpoint import Endpoint

VERSION = "2023-06-01"
MOST_TOKENS = 8192
"""Of an answer, where nobody says; the API wants a number."""
THINKING = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 32768, "max": 65536}
"""Tokens a model may think with, by effort, beyond those of its answer; any other word is no thinking."""
_FINISHED = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}


class MessagesDialect:
    """`POST …/v1/messages`."""

    def headers(self, key: str | None) -> Mapping[str, str]:
        version = {"anthropic-version": VERSION}
        return {**version, "x-api-key": key} if key else version

    def body(self, endpoint: Endpoint, request: ModelRequest) -> Json:
        sampling, tool = {"max_tokens": MOST_TOKENS, **request.sampling}, request.tool
        effort = sampling.pop("reasoning_effort", None)
        if budget := THINKING.get(str(effort)):
            sampling["max_tokens"] += budget
            sampling["thinking"] = {"type": "enabled", "budget_tokens": budget}
        body: Json = {
            "model": endpoint.model,
            "messages": [dict(message) for message in request.messages if not _is_system(message)],
            **sampling,
        }
        if system := [message["content"] for message in request.messages if _is_system(message)]:
            body["system"] = _joined(system)
        if tool is not None:
            function = {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
            body["tools"] = [function]
            # A model that thinks must not be forced to a tool: the API refuses both together.
            if request.forced and "thinking" not in body:
                body["tool_choice"] = {"type": "tool", "name": tool.name}
        return body | ({"stream": True} if request.stream else {})

    def collector(self) -> MessageCollector:
        return MessageCollector()

    def read(self, data: Json) -> Reply:
        if not isinstance(data.get("content"), list):
            raise UnreadableAnswerError("no `content`")
        stop = text_in(data, "stop_reason") or "end_turn"
        blocks = objects_in(data, "content")
        return Reply(
            text="".join(text_in(block, "text") for block in blocks if block.get("type") == "text"),
            finish_reason=_FINISHED.get(stop, stop),
            usage=_usage(object_in(data, "usage")),
            model=text_in(data, "model") or None,
            raw=data,
            calls=tuple(_call(block) for block in blocks if block.get("type") == "tool_use"),
        )

    def follow_up(self, reply: Reply, text: str) -> list[Json]:
        said = objects_in(reply.raw, "content") or [{"type": "text", "text": "(nothing)"}]
        results: list[Json] = [
            {"type": "tool_result", "tool_use_id": call.id, "content": text, "is_error": True}
            for call in reply.calls
        ]
        answer = results or [{"type": "text", "text": text}]
        return [{"role": "assistant", "content": said}, {"role": "user", "content": answer}]


class MessageCollector:
    """Puts the events of a message together."""

    def __init__(self) -> None:
        self._message: Json | None = None
        self._blocks: dict[int, tuple[Json, list[str]]] = {}
        self._ended = False

    def add(self, event: Json) -> None:
        match event.get("type"):
            case "error":
                raise BrokenStreamError(event.get("error"))
            case "message_start":
                self._message = object_in(event, "message")
            case "content_block_start":
                block = dict(object_in(event, "content_block"))
                self._blocks[whole_number(event.get("index"))] = (block, [])
            case "content_block_delta":
                self._add_piece(whole_number(event.get("index")), object_in(event, "delta"))
            case "message_delta" if self._message is not None:
                self._message |= object_in(event, "delta")
                self._message["usage"] = object_in(self._message, "usage") | object_in(event, "usage")
            case "message_stop":
                self._ended = True

    def _add_piece(self, at: int, delta: Json) -> None:
        block, pieces = self._blocks.get(at, ({}, []))
        if signature := text_in(delta, "signature"):
            block["signature"] = signature
        pieces.append(text_in(delta, "text") or text_in(delta, "partial_json") or text_in(delta, "thinking"))

    def whole(self) -> Json | None:
        if self._message is None or not self._ended:
            return None
        content = [_finished(*self._blocks[at]) for at in sorted(self._blocks)]
        return {**self._message, "content": content}


def _call(block: Json) -> FunctionCall:
    given = block.get("input")
    return FunctionCall(
        str(block.get("id") or ""), str(block.get("name")), given if isinstance(given, dict) else None
    )


def _finished(block: Json, pieces: list[str]) -> Json:
    said = "".join(pieces)
    if block.get("type") == "tool_use":
        try:
            return {**block, "input": json.loads(said or "{}")}
        except (ValueError, RecursionError):
            raise UnreadableAnswerError("a tool's arguments that are no JSON") from None
    word = "thinking" if block.get("type") == "thinking" else "text"
    return {**block, word: text_in(block, word) + said} if word in block or said else block


def _is_system(message: Message) -> bool:
    return message.get("role") in ("system", "developer")


def _joined(system: Sequence[object]) -> object:
    """The system's words as one text, or as parts where a message has parts."""
    if all(isinstance(content, str) for content in system):
        return "\n\n".join(map(str, system))
    parts: list[object] = []
    for content in system:
        parts += content if isinstance(content, list) else [{"type": "text", "text": content}]
    return parts


def _usage(usage: Json) -> TokenUsage:
    cached = whole_number(usage.get("cache_read_input_tokens"))
    written = whole_number(usage.get("cache_creation_input_tokens"))
    plain = whole_number(usage.get("input_tokens"))
    return TokenUsage(plain + cached + written, whole_number(usage.get("output_tokens")), cached)

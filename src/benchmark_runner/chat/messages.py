"""Anthropic's Messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from benchmark_runner.chat.speaking import (
    BrokenStreamError,
    Json,
    Message,
    Reply,
    UnreadableAnswerError,
    Usage,
    object_in,
    objects_in,
    text_in,
    whole_number,
)

if TYPE_CHECKING:
    from benchmark_runner.chat.endpoint import Endpoint
    from benchmark_runner.llm import LLMConfig

VERSION = "2023-06-01"
MOST_TOKENS = 8192
"""Of an answer, where nobody says; the API wants a number."""
THINKING = {"low": 2048, "medium": 8192, "high": 16384, "xhigh": 32768}
"""Tokens a model may think with, by effort, beyond those of its answer."""
_FINISHED = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}


class Messages:
    """`POST …/v1/messages`."""

    name = "messages"

    def headers(self, key: str | None) -> Mapping[str, str]:
        version = {"anthropic-version": VERSION}
        return {**version, "x-api-key": key} if key else version

    def body(self, endpoint: Endpoint, messages: Sequence[Message], config: LLMConfig) -> Json:
        sampling = {"max_tokens": MOST_TOKENS, **config.sampling}
        effort = sampling.pop("reasoning_effort", None)
        if budget := THINKING.get(str(effort)):
            sampling["max_tokens"] += budget
            sampling["thinking"] = {"type": "enabled", "budget_tokens": budget}
        body: Json = {
            "model": endpoint.model,
            "messages": [dict(message) for message in messages if not _is_system(message)],
            **sampling,
        }
        if system := [message["content"] for message in messages if _is_system(message)]:
            body["system"] = _joined(system)
        return body | ({"stream": True} if config.provider_config.stream_completions else {})

    def gathered(self) -> GatheredMessage:
        return GatheredMessage()

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
        )


class GatheredMessage:
    """The events of a message."""

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


def _usage(usage: Json) -> Usage:
    cached = whole_number(usage.get("cache_read_input_tokens"))
    written = whole_number(usage.get("cache_creation_input_tokens"))
    plain = whole_number(usage.get("input_tokens"))
    return Usage(plain + cached + written, whole_number(usage.get("output_tokens")), cached)

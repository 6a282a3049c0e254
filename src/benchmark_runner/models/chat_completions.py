"""OpenAI's Chat Completions, and the many servers that speak the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from benchmark_runner.models.dialect import (
    FunctionCall,
    Json,
    ModelRequest,
    Reply,
    TokenUsage,
    arguments_in,
    bearer,
    object_in,
    objects_in,
    text_in,
    whole_number,
)
from benchmark_runner.models.endpoint import BrokenStreamError, UnreadableAnswerError

if TYPE_CHECKING:
    from benchmark_runner.models.endpoint import Endpoint

_FINISHED = {"content_filter": "refusal", "function_call": "tool_calls"}


class ChatCompletionsDialect:
    """`POST …/chat/completions`."""

    def headers(self, key: str | None) -> Mapping[str, str]:
        return bearer(key)

    def body(self, endpoint: Endpoint, request: ModelRequest) -> Json:
        sampling, tool = dict(request.sampling), request.tool
        if endpoint.vendor == "openai" and "max_tokens" in sampling:
            # OpenAI's reasoning models know only the newer name, other servers often only the older.
            sampling["max_completion_tokens"] = sampling.pop("max_tokens")
        body: Json = {
            "model": endpoint.model,
            "messages": [dict(message) for message in request.messages],
            **sampling,
        }
        if tool is not None:
            function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
            body["tools"] = [{"type": "function", "function": function}]
            if request.forced:
                body["tool_choice"] = {"type": "function", "function": {"name": tool.name}}
        if request.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    def collector(self) -> CompletionCollector:
        return CompletionCollector()

    def read(self, data: Json) -> Reply:
        choices = objects_in(data, "choices")
        if not choices or not isinstance(choices[0].get("message"), dict):
            raise UnreadableAnswerError("no `choices` with a message")
        message, usage = choices[0]["message"], object_in(data, "usage")
        finish = text_in(choices[0], "finish_reason") or "stop"
        refusal = text_in(message, "refusal")
        return Reply(
            text=_text(message.get("content")) or refusal,
            finish_reason="refusal" if refusal else _FINISHED.get(finish, finish),
            usage=TokenUsage(
                whole_number(usage.get("prompt_tokens")),
                whole_number(usage.get("completion_tokens")),
                whole_number(object_in(usage, "prompt_tokens_details").get("cached_tokens")),
            ),
            model=text_in(data, "model") or None,
            raw=data,
            calls=tuple(map(_call, _function_calls(message))),
        )

    def follow_up(self, reply: Reply, text: str) -> list[Json]:
        said = objects_in(reply.raw, "choices")[0]["message"]
        kept: Json = {"role": "assistant", "content": said.get("content") or ""}
        if not reply.calls:
            return [kept, {"role": "user", "content": text}]
        kept["tool_calls"] = _function_calls(said)
        results = [{"role": "tool", "tool_call_id": call.id, "content": text} for call in reply.calls]
        return [kept, *results]


class CompletionCollector:
    """Puts the chunks of a completion together."""

    def __init__(self) -> None:
        self._head: Json = {}
        self._texts: dict[str, list[str]] = {"content": [], "refusal": [], "reasoning_content": []}
        self._calls: dict[int, Json] = {}
        self._finish: str | None = None
        self._usage: Json | None = None

    def add(self, event: Json) -> None:
        if event.get("error"):
            raise BrokenStreamError(event["error"])
        if not self._head:
            self._head = {key: event[key] for key in ("id", "created", "model") if key in event}
        if isinstance(event.get("usage"), dict):
            self._usage = event["usage"]
        for choice in objects_in(event, "choices")[:1]:
            delta = object_in(choice, "delta")
            for name, texts in self._texts.items():
                if piece := text_in(delta, name):
                    texts.append(piece)
            for call in objects_in(delta, "tool_calls"):
                self._add_call(call)
            self._finish = text_in(choice, "finish_reason") or self._finish

    def _add_call(self, piece: Json) -> None:
        begun = self._calls.setdefault(
            whole_number(piece.get("index")),
            {"id": "", "type": "function", "function": {"name": "", "arguments": ""}},
        )
        begun["id"] = text_in(piece, "id") or begun["id"]
        for name in ("name", "arguments"):
            begun["function"][name] += text_in(object_in(piece, "function"), name)

    def whole(self) -> Json | None:
        if self._finish is None:
            return None
        message: Json = {"role": "assistant"}
        message |= {name: "".join(texts) for name, texts in self._texts.items() if texts}
        message.setdefault("content", None)
        if self._calls:
            message["tool_calls"] = [self._calls[at] for at in sorted(self._calls)]
        choice = {"index": 0, "message": message, "finish_reason": self._finish}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": self._usage}


def _function_calls(message: Json) -> list[Json]:
    """Return the calls of functions; other tools have calls of other forms."""
    return [call for call in objects_in(message, "tool_calls") if isinstance(call.get("function"), dict)]


def _call(call: Json) -> FunctionCall:
    function = call["function"]
    return FunctionCall(
        str(call.get("id") or ""), str(function.get("name")), arguments_in(function.get("arguments"))
    )


def _text(content: object) -> str:
    """Return text as most servers answer it, or of the parts some do."""
    if isinstance(content, list):
        return "".join(text_in(part, "text") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""

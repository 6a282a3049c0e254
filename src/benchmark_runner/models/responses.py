"""OpenAI's Responses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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

_INCOMPLETE = {"max_output_tokens": "length", "content_filter": "refusal"}


class ResponsesDialect:
    """`POST …/responses`. Nothing is stored at the server: every request brings its whole conversation."""

    def headers(self, key: str | None) -> Mapping[str, str]:
        return bearer(key)

    def body(self, endpoint: Endpoint, request: ModelRequest) -> Json:
        sampling, tool = dict(request.sampling), request.tool
        if "max_tokens" in sampling:
            sampling["max_output_tokens"] = sampling.pop("max_tokens")
        if "reasoning_effort" in sampling:
            sampling["reasoning"] = {"effort": sampling.pop("reasoning_effort")}
        given = [dict(message) for message in request.messages]
        body: Json = {"model": endpoint.model, "input": given, "store": False, **sampling}
        if tool is not None:
            function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
            body["tools"] = [{"type": "function", "strict": False, **function}]
            if request.forced:
                body["tool_choice"] = {"type": "function", "name": tool.name}
        return body | ({"stream": True} if request.stream else {})

    def collector(self) -> ResponseCollector:
        return ResponseCollector()

    def read(self, data: Json) -> Reply:
        if not isinstance(data.get("output"), list):
            raise UnreadableAnswerError("no `output`")
        if data.get("status") == "failed":
            raise BrokenStreamError(data.get("error"))
        items = objects_in(data, "output")
        parts = [
            part for item in items for part in objects_in(item, "content") if item.get("type") == "message"
        ]
        refusals = [text_in(part, "refusal") for part in parts if part.get("type") == "refusal"]
        texts = [text_in(part, "text") for part in parts if part.get("type") == "output_text"]
        return Reply(
            text="".join(texts) or "".join(refusals),
            finish_reason="refusal" if refusals else _finish(data, items),
            usage=_usage(object_in(data, "usage")),
            model=text_in(data, "model") or None,
            raw=data,
            calls=tuple(_call(item) for item in items if item.get("type") == "function_call"),
        )

    def follow_up(self, reply: Reply, text: str) -> list[Json]:
        # Thoughts stay behind: they could only go back by their id, and nothing is stored.
        said = [reply.message] if reply.text else []
        if not reply.calls:
            return [*said, {"role": "user", "content": text}]
        results = [
            {"type": "function_call_output", "call_id": call.id, "output": text} for call in reply.calls
        ]
        return [*said, *map(_again, reply.calls), *results]


class ResponseCollector:
    """Takes a response from its events; the last one has it whole."""

    def __init__(self) -> None:
        self._whole: Json | None = None

    def add(self, event: Json) -> None:
        match event.get("type"):
            case "response.completed" | "response.incomplete":
                self._whole = object_in(event, "response")
            case "response.failed":
                raise BrokenStreamError(object_in(event, "response").get("error"))
            case "error":
                raise BrokenStreamError(event.get("error") or event)

    def whole(self) -> Json | None:
        return self._whole


def _call(item: Json) -> FunctionCall:
    return FunctionCall(
        str(item.get("call_id") or ""), str(item.get("name")), arguments_in(item.get("arguments"))
    )


def _again(call: FunctionCall) -> Json:
    arguments = json.dumps(call.arguments or {})
    return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments}


def _finish(data: Json, items: Sequence[Json]) -> str:
    if data.get("status") == "incomplete":
        why = text_in(object_in(data, "incomplete_details"), "reason")
        return _INCOMPLETE.get(why, why or "incomplete")
    calls = any(item.get("type") in ("function_call", "custom_tool_call") for item in items)
    return "tool_calls" if calls else "stop"


def _usage(usage: Json) -> TokenUsage:
    return TokenUsage(
        whole_number(usage.get("input_tokens")),
        whole_number(usage.get("output_tokens")),
        whole_number(object_in(usage, "input_tokens_details").get("cached_tokens")),
    )

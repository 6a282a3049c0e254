"""OpenAI's Responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from benchmark_runner.chat.speaking import (
    BrokenStreamError,
    Json,
    Message,
    Reply,
    UnreadableAnswerError,
    Usage,
    bearer,
    object_in,
    objects_in,
    text_in,
    whole_number,
)

if TYPE_CHECKING:
    from benchmark_runner.chat.endpoint import Endpoint
    from benchmark_runner.llm import LLMConfig

_INCOMPLETE = {"max_output_tokens": "length", "content_filter": "refusal"}


class Responses:
    """`POST …/responses`. Nothing is stored at the server: every request brings its whole conversation."""

    name = "responses"

    def headers(self, key: str | None) -> Mapping[str, str]:
        return bearer(key)

    def body(self, endpoint: Endpoint, messages: Sequence[Message], config: LLMConfig) -> Json:
        sampling = config.sampling
        if "max_tokens" in sampling:
            sampling["max_output_tokens"] = sampling.pop("max_tokens")
        if "reasoning_effort" in sampling:
            sampling["reasoning"] = {"effort": sampling.pop("reasoning_effort")}
        given = [dict(message) for message in messages]
        body: Json = {"model": endpoint.model, "input": given, "store": False, **sampling}
        return body | ({"stream": True} if config.provider_config.stream_completions else {})

    def gathered(self) -> GatheredResponse:
        return GatheredResponse()

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
        )


class GatheredResponse:
    """The events of a response; the last one has it whole."""

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


def _finish(data: Json, items: Sequence[Json]) -> str:
    if data.get("status") == "incomplete":
        why = text_in(object_in(data, "incomplete_details"), "reason")
        return _INCOMPLETE.get(why, why or "incomplete")
    calls = any(item.get("type") in ("function_call", "custom_tool_call") for item in items)
    return "tool_calls" if calls else "stop"


def _usage(usage: Json) -> Usage:
    return Usage(
        whole_number(usage.get("input_tokens")),
        whole_number(usage.get("output_tokens")),
        whole_number(object_in(usage, "input_tokens_details").get("cached_tokens")),
    )

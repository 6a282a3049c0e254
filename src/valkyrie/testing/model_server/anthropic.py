"""Anthropic Messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from valkyrie.testing.model_server.script import Fault
from valkyrie.testing.model_server.shape import (
    Asked,
    Json,
    OfferedTool,
    ScriptedAnswer,
    ScriptedFailure,
    event,
    pieces,
    turns_of,
)

_ERRORS: Mapping[str, tuple[int, str, str]] = {
    "rate_limit": (429, "rate_limit_error", "This request would exceed your account's rate limit."),
    "context_overflow": (400, "invalid_request_error", "prompt is too long: 250000 tokens > 200000 maximum"),
    "unauthorized": (401, "authentication_error", "invalid x-api-key"),
    "unknown_model": (404, "not_found_error", "model: no-such-model"),
    "server_error": (500, "api_error", "Internal server error"),
    "overloaded": (529, "overloaded_error", "Overloaded"),
}


class Messages:
    """`POST /v1/messages`."""

    name = "messages"

    def asked(self, path: str, body: Json, headers: Mapping[str, str]) -> Asked:
        messages = [item for item in body.get("messages") or [] if isinstance(item, dict)]
        session = headers.get("x-claude-code-session-id") or (body.get("metadata") or {}).get("user_id")
        return Asked(
            model=str(body.get("model", "")),
            stream=bool(body.get("stream")),
            turn=turns_of(messages, lambda item: item.get("role") == "assistant"),
            tools=[
                OfferedTool(str(tool.get("name")), tool.get("input_schema") or {})
                for tool in body.get("tools") or []
                if isinstance(tool, dict)
            ],
            history=messages,
            session=session if isinstance(session, str) else None,
        )

    def whole(self, answer: ScriptedAnswer) -> Json:
        content: list[Json] = [{"type": "text", "text": answer.text}] if answer.text else []
        if answer.use:
            use = answer.use
            content.append(
                {"type": "tool_use", "id": use.id, "name": use.tool.name, "input": dict(use.arguments)}
            )
        return {
            "id": f"msg_{answer.id}",
            "type": "message",
            "role": "assistant",
            "model": answer.model,
            "content": content,
            "stop_reason": _stop(answer),
            "stop_sequence": None,
            "usage": _usage(answer, answer.spent.output),
        }

    def events(self, answer: ScriptedAnswer) -> Iterator[bytes]:
        whole = self.whole(answer)
        start = {**whole, "content": [], "stop_reason": None, "usage": _usage(answer, 1)}
        yield _event({"type": "message_start", "message": start})
        for at, block in enumerate(whole["content"]):
            yield from _block(at, block)
        delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
        usage = {"output_tokens": answer.spent.output}
        yield _event({"type": "message_delta", "delta": delta, "usage": usage})
        yield _event({"type": "message_stop"})

    def failure(self, fault: Fault) -> ScriptedFailure:
        status, kind, message = _ERRORS[fault.kind]
        error = {"type": kind, "message": fault.message or message}
        return ScriptedFailure(status, {"type": "error", "error": error, "request_id": "req_scripted"})


def _stop(answer: ScriptedAnswer) -> str:
    if answer.refused:
        return "refusal"
    return "tool_use" if answer.use else "end_turn"


def _usage(answer: ScriptedAnswer, output: int) -> Json:
    return {
        "input_tokens": answer.spent.input - answer.spent.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": answer.spent.cached,
        "output_tokens": output,
    }


def _block(at: int, block: Json) -> Iterator[bytes]:
    if block["type"] == "text":
        empty: Json = {"type": "text", "text": ""}
        deltas: list[Json] = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
    else:
        empty = {**block, "input": {}}
        words = pieces(json.dumps(block["input"]))
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in words]
    yield _event({"type": "content_block_start", "index": at, "content_block": empty})
    for delta in deltas:
        yield _event({"type": "content_block_delta", "index": at, "delta": delta})
    yield _event({"type": "content_block_stop", "index": at})


def _event(data: Json) -> bytes:
    return event(data, str(data["type"]))

"""OpenAI Chat Completions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from valkyrie.testing.model_server.openai_errors import openai_failure
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


class ChatCompletions:
    """`POST /v1/chat/completions`."""

    name = "chat"

    def asked(self, path: str, body: Json, headers: Mapping[str, str]) -> Asked:
        messages = [item for item in body.get("messages") or [] if isinstance(item, dict)]
        functions = [tool.get("function") or {} for tool in body.get("tools") or [] if isinstance(tool, dict)]
        return Asked(
            model=str(body.get("model", "")),
            stream=bool(body.get("stream")),
            turn=turns_of(messages, lambda item: item.get("role") == "assistant"),
            tools=[OfferedTool(str(tool.get("name")), tool.get("parameters") or {}) for tool in functions],
            history=messages,
            session=headers.get("x-session-id"),
        )

    def whole(self, answer: ScriptedAnswer) -> Json:
        message: Json = {"role": "assistant", "content": answer.text or None, "refusal": None}
        if answer.refused:
            message |= {"content": None, "refusal": answer.text}
        if answer.use:
            message["tool_calls"] = [_call(answer)]
        choice = {"index": 0, "message": message, "finish_reason": _finish(answer), "logprobs": None}
        return _head(answer, "chat.completion") | {"choices": [choice], "usage": usage_of(answer)}

    def events(self, answer: ScriptedAnswer) -> Iterator[bytes]:
        head = _head(answer, "chat.completion.chunk")

        def chunk(delta: Json, finish: str | None = None) -> bytes:
            return event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

        yield chunk({"role": "assistant", "content": ""})
        word = "refusal" if answer.refused else "content"
        for piece in pieces(answer.text) if answer.text else ():
            yield chunk({word: piece})
        if answer.use:
            yield chunk({"tool_calls": [{"index": 0, **_call(answer)}]})
        yield chunk({}, _finish(answer))
        yield event({**head, "choices": [], "usage": usage_of(answer)})
        yield b"data: [DONE]\n\n"

    def failure(self, fault: Fault) -> ScriptedFailure:
        return openai_failure(fault)


def usage_of(answer: ScriptedAnswer) -> Json:
    spent = answer.spent
    return {
        "prompt_tokens": spent.input,
        "completion_tokens": spent.output,
        "total_tokens": spent.input + spent.output,
        "prompt_tokens_details": {"cached_tokens": spent.cached},
    }


def _head(answer: ScriptedAnswer, kind: str) -> Json:
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": 1_700_000_000, "model": answer.model}


def _finish(answer: ScriptedAnswer) -> str:
    if answer.refused:
        return "content_filter"
    return "tool_calls" if answer.use else "stop"


def _call(answer: ScriptedAnswer) -> Json:
    assert answer.use is not None
    use = answer.use
    return {
        "id": use.id,
        "type": "function",
        "function": {"name": use.tool.name, "arguments": json.dumps(dict(use.arguments))},
    }

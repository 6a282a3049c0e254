"""The model APIs the server speaks: OpenAI Chat Completions and Responses, Anthropic, Gemini."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from valkyrie.testing.model_server.script import (
    Fault,
    Json,
    OfferedTool,
    ReceivedRequest,
    ScriptedAnswer,
    ScriptedFailure,
    event,
    pieces,
    turns_of,
)

ERRORS: Mapping[str, tuple[int, str, str | None, str]] = {
    "rate_limit": (429, "requests", "rate_limit_exceeded", "Rate limit reached for requests."),
    "context_overflow": (
        400,
        "invalid_request_error",
        "context_length_exceeded",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
    ),
    "unauthorized": (401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    "unknown_model": (
        404,
        "invalid_request_error",
        "model_not_found",
        "The model `no-such-model` does not exist or you do not have access to it.",
    ),
    "server_error": (500, "server_error", None, "The server had an error while processing your request."),
    "overloaded": (503, "server_error", None, "The engine is currently overloaded, please try again later."),
}


def openai_failure(fault: Fault) -> ScriptedFailure:
    """The error object, with its status."""
    status, kind, code, message = ERRORS[fault.kind]
    error = {"message": fault.message or message, "type": kind, "param": None, "code": code}
    return ScriptedFailure(status, {"error": error})


# OpenAI Chat Completions.


class ScriptedChatCompletions:
    """`POST /v1/chat/completions`."""

    name = "chat"

    def asked(self, path: str, body: Json, headers: Mapping[str, str]) -> ReceivedRequest:
        messages = [item for item in body.get("messages") or [] if isinstance(item, dict)]
        functions = [tool.get("function") or {} for tool in body.get("tools") or [] if isinstance(tool, dict)]
        return ReceivedRequest(
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
        return _chat_head(answer, "chat.completion") | {"choices": [choice], "usage": usage_of(answer)}

    def events(self, answer: ScriptedAnswer) -> Iterator[bytes]:
        head = _chat_head(answer, "chat.completion.chunk")

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


def _chat_head(answer: ScriptedAnswer, kind: str) -> Json:
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


# OpenAI Responses.

_MODELS = ("function_call", "custom_tool_call", "local_shell_call", "reasoning", "web_search_call")


class ScriptedResponses:
    """`POST /v1/responses`."""

    name = "responses"

    def asked(self, path: str, body: Json, headers: Mapping[str, str]) -> ReceivedRequest:
        given = body.get("input")
        items = given if isinstance(given, list) else [{"role": "user", "content": given}]
        session = headers.get("session_id") or headers.get("session-id") or body.get("prompt_cache_key")
        return ReceivedRequest(
            model=str(body.get("model", "")),
            stream=bool(body.get("stream")),
            turn=turns_of(items, _is_models),
            tools=[found for tool in body.get("tools") or [] if (found := _tool(tool))],
            history=items,
            session=session if isinstance(session, str) else None,
        )

    def whole(self, answer: ScriptedAnswer) -> Json:
        return _response_head(answer) | {
            "status": "completed",
            "output": _output(answer),
            "usage": _responses_usage(answer),
        }

    def events(self, answer: ScriptedAnswer) -> Iterator[bytes]:
        number = 0

        def said(kind: str, **data: Any) -> bytes:
            nonlocal number
            number += 1
            return event({"type": kind, "sequence_number": number, **data}, kind)

        begun = _response_head(answer) | {"status": "in_progress", "output": [], "usage": None}
        yield said("response.created", response=begun)
        yield said("response.in_progress", response=begun)
        for at, item in enumerate(_output(answer)):
            yield said("response.output_item.added", output_index=at, item={**item, "status": "in_progress"})
            if item["type"] == "message" and not answer.refused:
                place = {"item_id": item["id"], "output_index": at, "content_index": 0}
                for piece in pieces(answer.text):
                    yield said("response.output_text.delta", **place, delta=piece)
                yield said("response.output_text.done", **place, text=answer.text)
            yield said("response.output_item.done", output_index=at, item=item)
        yield said("response.completed", response=self.whole(answer))

    def failure(self, fault: Fault) -> ScriptedFailure:
        return openai_failure(fault)


def _is_models(item: Any) -> bool:
    return isinstance(item, dict) and (item.get("role") == "assistant" or item.get("type") in _MODELS)


def _tool(tool: Any) -> OfferedTool | None:
    if not isinstance(tool, dict):
        return None
    name = tool.get("name") or tool.get("type")
    return OfferedTool(str(name), tool.get("parameters") or {}, custom=tool.get("type") == "custom")


def _response_head(answer: ScriptedAnswer) -> Json:
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": answer.model,
        "error": None,
        "incomplete_details": None,
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
    }


def _output(answer: ScriptedAnswer) -> list[Json]:
    found: list[Json] = []
    if answer.text or answer.use is None:
        part: Json = {"type": "output_text", "text": answer.text, "annotations": []}
        if answer.refused:
            part = {"type": "refusal", "refusal": answer.text}
        message = {"type": "message", "id": f"msg_{answer.id}", "role": "assistant", "status": "completed"}
        found.append({**message, "content": [part]})
    if answer.use:
        use = answer.use
        call = {"id": f"fc_{answer.id}", "call_id": use.id, "name": use.tool.name, "status": "completed"}
        if use.tool.custom:
            text = next((str(value) for value in use.arguments.values()), "")
            found.append({"type": "custom_tool_call", **call, "input": text})
        else:
            found.append({"type": "function_call", **call, "arguments": json.dumps(dict(use.arguments))})
    return found


def _responses_usage(answer: ScriptedAnswer) -> Json:
    spent = answer.spent
    return {
        "input_tokens": spent.input,
        "input_tokens_details": {"cached_tokens": spent.cached},
        "output_tokens": spent.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": spent.input + spent.output,
    }


# Anthropic Messages.

_ANTHROPIC_ERRORS: Mapping[str, tuple[int, str, str]] = {
    "rate_limit": (429, "rate_limit_error", "This request would exceed your account's rate limit."),
    "context_overflow": (400, "invalid_request_error", "prompt is too long: 250000 tokens > 200000 maximum"),
    "unauthorized": (401, "authentication_error", "invalid x-api-key"),
    "unknown_model": (404, "not_found_error", "model: no-such-model"),
    "server_error": (500, "api_error", "Internal server error"),
    "overloaded": (529, "overloaded_error", "Overloaded"),
}


class ScriptedMessages:
    """`POST /v1/messages`."""

    name = "messages"

    def asked(self, path: str, body: Json, headers: Mapping[str, str]) -> ReceivedRequest:
        messages = [item for item in body.get("messages") or [] if isinstance(item, dict)]
        session = headers.get("x-claude-code-session-id") or (body.get("metadata") or {}).get("user_id")
        return ReceivedRequest(
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
            "usage": _messages_usage(answer, answer.spent.output),
        }

    def events(self, answer: ScriptedAnswer) -> Iterator[bytes]:
        whole = self.whole(answer)
        start = {**whole, "content": [], "stop_reason": None, "usage": _messages_usage(answer, 1)}
        yield _event({"type": "message_start", "message": start})
        for at, block in enumerate(whole["content"]):
            yield from _block(at, block)
        delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
        usage = {"output_tokens": answer.spent.output}
        yield _event({"type": "message_delta", "delta": delta, "usage": usage})
        yield _event({"type": "message_stop"})

    def failure(self, fault: Fault) -> ScriptedFailure:
        status, kind, message = _ANTHROPIC_ERRORS[fault.kind]
        error = {"type": kind, "message": fault.message or message}
        return ScriptedFailure(status, {"type": "error", "error": error, "request_id": "req_scripted"})


def _stop(answer: ScriptedAnswer) -> str:
    if answer.refused:
        return "refusal"
    return "tool_use" if answer.use else "end_turn"


def _messages_usage(answer: ScriptedAnswer, output: int) -> Json:
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


# Gemini generateContent and streamGenerateContent.

_PATH = re.compile(r"/models/([^/:]+):(\w+)")
_GEMINI_ERRORS: Mapping[str, tuple[int, str, str]] = {
    "rate_limit": (429, "RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota)."),
    "context_overflow": (
        400,
        "INVALID_ARGUMENT",
        "The input token count (1250000) exceeds the maximum number of tokens allowed (1048576).",
    ),
    "unauthorized": (401, "UNAUTHENTICATED", "API key not valid. Please pass a valid API key."),
    "unknown_model": (404, "NOT_FOUND", "models/no-such-model is not found for API version v1beta."),
    "server_error": (500, "INTERNAL", "An internal error has occurred."),
    "overloaded": (503, "UNAVAILABLE", "The model is overloaded. Please try again later."),
}


class ScriptedGenerateContent:
    """`POST …/models/NAME:generateContent` and `:streamGenerateContent`."""

    name = "gemini"

    def asked(self, path: str, body: Json, headers: Mapping[str, str]) -> ReceivedRequest:
        match = _PATH.search(path)
        contents = [item for item in body.get("contents") or [] if isinstance(item, dict)]
        declared = [
            item
            for tool in body.get("tools") or []
            if isinstance(tool, dict)
            for item in tool.get("functionDeclarations") or tool.get("function_declarations") or []
        ]
        return ReceivedRequest(
            model=match[1] if match else "",
            stream=bool(match and match[2].startswith("stream")),
            turn=turns_of(contents, lambda item: item.get("role") == "model"),
            tools=[
                OfferedTool(
                    str(item.get("name")), item.get("parametersJsonSchema") or item.get("parameters") or {}
                )
                for item in declared
            ],
            history=contents,
        )

    def whole(self, answer: ScriptedAnswer) -> Json:
        return _chunk(answer, _parts(answer, answer.text), last=True)

    def events(self, answer: ScriptedAnswer) -> Iterator[bytes]:
        *first, end = pieces(answer.text)
        for piece in first:
            yield event(_chunk(answer, [{"text": piece}], last=False))
        yield event(_chunk(answer, _parts(answer, end), last=True))

    def failure(self, fault: Fault) -> ScriptedFailure:
        status, word, message = _GEMINI_ERRORS[fault.kind]
        error: Json = {"code": status, "message": fault.message or message, "status": word}
        if fault.kind == "rate_limit" and fault.retry_after is not None:
            kind = "type.googleapis.com/google.rpc.RetryInfo"
            error["details"] = [{"@type": kind, "retryDelay": f"{fault.retry_after:g}s"}]
        return ScriptedFailure(status, {"error": error})


def _parts(answer: ScriptedAnswer, text: str) -> list[Json]:
    found: list[Json] = [{"text": text}] if text else []
    if answer.use:
        found.append({"functionCall": {"name": answer.use.tool.name, "args": dict(answer.use.arguments)}})
    return found


def _chunk(answer: ScriptedAnswer, parts: list[Json], *, last: bool) -> Json:
    candidate: Json = {"index": 0, "content": {"role": "model", "parts": parts}}
    found: Json = {"candidates": [candidate], "modelVersion": answer.model, "responseId": answer.id}
    if last:
        candidate["finishReason"] = "SAFETY" if answer.refused else "STOP"
        spent = answer.spent
        found["usageMetadata"] = {
            "promptTokenCount": spent.input,
            "cachedContentTokenCount": spent.cached,
            "candidatesTokenCount": spent.output,
            "totalTokenCount": spent.input + spent.output,
        }
    return found

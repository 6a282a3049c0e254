"""Gemini generateContent and streamGenerateContent."""

from __future__ import annotations

import re
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

_PATH = re.compile(r"/models/([^/:]+):(\w+)")
_ERRORS: Mapping[str, tuple[int, str, str]] = {
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


class GenerateContent:
    """`POST …/models/NAME:generateContent` and `:streamGenerateContent`."""

    name = "gemini"

    def asked(self, path: str, body: Json, headers: Mapping[str, str]) -> Asked:
        match = _PATH.search(path)
        contents = [item for item in body.get("contents") or [] if isinstance(item, dict)]
        declared = [
            item
            for tool in body.get("tools") or []
            if isinstance(tool, dict)
            for item in tool.get("functionDeclarations") or tool.get("function_declarations") or []
        ]
        return Asked(
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
        status, word, message = _ERRORS[fault.kind]
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

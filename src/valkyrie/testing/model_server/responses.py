"""OpenAI Responses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

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

_MODELS = ("function_call", "custom_tool_call", "local_shell_call", "reasoning", "web_search_call")


class Responses:
    """`POST /v1/responses`."""

    name = "responses"

    def asked(self, path: str, body: Json, headers: Mapping[str, str]) -> Asked:
        given = body.get("input")
        items = given if isinstance(given, list) else [{"role": "user", "content": given}]
        session = headers.get("session_id") or headers.get("session-id") or body.get("prompt_cache_key")
        return Asked(
            model=str(body.get("model", "")),
            stream=bool(body.get("stream")),
            turn=turns_of(items, _is_models),
            tools=[found for tool in body.get("tools") or [] if (found := _tool(tool))],
            history=items,
            session=session if isinstance(session, str) else None,
        )

    def whole(self, answer: ScriptedAnswer) -> Json:
        return _head(answer) | {
            "status": "completed",
            "output": _output(answer),
            "usage": _usage(answer),
        }

    def events(self, answer: ScriptedAnswer) -> Iterator[bytes]:
        number = 0

        def said(kind: str, **data: Any) -> bytes:
            nonlocal number
            number += 1
            return event({"type": kind, "sequence_number": number, **data}, kind)

        begun = _head(answer) | {"status": "in_progress", "output": [], "usage": None}
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


def _head(answer: ScriptedAnswer) -> Json:
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


def _usage(answer: ScriptedAnswer) -> Json:
    spent = answer.spent
    return {
        "input_tokens": spent.input,
        "input_tokens_details": {"cached_tokens": spent.cached},
        "output_tokens": spent.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": spent.input + spent.output,
    }

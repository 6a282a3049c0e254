"""Answers: views as JSON, errors, and long ones piece by piece."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python
from starlette.responses import Response

from valkyrie.api.errors import ErrorAnswer, Refusal

JSON = "application/json"
_BATCH = 200
"""Elements of a long list that are turned into text at once; other threads get their turn in between."""


def encode(view: Any) -> bytes:
    """A view, or a list of views, as JSON."""
    try:
        return to_json(view, inf_nan_mode="null")
    except PydanticSerializationError:
        # A file name that is no Unicode; json can say it in escapes.
        return json.dumps(to_jsonable_python(view, inf_nan_mode="constants")).encode()


def answer(view: Any, status: int = 200) -> Response:
    """A view as an answer."""
    return Response(encode(view), status, media_type=JSON)


def refuse(refusal: Refusal) -> Response:
    """An error as an answer."""
    return Response(encode(ErrorAnswer(refusal.detail)), refusal.status, refusal.headers, media_type=JSON)


def encode_document(document: Mapping[str, Any]) -> Iterator[bytes]:
    """A large document piece by piece: its long lists are never text as a whole."""
    opening = b"{"
    for name, value in document.items():
        yield opening + encode(name) + b":"
        opening = b","
        if isinstance(value, Sequence) and not isinstance(value, str) and len(value) > _BATCH:
            yield from _encode_list(value)
        else:
            yield encode(value)
    yield b"}" if opening == b"," else b"{}"


def _encode_list(values: Sequence[Any]) -> Iterator[bytes]:
    opening = b"["
    for start in range(0, len(values), _BATCH):
        yield opening + encode(values[start : start + _BATCH])[1:-1]
        opening = b","
    yield b"]"

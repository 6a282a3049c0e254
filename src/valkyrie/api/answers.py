"""Answers: views and errors as JSON."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python
from starlette.responses import Response

from valkyrie.api.errors import ErrorAnswer, Refusal

JSON = "application/json"


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

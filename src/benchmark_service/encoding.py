"""Results and chunks of services as strict JSON, with the place named where they are not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from benchmark_service.failures import ServiceFault, json_text
from benchmark_service.schemas import (
    StreamChunk,
    StreamErrorChunk,
    StreamEvalResumeStateChunk,
    StreamMessageChunk,
    StreamResultChunk,
)

_DEPTH = 200
_CHUNK: TypeAdapter[StreamChunk] = TypeAdapter(StreamChunk)
_CHUNK_MODELS = (StreamMessageChunk, StreamErrorChunk, StreamResultChunk, StreamEvalResumeStateChunk)


class NotJson(ServiceFault):
    """A value that JSON cannot carry; the message names its place."""


def to_json(value: Any, what: str = "result") -> str:
    """Strict JSON of a value: plain data, pydantic models, dataclasses, dates, enums."""
    try:
        return json_text(value)
    except (TypeError, ValueError, RecursionError):
        pass
    return json_text(_plain(value, what, 0))


def chunk_frame(chunk: Any) -> str:
    """One chunk as the frame that carries it: exactly type and data, and what extras are set."""
    model = chunk
    if not isinstance(model, _CHUNK_MODELS):
        try:
            model = _CHUNK.validate_python(_fields(chunk) if isinstance(chunk, BaseModel) else chunk)
        except ValidationError as error:
            wrong = "; ".join(str(e["msg"]) for e in error.errors()[:3])
            raise ServiceFault(
                f"the service yielded {type(chunk).__name__}, which is not a stream chunk: {wrong}"
            ) from None
    kept = {
        name: value for name, value in _fields(model).items() if value is not None or name in ("type", "data")
    }
    return to_json(kept, f"{kept['type']} chunk")


def _fields(model: BaseModel) -> dict[str, Any]:
    """A model's fields as they are, extras included; what is inside them is encoded later."""
    own = {name: getattr(model, name) for name in type(model).model_fields}
    return {**own, **(model.model_extra or {})}


def _plain(value: Any, where: str, depth: int) -> Any:
    if depth > _DEPTH:
        raise NotJson(f"{where} is nested deeper than {_DEPTH} levels, or contains itself")
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotJson(f"{where} is {value}, which is not a JSON number")
        return value
    if isinstance(value, Mapping):
        return {_key(key, where): _plain(inner, f"{where}.{key}", depth + 1) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner, f"{where}[{at}]", depth + 1) for at, inner in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        raise NotJson(f"{where} is a {type(value).__name__}, which is not JSON; make it a list")
    return _plain(_converted(value, where), where, depth + 1)


def _key(key: Any, where: str) -> Any:
    if isinstance(key, str) or key is None or isinstance(key, (bool, int)):
        return key
    return str(_converted(key, f"a key of {where}"))


def _converted(value: Any, where: str) -> Any:
    try:
        if isinstance(value, BaseModel):
            return value.model_dump(mode="json", warnings=False)
        converted = to_jsonable_python(value)
    except (PydanticSerializationError, ValueError, TypeError):
        raise NotJson(f"{where} is a {type(value).__name__}, which is not JSON") from None
    return converted

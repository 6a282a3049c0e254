"""The interface of a wire format, and the types all wire formats share."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from benchmark_runner.models.endpoint import Endpoint

Json = dict[str, Any]
Message = Mapping[str, Any]
"""`{"role": "system" | "user" | "assistant", "content": …}`; content is text, or the API's own parts."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of an answer; cached ones are among the input's."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
        )


Usage = TokenUsage
"""The name `benchmark_runner.chat` has for it."""


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function that a model is offered; `schema` is the JSON Schema of its arguments."""

    name: str
    description: str
    schema: Json


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function that a model calls; arguments that are no JSON object are None."""

    id: str
    name: str
    arguments: Json | None


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's answer."""

    text: str
    finish_reason: str
    """`stop`, `length`, `tool_calls`, `refusal`, or the API's own word for anything else."""
    usage: TokenUsage = field(default_factory=TokenUsage)
    model: str | None = None
    """As the server calls it."""
    raw: Json = field(default_factory=dict, repr=False)
    """The whole answer in the API's own form, also where it came as a stream."""
    calls: tuple[FunctionCall, ...] = ()

    @property
    def message(self) -> Json:
        """Return it as it goes back into the conversation."""
        return {"role": "assistant", "content": self.text}


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What a model is asked, whatever the API."""

    messages: Sequence[Message]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """`max_tokens`, `temperature`, `top_p`, `top_k`, `reasoning_effort`, as far as they are given."""
    stream: bool = False
    tool: FunctionTool | None = None
    """The one function that is offered."""
    forced: bool = True
    """Ask for the tool in the API's own way, not only in words."""


class Dialect(Protocol):
    """One wire format: how a request is written and what an answer means."""

    def headers(self, key: str | None) -> Mapping[str, str]:
        """Return the headers that carry the key and the version."""
        ...

    def body(self, endpoint: Endpoint, request: ModelRequest) -> Json:
        """Return the request in the API's form."""
        ...

    def collector(self) -> StreamCollector:
        """Return what puts a streamed answer together."""
        ...

    def read(self, data: Json) -> Reply:
        """Return the reply in a whole answer. Raises UnreadableAnswerError and BrokenStreamError."""
        ...

    def follow_up(self, reply: Reply, text: str) -> list[Json]:
        """Return the reply and what follows it as messages: each call gets `text` as its result."""
        ...


class StreamCollector(Protocol):
    """An answer that comes event by event."""

    def add(self, event: Json) -> None:
        """Take the next event. Raises BrokenStreamError for one that tells of a failure."""
        ...

    def whole(self) -> Json | None:
        """Return the answer as if it had come at once; None while its end is missing."""
        ...


def whole_number(value: object) -> int:
    """Return a count of tokens; 0 for anything else."""
    if isinstance(value, int):
        return max(0, value)
    return max(0, int(value)) if isinstance(value, float) and math.isfinite(value) else 0


def bearer(key: str | None) -> Mapping[str, str]:
    """Return the header of a key as OpenAI's servers take it; none without a key."""
    return {"authorization": f"Bearer {key}"} if key else {}


def object_in(data: Any, key: str) -> Json:
    """Return the object at a key; an empty one for anything else."""
    found = data.get(key) if isinstance(data, dict) else None
    return found if isinstance(found, dict) else {}


def objects_in(data: Any, key: str) -> list[Json]:
    """Return the objects of the list at a key."""
    found = data.get(key) if isinstance(data, dict) else None
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def text_in(data: Json, key: str) -> str:
    """Return the text at a key; an empty one for anything else."""
    found = data.get(key)
    return found if isinstance(found, str) else ""


def arguments_in(text: object) -> Json | None:
    """Return the arguments of a call from their JSON text; None where that is no object."""
    try:
        found = json.loads(text or "{}")  # type: ignore[arg-type]  # servers send anything
    except (ValueError, TypeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None

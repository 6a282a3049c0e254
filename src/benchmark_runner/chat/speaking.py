"""What the APIs have in common: messages go out, a reply with its usage comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from benchmark_runner.chat.endpoint import Endpoint
    from benchmark_runner.llm import LLMConfig

Json = dict[str, Any]
Message = Mapping[str, Any]
"""`{"role": "system" | "user" | "assistant", "content": …}`; content is text, or the API's own parts."""


class UnreadableAnswerError(Exception):
    """A server answered with something that is not its API."""


class BrokenStreamError(Exception):
    """A stream told of a failure; the event's `error` object is what it said."""

    def __init__(self, error: Any) -> None:
        super().__init__("the stream told of an error")
        self.error = error


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of an answer; cached ones are among the input's."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's answer."""

    text: str
    finish_reason: str
    """`stop`, `length`, `tool_calls`, `refusal`, or the API's own word for anything else."""
    usage: Usage = field(default_factory=Usage)
    model: str | None = None
    """As the server calls it."""
    raw: Json = field(default_factory=dict, repr=False)
    """The whole answer in the API's own form, also where it came as a stream."""

    @property
    def message(self) -> Json:
        """As it goes back into the conversation."""
        return {"role": "assistant", "content": self.text}


class Api(Protocol):
    """One API: how it is asked and what its answers mean. Its readers raise UnreadableAnswerError."""

    name: str

    def headers(self, key: str | None) -> Mapping[str, str]:
        """Those that carry the key and the version."""
        ...

    def body(self, endpoint: Endpoint, messages: Sequence[Message], config: LLMConfig) -> Json:
        """A request."""
        ...

    def gathered(self) -> Gathering:
        """Puts a stream together."""
        ...

    def read(self, data: Json) -> Reply:
        """A whole answer."""
        ...


class Gathering(Protocol):
    """An answer that comes bit by bit."""

    def add(self, event: Json) -> None:
        """The next event. Raises BrokenStreamError for one that tells of a failure."""
        ...

    def whole(self) -> Json | None:
        """The answer as if it had come at once; None while its end is missing."""
        ...


def whole_number(value: object) -> int:
    """A count of tokens; 0 for what is none."""
    return max(0, value) if isinstance(value, int) else 0


def bearer(key: str | None) -> Mapping[str, str]:
    """The header of a key as OpenAI's servers take it; none where there is none."""
    return {"authorization": f"Bearer {key}"} if key else {}


def object_in(data: Any, key: str) -> Json:
    """The object at a key; an empty one for what is none."""
    found = data.get(key) if isinstance(data, dict) else None
    return found if isinstance(found, dict) else {}


def objects_in(data: Any, key: str) -> list[Json]:
    """The objects of the list at a key."""
    found = data.get(key) if isinstance(data, dict) else None
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def text_in(data: Json, key: str) -> str:
    """The text at a key; an empty one for what is none."""
    found = data.get(key)
    return found if isinstance(found, str) else ""

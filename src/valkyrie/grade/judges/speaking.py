"""What the APIs have in common for a judge: one tool offered, calls and tokens read back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from valkyrie.nouns import Json

if TYPE_CHECKING:
    from valkyrie.grade.judges.endpoint import Endpoint


RESPONSES = "/responses"
"""How the path of an address ends where OpenAI's Responses API is spoken."""


class UnreadableAnswerError(Exception):
    """An endpoint answered with something that is not its API."""


@dataclass(frozen=True, slots=True)
class Tool:
    """The one tool a judge is offered."""

    name: str
    description: str
    schema: Json


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool in an answer; arguments that are no object are None."""

    id: str
    name: str
    arguments: Json | None


@dataclass(frozen=True, slots=True)
class Tokens:
    """What answers used; cached ones are among the input's."""

    input: int = 0
    output: int = 0
    cached: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(self.input + other.input, self.output + other.output, self.cached + other.cached)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a model."""

    calls: Sequence[ToolCall]
    message: Json
    """As it goes back into the conversation."""
    tokens: Tokens = field(default_factory=Tokens)
    model: str | None = None


class Dialect(Protocol):
    """One API."""

    def headers(self, endpoint: Endpoint) -> Mapping[str, str]:
        """Those that carry the key and the version."""
        ...

    def body(
        self, endpoint: Endpoint, system: str, messages: Sequence[Json], tool: Tool, *, forced: bool
    ) -> Json:
        """A request; `forced` asks for the tool in the API's own way, not only in words."""
        ...

    def read(self, data: Json) -> Answer:
        """Its answer. Raises UnreadableAnswerError."""
        ...

    def reminder(self, answer: Answer, text: str) -> list[Json]:
        """The messages that answer an answer: every call gets a result, as all of them require."""
        ...


def whole(value: object) -> int:
    """A count of tokens; 0 for what is none."""
    return max(0, int(value)) if isinstance(value, int | float) and value == value else 0


def arguments_in(text: object) -> Json | None:
    """What a call is given, of the text that should be JSON; None where it is no object."""
    try:
        found = json.loads(text or "{}")  # type: ignore[arg-type]  # servers send anything
    except (ValueError, TypeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def with_key(endpoint: Endpoint) -> Mapping[str, str]:
    """The header of OpenAI's APIs that has the key."""
    return {"authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}


def dialect_of(endpoint: Endpoint) -> Dialect:
    """The API an endpoint speaks."""
    from valkyrie.grade.judges.chat_completions import ChatCompletions
    from valkyrie.grade.judges.messages import Messages
    from valkyrie.grade.judges.responses import Responses

    if endpoint.provider == "anthropic":
        return Messages()
    return Responses() if urlsplit(endpoint.url).path.endswith(RESPONSES) else ChatCompletions()

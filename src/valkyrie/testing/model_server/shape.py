"""What the four APIs have in common for the server: a request read, an answer to write."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from valkyrie.testing.model_server.script import Fault

Json = dict[str, Any]
_CHARACTERS_A_TOKEN = 4


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool a request offers."""

    name: str
    schema: Mapping[str, Any] = field(default_factory=dict)
    """Of its arguments."""
    custom: bool = False
    """It takes free text instead of an object."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to a model, whatever the API."""

    model: str
    stream: bool
    turn: int
    """How often the model has answered before in this conversation, as its history shows."""
    tools: Sequence[OfferedTool]
    history: Any
    """The messages; the same ones are the same request, tried again."""
    session: str | None = None
    """The program's own word for the conversation, where it sends one."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool the answer asks for."""

    id: str
    tool: OfferedTool
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens of one answer."""

    input: int = 0
    output: int = 0
    cached: int = 0


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """What the model says."""

    id: str
    model: str
    text: str
    use: ToolUse | None
    spent: Spent
    refused: bool = False


@dataclass(frozen=True, slots=True)
class ScriptedFailure:
    """An error in an API's own words."""

    status: int
    body: Json
    headers: Mapping[str, str] = field(default_factory=dict)


class Api(Protocol):
    """One API: how its requests are read and its answers written."""

    name: str

    def asked(self, path: str, body: Json, headers: Mapping[str, str]) -> Asked: ...

    def whole(self, answer: ScriptedAnswer) -> Json: ...

    def events(self, answer: ScriptedAnswer) -> Iterator[bytes]: ...

    def failure(self, fault: Fault) -> ScriptedFailure: ...


def rough_tokens(value: Any) -> int:
    """About how many tokens a text, or plain data, is."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return max(1, len(text) // _CHARACTERS_A_TOKEN)


def event(data: Json, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def pieces(text: str, size: int = 24) -> list[str]:
    """A text as it comes from a model: bit by bit."""
    return [text[at : at + size] for at in range(0, len(text), size)] or [""]


def turns_of(history: Sequence[Any], is_models: Callable[[Any], bool]) -> int:
    """Runs of entries the model made: one turn may be several entries."""
    before, turns = False, 0
    for entry in history:
        now = is_models(entry)
        turns += now and not before
        before = now
    return turns

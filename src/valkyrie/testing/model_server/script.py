"""What the model server answers: a script of turns for each conversation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from valkyrie.errors import UsageError
from valkyrie.suggest import did_you_mean

FaultKind = Literal[
    "refusal",
    "rate_limit",
    "context_overflow",
    "unauthorized",
    "unknown_model",
    "server_error",
    "overloaded",
    "cut",
]
FAULTS: tuple[str, ...] = get_args(FaultKind)


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a turn says it used; None is worked out from the texts' lengths."""

    input: int | None = None
    output: int | None = None
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Say:
    """The model answers with text, and is done with its turn."""

    text: str
    delay: float = 0.0
    """Seconds before it answers."""
    tokens: Tokens = field(default_factory=Tokens)


@dataclass(frozen=True, slots=True)
class Call:
    """The model asks for a tool by its name."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    delay: float = 0.0
    tokens: Tokens = field(default_factory=Tokens)


@dataclass(frozen=True, slots=True)
class Shell:
    """The model asks for a shell command, by whatever tool for that the request offers."""

    command: str
    text: str = ""
    delay: float = 0.0
    tokens: Tokens = field(default_factory=Tokens)


@dataclass(frozen=True, slots=True)
class Fault:
    """The server fails in the API's own way: so many times, or always."""

    kind: FaultKind
    times: int | None = None
    """Then the conversation goes on with the next turn; None is for ever."""
    retry_after: float | None = None
    """Seconds, for `rate_limit`."""
    message: str = ""
    delay: float = 0.0
    every: int | None = None
    """Instead of `times`: the first of every so many requests that come here fails, whoever sends them."""


Turn = Say | Call | Shell | Fault
LAST = Say("Done.")
"""What is answered when a script has come to its end."""


@dataclass(frozen=True, slots=True)
class Script:
    """The turns of conversations by name: a request's URL below `/c/NAME` chooses one, else `default`."""

    conversations: Mapping[str, Sequence[Turn]]
    by_text: Mapping[str, str] = field(default_factory=dict)
    """Text in a request without `/c/NAME` → its conversation; the first that is found counts."""

    @classmethod
    def of(cls, *turns: Turn, **named: Sequence[Turn]) -> Script:
        """The turns of the conversation without a name, and of named ones."""
        return cls({"default": turns, **named})

    @classmethod
    def from_json(cls, data: Any) -> Script:
        """`{"conversations": {NAME: [TURN, …]}, "by_text": {TEXT: NAME}}`, or a plain list of turns."""
        found = {"default": data} if isinstance(data, list) else data
        by_text: Mapping[str, str] = {}
        if (
            isinstance(found, dict)
            and "conversations" in found
            and set(found) <= {"conversations", "by_text"}
        ):
            found, by_text = found["conversations"], found.get("by_text") or {}
        if not isinstance(found, dict) or not all(isinstance(turns, list) for turns in found.values()):
            raise UsageError("a script is a list of turns, or lists of turns by the conversation's name.")
        return cls(
            {
                str(name): [_turn(turn, f"{name}[{at}]") for at, turn in enumerate(turns)]
                for name, turns in found.items()
            },
            dict(by_text),
        )

    @classmethod
    def from_file(cls, path: Path) -> Script:
        """Read a JSON file."""
        try:
            return cls.from_json(json.loads(path.read_text()))
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} is no script: {error}") from None


_KINDS: Mapping[str, tuple[type[Any], Mapping[str, str]]] = {
    "say": (Say, {"say": "text"}),
    "call": (Call, {"call": "tool", "arguments": "arguments", "text": "text"}),
    "shell": (Shell, {"shell": "command", "text": "text"}),
    "fault": (
        Fault,
        {
            "fault": "kind",
            "times": "times",
            "every": "every",
            "retry_after": "retry_after",
            "message": "message",
        },
    ),
}


def _turn(data: Any, where: str) -> Turn:
    kinds = [kind for kind in _KINDS if isinstance(data, dict) and kind in data]
    if len(kinds) != 1:
        raise UsageError(f"{where}: a turn is an object with one of {', '.join(_KINDS)}.")
    maker, names = _KINDS[kinds[0]]
    known = {**names, "delay": "delay", **({} if maker is Fault else {"tokens": "tokens"})}
    for key in data:
        if key not in known:
            raise UsageError(f"{where}: no field is called {key!r}.{did_you_mean(key, known)}")
    found = {known[key]: value for key, value in data.items()}
    if maker is Fault and found["kind"] not in FAULTS:
        hint = did_you_mean(str(found["kind"]), FAULTS) or f" Known: {', '.join(FAULTS)}."
        raise UsageError(f"{where}: no fault is called {found['kind']!r}.{hint}")
    if "tokens" in found:
        found["tokens"] = Tokens(**found["tokens"])
    turn: Turn = maker(**found)
    return turn

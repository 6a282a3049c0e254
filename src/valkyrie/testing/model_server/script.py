"""Scripts of turns for each conversation, and requests and answers in one form for all APIs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from valkyrie.errors import UsageError
from valkyrie.text import did_you_mean

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
class TokenCounts:
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
    tokens: TokenCounts = field(default_factory=TokenCounts)


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """The model asks for a tool by its name."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    delay: float = 0.0
    tokens: TokenCounts = field(default_factory=TokenCounts)


@dataclass(frozen=True, slots=True)
class Shell:
    """The model asks for a shell command, by whatever tool for that the request offers."""

    command: str
    text: str = ""
    delay: float = 0.0
    tokens: TokenCounts = field(default_factory=TokenCounts)


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


Turn = Say | ToolRequest | Shell | Fault
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
        try:
            return cls.from_json(json.loads(path.read_text()))
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} is no script: {error}") from None


_KINDS: Mapping[str, tuple[type[Any], Mapping[str, str]]] = {
    "say": (Say, {"say": "text"}),
    "call": (ToolRequest, {"call": "tool", "arguments": "arguments", "text": "text"}),
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
        found["tokens"] = TokenCounts(**found["tokens"])
    turn: Turn = maker(**found)
    return turn


# What the four APIs have in common for the server: a request read, an answer to write.


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
class ReceivedRequest:
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
class ScriptedUsage:
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
    spent: ScriptedUsage
    refused: bool = False


@dataclass(frozen=True, slots=True)
class ScriptedFailure:
    """An error in an API's own words."""

    status: int
    body: Json
    headers: Mapping[str, str] = field(default_factory=dict)


class ScriptedApi(Protocol):
    """One API: how its requests are read and its answers written."""

    name: str

    def asked(self, path: str, body: Json, headers: Mapping[str, str]) -> ReceivedRequest: ...

    def whole(self, answer: ScriptedAnswer) -> Json: ...

    def events(self, answer: ScriptedAnswer) -> Iterator[bytes]: ...

    def failure(self, fault: Fault) -> ScriptedFailure: ...


def rough_tokens(value: Any) -> int:
    """About how many tokens a text, or plain data, is."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return max(1, len(text) // _CHARACTERS_A_TOKEN)


def event(data: Json, name: str | None = None) -> bytes:
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


# Which of the tools a request offers runs a shell command, and how it wants to be called.


SHELLS = (
    "bash",
    "exec_command",
    "shell",
    "shell_command",
    "local_shell",
    "run_shell_command",
    "developer__shell",
    "execute_command",
    "run_command",
    "run_terminal_cmd",
    "terminal",
)
_COMMAND = ("command", "cmd", "script", "input", "code")
_EMPTY: Mapping[str, Any] = {"string": "run it", "integer": 1, "number": 1, "boolean": False, "array": []}


def shell_tool(tools: Sequence[OfferedTool]) -> OfferedTool | None:
    """The first known shell among the tools."""
    by_name = {tool.name.lower(): tool for tool in reversed(tools)}
    return next((by_name[name] for name in SHELLS if name in by_name), None)


def shell_arguments(tool: OfferedTool, command: str) -> dict[str, Any]:
    """The command in the tool's own words; what else it requires is filled in."""
    properties: Mapping[str, Any] = tool.schema.get("properties") or {}
    key = next((name for name in _COMMAND if name in properties), "command")
    schema = properties.get(key) or {}
    as_list = schema.get("type") == "array"
    found: dict[str, Any] = {key: ["bash", "-lc", command] if as_list else command}
    for name in tool.schema.get("required") or ():
        if name not in found:
            kind = str((properties.get(name) or {}).get("type", "string")).lower()
            found[name] = _EMPTY.get(kind, "run it")
    return found

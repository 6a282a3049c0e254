"""The tool calls of a transcript, and what can be asked of one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from valkyrie.grade.config import Config
from valkyrie.grade.js_regex import JsRegex
from valkyrie.nouns import Json
from valkyrie.suggest import did_you_mean
from valkyrie.trajectory.transcript import Transcript
from valkyrie.trajectory.turns import turn_starts

_COMMANDS = ("command", "cmd", "script")
_PATHS = ("path", "file_path", "filePath", "filename", "target_file", "notebook_path", "absolute_path")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_READS = "read view cat open grep rg glob ls list search find fetch show get"
_WRITES = (
    "write edit multiedit create delete remove move rename insert replace patch update append save change"
)
_KEYS = ("name", "command", "path", "args", "pattern", "turn", "parallel", "read_only", "write_only")


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call."""

    name: str
    arguments: Mapping[str, Any]
    turn: int
    """Which message of the user it came after, from 0."""
    parallel: bool
    """It was made together with another one."""

    @property
    def serialised(self) -> str:
        """Its arguments as JavaScript would write them."""
        return json.dumps(self.arguments, ensure_ascii=False, separators=(",", ":"), default=str)

    def argument(self, names: Sequence[str]) -> str | None:
        """The first of these arguments that is there, as text."""
        value = next((self.arguments[name] for name in names if self.arguments.get(name) is not None), None)
        return None if value is None else as_text(value)


def as_text(value: Any) -> str:
    """An argument as a pattern sees it; a command given as a list is its words."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return " ".join(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def calls_of(transcript: Transcript) -> list[Call]:
    """Every tool call, in order."""
    starts = turn_starts(transcript.events)
    together: list[list[int]] = [[]]
    found: list[Call] = []
    turn = 0
    for at, event in enumerate(transcript.events):
        while turn + 1 < len(starts) and at >= starts[turn + 1]:
            turn += 1
        if event.type == "tool_call":
            together[-1].append(len(found))
            found.append(Call(str(event.data.get("toolName", "")), _arguments(event.data), turn, False))
        elif event.type in ("tool_result", "assistant_message", "user_message", "turn_start", "turn_end"):
            together.append([])
    side_by_side = {number for group in together if len(group) > 1 for number in group}
    return [
        Call(call.name, call.arguments, call.turn, True) if number in side_by_side else call
        for number, call in enumerate(found)
    ]


def _arguments(data: Json) -> Mapping[str, Any]:
    arguments = data.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return {"value": arguments}
    if isinstance(arguments, Mapping):
        return arguments
    return {} if arguments is None else {"value": arguments}


@dataclass(frozen=True, slots=True)
class Wanted:
    """An entry of `required` or `disallowed`: what a call must be like to count."""

    shown: str
    name: JsRegex | None = None
    command: JsRegex | None = None
    path: JsRegex | None = None
    pattern: JsRegex | None = None
    args: tuple[tuple[str, JsRegex], ...] = ()
    turn: int | None = None
    parallel: bool | None = None
    writes: bool | None = None
    """Only tools that write (True), or only tools that read (False), going by the words of their names."""

    def fits(self, call: Call) -> bool:
        """Whether this call is one of them."""
        if self.turn is not None and call.turn != self.turn:
            return False
        if self.parallel is not None and call.parallel != self.parallel:
            return False
        if self.writes is not None and not (writes(call.name) if self.writes else reads(call.name)):
            return False
        if self.name is not None and not self.name.search(call.name):
            return False
        asked = [(self.command, call.argument(_COMMANDS)), (self.path, call.argument(_PATHS))]
        asked += [(regex, call.argument([key])) for key, regex in self.args]
        if any(regex and (text is None or not regex.search(text)) for regex, text in asked):
            return False
        return self.pattern is None or self.pattern.search(call.serialised) is not None


def wanted_entries(config: Config, key: str) -> tuple[Wanted, ...]:
    """The entries under `required` or `disallowed`: a name's regex, or a map."""
    listed = config.value(key, default=[])
    entries = listed if isinstance(listed, list | tuple) else [listed]
    return tuple(_entry(config, key, one) for one in entries)


def _entry(config: Config, key: str, entry: Any) -> Wanted:
    if isinstance(entry, str) and entry:
        return Wanted(entry, name=config.regex(entry))
    if not isinstance(entry, Mapping) or not entry:
        raise config.wrong(
            f"`{key}` has {entry!r}; an entry is a tool's name or a map with {', '.join(_KEYS)}."
        )
    unknown = [str(name) for name in entry if name not in _KEYS]
    if unknown:
        raise config.wrong(f"`{key}` has an entry with `{unknown[0]}`.{did_you_mean(unknown[0], _KEYS)}")
    for name in ("name", "command", "path", "pattern"):
        if entry.get(name) is not None and not isinstance(entry[name], str):
            raise config.wrong(f"`{key}`: `{name}` of an entry is a regex, not {entry[name]!r}.")
    made = {
        name: config.regex(entry[name]) for name in ("name", "command", "path", "pattern") if entry.get(name)
    }
    return Wanted(
        shown=", ".join(f"{name}={as_text(value)}" for name, value in entry.items()),
        args=_argument_patterns(config, key, entry.get("args")),
        turn=_turn(config, key, entry.get("turn")),
        parallel=_switch(config, key, entry, "parallel"),
        writes=_writes(config, key, entry),
        **made,
    )


def _argument_patterns(config: Config, key: str, args: Any) -> tuple[tuple[str, JsRegex], ...]:
    if args is None:
        return ()
    if not isinstance(args, Mapping):
        raise config.wrong(f"`{key}`: `args` of an entry maps arguments to regexes, not {args!r}.")
    return tuple((str(name), config.regex(as_text(pattern))) for name, pattern in args.items())


def _turn(config: Config, key: str, turn: Any) -> int | None:
    if turn is not None and (isinstance(turn, bool) or not isinstance(turn, int) or turn < 0):
        raise config.wrong(f"`{key}`: `turn` of an entry is a whole number from 0, not {turn!r}.")
    return turn


def _switch(config: Config, key: str, entry: Mapping[str, Any], name: str) -> bool | None:
    value = entry.get(name)
    if value is not None and not isinstance(value, bool):
        raise config.wrong(f"`{key}`: `{name}` of an entry is true or false, not {value!r}.")
    return value


def _writes(config: Config, key: str, entry: Mapping[str, Any]) -> bool | None:
    reading, writing = (_switch(config, key, entry, name) for name in ("read_only", "write_only"))
    if reading and writing:
        raise config.wrong(f"`{key}`: an entry is `read_only` or `write_only`, not both.")
    return False if reading else True if writing else None


def writes(tool: str) -> bool:
    """Whether a tool of this name changes things."""
    return not _words(tool).isdisjoint(_WRITES.split())


def reads(tool: str) -> bool:
    """Whether a tool of this name looks at things, and changes none."""
    return not writes(tool) and not _words(tool).isdisjoint(_READS.split())


def _words(tool: str) -> set[str]:
    return {word.lower() for word in _WORDS.findall(tool)}

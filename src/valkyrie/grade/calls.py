"""The tool calls and steps of a transcript, and what can be asked of a call."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from valkyrie.grade.base import Config
from valkyrie.grade.js_regex import JsRegex
from valkyrie.trajectory.transcript import Event, Transcript, turn_starts

_COMMANDS = ("command", "cmd", "script")
_PATHS = ("path", "file_path", "filePath", "filename", "target_file", "notebook_path", "absolute_path")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_READS = "read view cat open grep rg glob ls list search find fetch show get"
_WRITES = (
    "write edit multiedit create delete remove move rename insert replace patch update append save change"
)
_ENDS_STEP = frozenset({"user_message", "system", "error", "turn_start", "turn_end", "tool_result"})
_NAMED_BY = ("toolCallId", "toolName")
_REGEXES = ("name", "command", "path", "pattern", "result")
_ANYWHERE = ("name", "command", "path", "args", "pattern", "turn", "parallel", "read_only", "write_only")
ENTRY_KEYS: Mapping[str, tuple[str, ...]] = {
    "required": (*_ANYWHERE, "result", "min_count", "final", "at_step", "before_step"),
    "disallowed": (*_ANYWHERE, "result"),
    "sequence": _ANYWHERE,
    "parallel": (*_ANYWHERE, "result"),
}
"""What an entry of each list may say."""


@dataclass(frozen=True, slots=True)
class TranscriptCall:
    """One tool call."""

    name: str
    arguments: Any
    """Any JSON; an object mostly."""
    turn: int = 0
    """Which message of the user it came after, from 0."""
    step: int = 0
    """Which answer of the model it was made in, from 0; calls of one answer are a batch."""
    parallel: bool = False
    """It was made together with another one."""
    completed: bool = True
    """Its result is known, or the transcript has no results at all."""
    result: str | None = None
    final: bool = False
    """It is the last one of the trajectory."""

    @property
    def serialised(self) -> str:
        """Its arguments as JavaScript would write them."""
        return json.dumps(self.arguments, ensure_ascii=False, separators=(",", ":"), default=str)

    def argument(self, names: Sequence[str]) -> str | None:
        """The first of these arguments that is there, as text."""
        if not isinstance(self.arguments, Mapping):
            return None
        value = next((self.arguments[name] for name in names if self.arguments.get(name) is not None), None)
        return None if value is None else as_text(value)

    def text_argument(self, name: str) -> str | None:
        value = self.arguments.get(name) if isinstance(self.arguments, Mapping) else None
        return value if isinstance(value, str) else None


def as_text(value: Any) -> str:
    """An argument as a pattern sees it; a command given as a list is its words."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return " ".join(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def calls_of(transcript: Transcript) -> list[TranscriptCall]:
    events = transcript.events
    starts, steps, results = turn_starts(events), step_numbers(events), _results(events)
    made = [at for at, event in enumerate(events) if event.type == "tool_call"]
    batches = Counter(steps[at] for at in made)
    found: list[TranscriptCall] = []
    turn = 0
    for at in made:
        while turn + 1 < len(starts) and at >= starts[turn + 1]:
            turn += 1
        data, step = events[at].data, steps[at] or 0
        found.append(
            TranscriptCall(
                name=str(data.get("toolName", "")),
                arguments=_arguments(data.get("arguments")),
                turn=turn,
                step=step,
                parallel=batches[step] > 1,
                completed=not results or at in results,
                result=results.get(at),
                final=at == made[-1],
            )
        )
    return found


def steps_of(transcript: Transcript) -> list[list[str]]:
    """The agent's steps, each as the names of the tools it called."""
    numbers = step_numbers(transcript.events)
    found: dict[int, list[str]] = {}
    for event, number in zip(transcript.events, numbers, strict=True):
        if number is not None:
            names = found.setdefault(number, [])
            if event.type == "tool_call":
                names.append(str(event.data.get("toolName", "")))
    return list(found.values())


def step_numbers(events: Sequence[Event]) -> list[int | None]:
    """Of each event, the answer of the model it belongs to, from 0; None for what is not the model's.

    An answer is thoughts, then words, then calls; a result, a message or new words after them end it. Where
    `turnId` numbers the answers of the model, calls of one number are one answer whatever is between them.
    """
    numbered = _numbers_answers(events)
    found: list[int | None] = []
    number, last, is_open, spoke = -1, None, False, False
    for event in events:
        own: int | None = None
        if event.type in ("reasoning", "assistant_message", "tool_call"):
            turn = event.data.get("turnId") if numbered else None
            words = event.type != "tool_call"
            goes_on = is_open and not (words and spoke)
            if not goes_on and (turn is None or turn != last):
                number += 1
                spoke = False
            is_open, last = True, turn
            spoke = spoke or event.type != "reasoning"
            own = number
        elif event.type in _ENDS_STEP:
            is_open = False
        elif event.type == "token_usage" and is_open:
            spoke, is_open = True, False
        found.append(own)
    return found


def _numbers_answers(events: Sequence[Event]) -> bool:
    """Return whether turns are those of the model: there are more of them than messages of the user."""
    starts = sum(1 for event in events if event.type == "turn_start")
    return starts > sum(1 for event in events if event.type == "user_message")


def _results(events: Sequence[Event]) -> dict[int, str]:
    """Return what calls returned, by where the call stands; by its id, else the oldest open call of that
    tool."""
    waiting: defaultdict[tuple[str, str], deque[int]] = defaultdict(deque)
    found: dict[int, str] = {}
    for at, event in enumerate(events):
        names = [(key, str(said)) for key in _NAMED_BY if (said := event.data.get(key))]
        if event.type == "tool_call":
            for name in names:
                waiting[name].append(at)
        elif event.type == "tool_result":
            for name in names:
                while waiting[name] and waiting[name][0] in found:
                    waiting[name].popleft()
                if waiting[name]:
                    found[waiting[name].popleft()] = as_text(event.data.get("result") or "")
                    break
    return found


def _arguments(arguments: Any) -> Any:
    if isinstance(arguments, str):
        try:
            return json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
    return {} if arguments is None else arguments


@dataclass(frozen=True, slots=True)
class CallPattern:
    """An entry of a list: what a call must be like to count."""

    shown: str
    name: JsRegex | None = None
    command: JsRegex | None = None
    path: JsRegex | None = None
    pattern: JsRegex | None = None
    result: JsRegex | None = None
    args: tuple[tuple[str, JsRegex], ...] = ()
    turn: int | None = None
    parallel: bool | None = None
    writes: bool | None = None
    """Only tools that write (True), or only tools that read (False), going by the words of their names."""
    min_count: int = 1
    final: bool = False
    at_step: int | None = None
    before_step: int | None = None

    def fits(self, call: TranscriptCall) -> bool:
        """Return whether this call is one of them."""
        return self._is_placed(call) and self._is_named(call) and self._says(call)

    def _is_placed(self, call: TranscriptCall) -> bool:
        if self.turn is not None and call.turn != self.turn:
            return False
        if self.parallel is not None and call.parallel != self.parallel:
            return False
        if self.final and not call.final:
            return False
        if self.at_step is not None and call.step != self.at_step:
            return False
        return self.before_step is None or call.step < self.before_step

    def _is_named(self, call: TranscriptCall) -> bool:
        if self.writes is not None and not (writes(call.name) if self.writes else reads(call.name)):
            return False
        return self.name is None or self.name.search(call.name) is not None

    def _says(self, call: TranscriptCall) -> bool:
        asked = [(self.command, call.argument(_COMMANDS)), (self.path, call.argument(_PATHS))]
        asked += [(regex, call.text_argument(key)) for key, regex in self.args]
        asked.append((self.result, call.result))
        if any(regex and (text is None or not regex.search(text)) for regex, text in asked):
            return False
        return self.pattern is None or self.pattern.search(call.serialised) is not None


def wanted_entries(config: Config, key: str) -> tuple[CallPattern, ...]:
    """The entries of a list: a name's regex, or a map."""
    listed = config.value(key, default=[])
    entries = listed if isinstance(listed, list | tuple) else [listed]
    return tuple(_entry(config, key, one) for one in entries)


def _entry(config: Config, key: str, entry: Any) -> CallPattern:
    if isinstance(entry, str) and entry:
        return CallPattern(entry, name=config.regex(entry))
    known = ENTRY_KEYS[key]
    if not isinstance(entry, Mapping) or not entry:
        raise config.wrong(
            f"`{key}` has {entry!r}; an entry is a tool's name or a map with {', '.join(known)}."
        )
    config.refuse_others(f"an entry of `{key}`", entry, known)
    for name in _REGEXES:
        if entry.get(name) is not None and not isinstance(entry[name], str):
            raise config.wrong(f"`{key}`: `{name}` of an entry is a regex, not {entry[name]!r}.")
    made = {name: config.regex(entry[name]) for name in _REGEXES if entry.get(name)}
    least = _whole(config, key, entry, "min_count", low=1)
    return CallPattern(
        shown=", ".join(f"{name}={as_text(value)}" for name, value in entry.items()),
        args=_argument_patterns(config, key, entry.get("args")),
        turn=_whole(config, key, entry, "turn"),
        parallel=_switch(config, key, entry, "parallel"),
        writes=_writes(config, key, entry),
        min_count=1 if least is None else least,
        final=bool(_switch(config, key, entry, "final")),
        at_step=_whole(config, key, entry, "at_step"),
        before_step=_whole(config, key, entry, "before_step", low=1),
        **made,
    )


def _argument_patterns(config: Config, key: str, args: Any) -> tuple[tuple[str, JsRegex], ...]:
    if args is None:
        return ()
    if not isinstance(args, Mapping):
        raise config.wrong(f"`{key}`: `args` of an entry maps arguments to regexes, not {args!r}.")
    return tuple((str(name), config.regex(as_text(pattern))) for name, pattern in args.items())


def _whole(config: Config, key: str, entry: Mapping[str, Any], name: str, *, low: int = 0) -> int | None:
    value = entry.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise config.wrong(f"`{key}`: `{name}` of an entry is a whole number from {low}, not {value!r}.")
    return value


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
    """Return whether a tool of this name changes things."""
    return not _words(tool).isdisjoint(_WRITES.split())


def reads(tool: str) -> bool:
    """Return whether a tool of this name looks at things, and changes none."""
    return not writes(tool) and not _words(tool).isdisjoint(_READS.split())


def _words(tool: str) -> set[str]:
    return {word.lower() for word in _WORDS.findall(tool)}

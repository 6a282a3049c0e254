"""Graders of what the agent said, how it ended, and what the trial's events say."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from valkyrie.grade.base import (
    BuiltIn,
    Config,
    UnreadableError,
    clipped,
    read_text,
    sought_by,
    wanted_by,
    workspace_of,
)
from valkyrie.grade.calls import as_text
from valkyrie.grade.protocol import GraderInput, GraderResult, Need
from valkyrie.specs.globs import WorkspaceGlob
from valkyrie.trajectory.transcript import Event


class OutputGrader(BuiltIn):
    """`output-contains`, `output-matches` and their `-not-` forms."""

    def read(self, config: Config) -> None:
        self.sought = sought_by(config, self.spec.type)
        self.wanted = wanted_by(config, self.spec.type)
        self.absence_only = not self.wanted

    async def look(self, given: GraderInput) -> GraderResult:
        output = given.transcript.output
        place = self.sought.where(output)
        if place is not None:
            return self.found(self.wanted, f"the output has {self.sought.name}: {place}")
        shown = f"it is: {clipped(output, 200)}" if output else "it is empty"
        return self.found(not self.wanted, f"the output does not have {self.sought.name}; {shown}")


class TranscriptGrader(BuiltIn):
    """`transcript-contains`, `transcript-matches` and their `-not-` forms."""

    def read(self, config: Config) -> None:
        self.sought = sought_by(config, self.spec.type)
        self.wanted = wanted_by(config, self.spec.type)
        self.absence_only = not self.wanted

    async def look(self, given: GraderInput) -> GraderResult:
        messages = [
            text for event in given.transcript.of_type("assistant_message") if (text := spoken(event))
        ]
        if not messages:
            return self.failed("there are no messages of the assistant")
        for number, message in enumerate(messages, 1):
            if (place := self.sought.where(message)) is not None:
                return self.found(self.wanted, f"message {number} has {self.sought.name}: {place}")
        return self.found(not self.wanted, f"none of the {len(messages)} messages has {self.sought.name}")


def spoken(event: Event) -> str:
    """Return what a message says; foreign records have it in parts, some of which are no text."""
    content = event.data.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return "\n".join(text for text in texts if isinstance(text, str))


# Whether the agent came to an end worth the name.


class CompletedGrader(BuiltIn):
    """`completed`: an output, no error, and at least one turn that ended."""

    type = "completed"

    async def look(self, given: GraderInput) -> GraderResult:
        transcript = given.transcript
        if not transcript.output.strip():
            return self.failed("the output is empty")
        error = next(transcript.of_type("error"), None)
        if error is not None:
            return self.failed(f"an error occurred: {error.data.get('message', '(no message)')}")
        if next(transcript.of_type("turn_end"), None) is None:
            return self.failed("no turn came to its end")
        return self.found(True, "there is an output, no error, and a turn that ended")


class ExitSuccessGrader(BuiltIn):
    """`exit-success`: an output."""

    type = "exit-success"

    async def look(self, given: GraderInput) -> GraderResult:
        said = bool(given.transcript.output.strip())
        return self.found(said, "there is an output" if said else "the output is empty")


# Other things a trial says of itself: the system's events, metrics in a file, tools' output passed on.

METRICS = "custom_metrics.json"
_MOST_METRICS = 1 << 20
_ASSERTION = ("metric", "equals", "min", "max")


class SystemEventGrader(BuiltIn):
    """`system-event`: which events of the system there are, by the exact name in their `eventType`."""

    type = "system-event"

    def read(self, config: Config) -> None:
        self.required, self.disallowed = config.texts("required"), config.texts("disallowed")
        self.absence_only = not self.required
        if not self.required and not self.disallowed:
            raise config.wrong("`required` or `disallowed` must name at least one event.")
        if both := sorted(set(self.required) & set(self.disallowed)):
            raise config.wrong(f"{', '.join(both)} is both required and disallowed.")

    async def look(self, given: GraderInput) -> GraderResult:
        names = [event.data.get("eventType") for event in given.transcript.of_type("system")]
        seen = list(dict.fromkeys(name for name in names if isinstance(name, str)))
        missing = [name for name in self.required if name not in seen]
        wrong = [name for name in seen if name in self.disallowed]
        problems = [f"required but not seen: {', '.join(missing)}"] if missing else []
        problems += [f"seen but disallowed: {', '.join(wrong)}"] if wrong else []
        shown = clipped(", ".join(seen), 300) or "none"
        return self.found(not problems, "; ".join([*problems, f"system events: {shown}"]))


@dataclass(frozen=True, slots=True)
class Assertion:
    """What one metric must be."""

    metric: str
    equals: Any = None
    low: float = -math.inf
    high: float = math.inf

    def problem(self, values: Mapping[str, Any]) -> str | None:
        """Return why it does not hold; None where it does."""
        if self.metric not in values:
            return f"{self.metric} is not there"
        value = values[self.metric]
        shown = f"{self.metric} is {clipped(json.dumps(value, ensure_ascii=False, default=str), 100)}"
        if self.equals is not None:
            return None if _same(value, self.equals) else f"{shown}, not {json.dumps(self.equals)}"
        if not _is_number(value):
            return f"{shown}, no number"
        if self.low <= value <= self.high:
            return None
        return f"{shown}, less than {self.low:g}" if value < self.low else f"{shown}, more than {self.high:g}"


class CustomMetricsGrader(BuiltIn):
    """`custom-metrics`: what a file of the trial says of named metrics."""

    type = "custom-metrics"
    needs = frozenset({Need.WORKSPACE})

    def read(self, config: Config) -> None:
        self.path = config.text("path", default=METRICS)
        parts = PurePosixPath(self.path)
        if parts.is_absolute() or ".." in parts.parts:
            raise config.wrong(f"`path` is {self.path!r}; it must be relative, without `..`.")
        listed = config.value("assertions")
        if not isinstance(listed, list) or not listed:
            raise config.wrong("`assertions` must list at least one {metric, equals | min | max}.")
        self.assertions = [_assertion(config, entry) for entry in listed]

    async def look(self, given: GraderInput) -> GraderResult:
        workspace = workspace_of(given.workspace)
        found = next(iter(WorkspaceGlob(_literal(self.path)).find(workspace, given.unseen)), None)
        if found is None:
            return self.failed(f"there is no {self.path}")
        try:
            values = _values(json.loads(read_text(found, most=_MOST_METRICS)))
        except UnreadableError as error:
            return self.failed(f"{self.path}: {error}")
        except (ValueError, RecursionError):
            return self.failed(f"{self.path} is not JSON")
        if values is None:
            return self.failed(f"{self.path} is no JSON object")
        problems = [why for one in self.assertions if (why := one.problem(values))]
        return self.found(not problems, "; ".join(problems) or f"{len(self.assertions)} metrics are as asked")


class PassedOnGrader(BuiltIn):
    """`assistant-contains-tool-output`: what `pattern` finds in a tool's result stands in a later message."""

    type = "assistant-contains-tool-output"

    def read(self, config: Config) -> None:
        self.tools = config.tool_patterns("tools", required=True)
        self.pattern = config.pattern("pattern")

    async def look(self, given: GraderInput) -> GraderResult:
        names = {
            event.data.get("toolCallId"): str(event.data.get("toolName", ""))
            for event in given.transcript.of_type("tool_call")
        }
        values: dict[str, None] = {}
        for event in given.transcript.of_type("tool_result", "assistant_message"):
            if event.type == "tool_result":
                name = str(event.data.get("toolName") or names.get(event.data.get("toolCallId"), ""))
                if any(tool.search(name) for tool in self.tools):
                    found = self.pattern.captured(as_text(event.data.get("result") or ""))
                    values.update(dict.fromkeys(value for value in found if value.strip()))
                continue
            message = as_text(event.data.get("content") or "")
            if passed_on := next((value for value in values if value in message), None):
                return self.found(True, f"a message has what a tool returned: {clipped(passed_on, 200)}")
        if not values:
            return self.failed(f"/{self.pattern.source}/ found nothing in what tools returned")
        shown = clipped(", ".join(values), 300)
        return self.failed(f"no later message has what tools returned: {shown}")


def _assertion(config: Config, entry: Any) -> Assertion:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("metric"), str) or not entry["metric"]:
        raise config.wrong(f"`assertions` has {entry!r}; an entry is {{metric, equals | min | max}}.")
    config.refuse_others("an entry of `assertions`", entry, _ASSERTION)
    metric, equals = entry["metric"], entry.get("equals")
    bounds = {key: entry[key] for key in ("min", "max") if entry.get(key) is not None}
    if (equals is None) == (not bounds):
        raise config.wrong(f"metric {metric!r} needs `equals`, or `min` and/or `max`.")
    if equals is not None and not (isinstance(equals, str | bool) or _is_number(equals)):
        raise config.wrong(f"metric {metric!r}: `equals` is a number, a text, true or false, not {equals!r}.")
    if not all(_is_number(bound) for bound in bounds.values()):
        raise config.wrong(f"metric {metric!r}: `min` and `max` are numbers.")
    low, high = bounds.get("min", -math.inf), bounds.get("max", math.inf)
    if low > high:
        raise config.wrong(f"metric {metric!r}: `min` is more than `max`, so nothing passes.")
    return Assertion(metric, equals, float(low), float(high))


def _values(data: Any) -> Mapping[str, Any] | None:
    """The object of a file, or its `values`."""
    if isinstance(data, Mapping) and isinstance(data.get("values"), Mapping):
        data = data["values"]
    return data if isinstance(data, Mapping) else None


def _literal(path: str) -> str:
    """A glob that matches this very path."""
    return "".join(f"[{char}]" if char in "*?[{" else char for char in path)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _same(value: Any, wanted: Any) -> bool:
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    return type(value) in (int, float, str) and value == wanted


# A comparison of two results, which one result alone cannot have.


class PairwiseGrader(BuiltIn):
    """`pairwise`: says nothing about one trial, so it is skipped and does not count."""

    type = "pairwise"

    def read(self, config: Config) -> None:
        config.known.update(("prompt", "model", "threshold"))

    async def look(self, given: GraderInput) -> GraderResult:
        del given
        return GraderResult(
            name=self.spec.label,
            type=self.type,
            passed=True,
            score=1.0,
            kind="llm",
            status="skipped",
            evidence="skipped: pairwise compares two results; `valkyrie compare` of two result folders does",
        )

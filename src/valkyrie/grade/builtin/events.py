"""Other events of a transcript: the system's, metrics an agent reports, tool output that was passed on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from valkyrie.grade.base import BuiltIn, clipped
from valkyrie.grade.calls import as_text
from valkyrie.grade.config import Config
from valkyrie.grade.protocol import Given, GraderResult
from valkyrie.trajectory.transcript import Event, Transcript


class SystemEventGrader(BuiltIn):
    """`system-event`: from `min` to `max` events of the system, of those that fit `pattern`."""

    type = "system-event"

    def read(self, config: Config) -> None:
        self.patterns = config.pattern_list("pattern")
        self.negate = config.flag("negate")
        self.least = config.number("min", default=1.0)
        self.most = config.number("max", default=math.inf)

    async def look(self, given: Given) -> GraderResult:
        events = [_serialised(event) for event in given.transcript.of_type("system")]
        fitting = [text for text in events if all(pattern.search(text) for pattern in self.patterns)]
        inside = self.least <= len(fitting) <= self.most
        shown = f": {clipped(fitting[0], 200)}" if fitting else ""
        return self.found(inside != self.negate, f"{len(fitting)} of {len(events)} system events fit{shown}")


class CustomMetricsGrader(BuiltIn):
    """`custom-metrics`: numbers the agent reported in `custom` events, each within `min` and `max`."""

    type = "custom-metrics"

    def read(self, config: Config) -> None:
        self.bounds: dict[str, tuple[float, float]] = {}
        metrics = dict(config.mapping("metrics"))
        if config.has("metric"):
            metrics[config.text("metric")] = {key: config.value(key) for key in ("min", "max")}
        config.known.update(("metric", "min", "max"))
        for name, bounds in metrics.items():
            self.bounds[str(name)] = _bounds(config, str(name), bounds)
        if not self.bounds:
            raise config.wrong("`metrics` must map at least one metric to `min` and/or `max`.")

    async def look(self, given: Given) -> GraderResult:
        values = dict(_custom_values(given.transcript))
        told = []
        passed = True
        for name, (low, high) in self.bounds.items():
            value = values.get(name)
            passed &= value is not None and low <= value <= high
            told.append(
                f"{name} {'was not reported' if value is None else f'= {value:g}'} ({_span(low, high)})"
            )
        return self.found(passed, "; ".join(told))


class PassedOnGrader(BuiltIn):
    """`assistant-contains-tool-output`: a line of a tool's result stands in a later message."""

    type = "assistant-contains-tool-output"

    def read(self, config: Config) -> None:
        self.tools = config.pattern_list("tools", "tool")
        self.shortest = config.whole("min_length", low=1, high=100_000, default=8)
        self.case_sensitive = config.flag("case_sensitive")
        self.negate = config.flag("negate")

    async def look(self, given: Given) -> GraderResult:
        lines: dict[str, str] = {}
        for event in given.transcript.of_type("tool_result", "assistant_message"):
            if event.type == "tool_result":
                lines.update(self._lines(event))
                continue
            message = self._folded(as_text(event.data.get("content") or ""))
            if found := next((shown for line, shown in lines.items() if line in message), None):
                return self.found(not self.negate, f"a message has a tool's output: {clipped(found, 200)}")
        return self.found(self.negate, f"no message has any of {len(lines)} lines of tools' output")

    def _lines(self, event: Event) -> Iterator[tuple[str, str]]:
        name = str(event.data.get("toolName", ""))
        if self.tools and not any(tool.search(name) for tool in self.tools):
            return
        for line in as_text(event.data.get("result") or "").splitlines():
            if len(line.strip()) >= self.shortest:
                yield self._folded(line.strip()), line.strip()

    def _folded(self, text: str) -> str:
        return text if self.case_sensitive else text.lower()


def _serialised(event: Event) -> str:
    return json.dumps(event.data, ensure_ascii=False, separators=(",", ":"), default=str)


def _bounds(config: Config, name: str, bounds: Any) -> tuple[float, float]:
    low, high = -math.inf, math.inf
    if isinstance(bounds, Mapping) and set(bounds) <= {"min", "max"}:
        low = low if bounds.get("min") is None else bounds["min"]
        high = high if bounds.get("max") is None else bounds["max"]
    numbers = all(isinstance(bound, int | float) and not isinstance(bound, bool) for bound in (low, high))
    if not numbers or math.isnan(low) or math.isnan(high) or (low, high) == (-math.inf, math.inf):
        raise config.wrong(f"metric {name!r} has {bounds!r}; give it `min` and/or `max`, both numbers.")
    return float(low), float(high)


def _custom_values(transcript: Transcript) -> Iterator[tuple[str, float]]:
    """Reported numbers; a later report of the same metric wins."""
    for event in transcript.of_type("custom"):
        data = event.data
        pairs = data["metrics"].items() if isinstance(data.get("metrics"), Mapping) else []
        for name, value in [*pairs, (data.get("name", data.get("metric")), data.get("value"))]:
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                yield str(name), float(value)


def _span(low: float, high: float) -> str:
    parts = [f"at least {low:g}"] if low > -math.inf else []
    return ", ".join([*parts, f"at most {high:g}"] if high < math.inf else parts)

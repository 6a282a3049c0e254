"""Which tools were called, and with what."""

from __future__ import annotations

from collections.abc import Sequence

from valkyrie.grade.base import BuiltIn, clipped
from valkyrie.grade.calls import Call, Wanted, calls_of, wanted_entries
from valkyrie.grade.config import Config
from valkyrie.grade.protocol import Given, GraderResult


class ToolCallsGrader(BuiltIn):
    """`tool-calls`: every required entry fits a call, no call fits a disallowed one."""

    type = "tool-calls"

    def read(self, config: Config) -> None:
        self.required = wanted_entries(config, "required")
        self.disallowed = wanted_entries(config, "disallowed")
        self.ordered = config.flag("ordered")
        if not self.required and not self.disallowed:
            raise config.wrong("`required` or `disallowed` must have at least one entry.")

    async def look(self, given: Given) -> GraderResult:
        calls = calls_of(given.transcript)
        problems = self._out_of_order(calls) if self.ordered else self._missing(calls)
        for entry in self.disallowed:
            if wrong := next((call for call in calls if entry.fits(call)), None):
                problems.append(f"disallowed ({entry.shown}): {wrong.name} {clipped(wrong.serialised, 200)}")
        names = clipped(", ".join(call.name for call in calls), 300) or "none"
        return self.found(not problems, "; ".join([*problems, f"calls: {names}"]))

    def _missing(self, calls: Sequence[Call]) -> list[str]:
        return [
            f"required but never called: {entry.shown}"
            for entry in self.required
            if not any(entry.fits(call) for call in calls)
        ]

    def _out_of_order(self, calls: Sequence[Call]) -> list[str]:
        """Each required entry fits a later call than the one before it."""
        at = 0
        done: list[Wanted] = []
        for entry in self.required:
            at = next((number + 1 for number in range(at, len(calls)) if entry.fits(calls[number])), -1)
            if at < 0:
                after = f" after {done[-1].shown}" if done else ""
                return [f"required in this order, but not called{after}: {entry.shown}"]
            done.append(entry)
        return []

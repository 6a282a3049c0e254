"""How much was used, against a bound."""

from __future__ import annotations

from collections.abc import Callable

from valkyrie.grade.base import BuiltIn
from valkyrie.grade.calls import calls_of
from valkyrie.grade.config import Config
from valkyrie.grade.protocol import Given, GraderResult
from valkyrie.trajectory.transcript import Transcript


def _tokens(transcript: Transcript) -> float:
    used = transcript.measures
    return used.total_tokens or used.input_tokens + used.output_tokens


def _steps(transcript: Transcript) -> float:
    """Everything the agent did: each message and each tool call."""
    return sum(1 for _ in transcript.of_type("assistant_message", "tool_call"))


_COUNTED: dict[str, tuple[str, Callable[[Transcript], float]]] = {
    "token-budget": ("tokens", _tokens),
    "turn-count": ("turns", lambda transcript: transcript.measures.turn_count),
    "error-count": ("errors", lambda transcript: transcript.measures.error_count),
    "step-count": ("steps", _steps),
}


class BudgetGrader(BuiltIn):
    """`token-budget`, `turn-count`, `error-count`, `step-count`: at most `max`."""

    def read(self, config: Config) -> None:
        self.most = config.number("max")
        self.unit, self.count = _COUNTED[self.spec.type]

    async def look(self, given: Given) -> GraderResult:
        used = self.count(given.transcript)
        return self.found(used <= self.most, f"{used:g} {self.unit}, at most {self.most:g}")


class ToolCallCountGrader(BuiltIn):
    """`tool-call-count`: at most `max` calls, of any tool or of those whose name fits one of `tools`."""

    type = "tool-call-count"

    def read(self, config: Config) -> None:
        self.most = config.number("max")
        self.tools = config.pattern_list("tools")

    async def look(self, given: Given) -> GraderResult:
        calls = calls_of(given.transcript)
        counted = [
            call for call in calls if not self.tools or any(tool.search(call.name) for tool in self.tools)
        ]
        used = len(counted) if self.tools or calls else given.transcript.measures.tool_call_count
        which = f" of {', '.join(tool.source for tool in self.tools)}" if self.tools else ""
        return self.found(used <= self.most, f"{used} tool calls{which}, at most {self.most:g}")


class WallTimeGrader(BuiltIn):
    """`wall-time`: no longer than `max`, a duration."""

    type = "wall-time"

    def read(self, config: Config) -> None:
        self.most = config.duration("max")

    async def look(self, given: Given) -> GraderResult:
        used = given.transcript.measures.wall_time_ms / 1000
        return self.found(used <= self.most, f"{used:g} s, at most {self.most:g} s")

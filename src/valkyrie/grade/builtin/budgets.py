"""How much was used, against a bound: over it the score falls linearly."""

from __future__ import annotations

from collections.abc import Callable

from valkyrie.errors import GraderError
from valkyrie.grade.base import BuiltIn
from valkyrie.grade.calls import calls_of, steps_of
from valkyrie.grade.config import Config
from valkyrie.grade.protocol import TOKENS_UNREPORTED, Given, GraderResult
from valkyrie.trajectory.transcript import Transcript


def _tokens(transcript: Transcript) -> float:
    """Input and output together; GraderError where nobody told, for 0 would pass every budget."""
    used = transcript.measures
    total = used.total_tokens or used.input_tokens + used.output_tokens
    if not total and next(transcript.of_type("token_usage"), None) is None:
        raise GraderError(
            "the agent reported no tokens, so whether it kept to its budget cannot be told. Tokens are read "
            "from its trajectory, its log, or metrics.json.",
            cause=TOKENS_UNREPORTED,
        )
    return total


_COUNTED: dict[str, tuple[str, Callable[[Transcript], float]]] = {
    "token-budget": ("tokens", _tokens),
    "turn-count": ("turns", lambda transcript: transcript.measures.turn_count),
    "error-count": ("errors", lambda transcript: transcript.measures.error_count),
}


def budget_score(used: float, most: float) -> float:
    """1 within the budget; over it 1 less the share by which it is over, down to 0."""
    if used <= most:
        return 1.0
    return max(0.0, 1 - (used - most) / max(most, 1.0)) if most else 0.0


class _AtMost(BuiltIn):
    """At most `max`."""

    def against(self, used: float, most: float, told: str) -> GraderResult:
        """The verdict; `used` and `most` in the same unit."""
        return self.found(used <= most, told, score=budget_score(used, most))


class BudgetGrader(_AtMost):
    """`token-budget`, `turn-count`, `error-count`: at most `max`."""

    def read(self, config: Config) -> None:
        self.most = config.number("max")
        self.unit, self.count = _COUNTED[self.spec.type]

    async def look(self, given: Given) -> GraderResult:
        used = self.count(given.transcript)
        return self.against(used, self.most, f"{used:g} {self.unit}, at most {self.most:g}")


class ToolCallCountGrader(_AtMost):
    """`tool-call-count`: at most `max` calls, of any tool or of those whose name fits one of `tools`."""

    type = "tool-call-count"

    def read(self, config: Config) -> None:
        self.most = config.number("max")
        self.tools = config.tool_patterns("tools")

    async def look(self, given: Given) -> GraderResult:
        calls = calls_of(given.transcript)
        counted = [
            call for call in calls if not self.tools or any(tool.search(call.name) for tool in self.tools)
        ]
        used = len(counted) if self.tools or calls else given.transcript.measures.tool_call_count
        which = f" of {', '.join(tool.source for tool in self.tools)}" if self.tools else ""
        return self.against(used, self.most, f"{used} tool calls{which}, at most {self.most:g}")


class StepCountGrader(_AtMost):
    """`step-count`: at most `max` steps of the agent, of any or of those that call one of `tools`.

    A step is what the model says and calls in one answer: calls of one batch are one step.
    """

    type = "step-count"

    def read(self, config: Config) -> None:
        self.most = config.number("max")
        self.tools = config.tool_patterns("tools")

    async def look(self, given: Given) -> GraderResult:
        steps = steps_of(given.transcript)
        counted = [
            step
            for step in steps
            if not self.tools or any(tool.search(name) for tool in self.tools for name in step)
        ]
        which = f" with {', '.join(tool.source for tool in self.tools)}" if self.tools else ""
        return self.against(len(counted), self.most, f"{len(counted)} steps{which}, at most {self.most:g}")


class WallTimeGrader(_AtMost):
    """`wall-time`: no longer than `max`, a duration."""

    type = "wall-time"

    def read(self, config: Config) -> None:
        self.most = config.duration("max")

    async def look(self, given: Given) -> GraderResult:
        used = given.transcript.measures.wall_time_ms
        told = f"{used / 1000:g} s, at most {self.most:g} s"
        return self.against(used, self.most * 1000, told)

"""Whether the agent ran in circles: the same tool calls again and again."""

from __future__ import annotations

from collections.abc import Sequence

from valkyrie.grade.base import BuiltIn
from valkyrie.grade.calls import Call, calls_of
from valkyrie.grade.config import Config
from valkyrie.grade.js_regex import JsRegex
from valkyrie.grade.protocol import Given, GraderResult
from valkyrie.suggest import did_you_mean

LONGEST_CYCLE = 10
MATCHES = ("name-args", "name", "observation")
"""What makes two calls the same: name and arguments, the name alone, or name and result."""


def most_repeats(calls: Sequence[str], longest: int) -> tuple[int, int]:
    """How often a sequence of at most `longest` calls was made right after itself, and how long it is."""
    best = (1 if calls else 0, 1)
    for period in range(1, longest + 1):
        same = 0
        for at in range(period, len(calls)):
            same = same + 1 if calls[at] == calls[at - period] else 0
            if (repeats := same // period + 1) > best[0]:
                best = (repeats, period)
    return best


class _Circles(BuiltIn):
    """Counts how often the same was done in a row."""

    match = MATCHES[0]

    def read(self, config: Config) -> None:
        self.longest = config.whole("max_cycle_period", low=1, high=LONGEST_CYCLE, default=1)
        self.tools = config.tool_patterns("tools")

    def repeats(self, given: Given) -> tuple[int, str]:
        """How often, and that in words."""
        calls = [_said(call, self.match) for call in calls_of(given.transcript) if _counts(call, self.tools)]
        repeats, period = most_repeats(calls, self.longest)
        what = "the same call" if period == 1 else f"the same {period} calls"
        return repeats, f"{what} {repeats} times in a row" if repeats else "no calls"


class MaxRepeatGrader(_Circles):
    """`max-repeat`: no sequence of calls more than `max` times in a row."""

    type = "max-repeat"

    def read(self, config: Config) -> None:
        super().read(config)
        self.most = config.number("max")

    async def look(self, given: Given) -> GraderResult:
        repeats, told = self.repeats(given)
        return self.found(repeats <= self.most, f"{told}; at most {self.most:g}")


class LoopOutcomeGrader(_Circles):
    """`loop-outcome`: the agent was stuck in a loop, or was not, as expected.

    N identical calls in a row are N - 1 retries; more retries than `max_acceptable_retries` are a loop.
    """

    type = "loop-outcome"

    def read(self, config: Config) -> None:
        super().read(config)
        self.most = config.whole("max_acceptable_retries", low=0, high=1_000_000)
        self.should_loop = config.flag("should_loop")
        self.match = config.text("match", default=MATCHES[0])
        if self.match not in MATCHES:
            hint = did_you_mean(self.match, MATCHES) or f" It is one of {', '.join(MATCHES)}."
            raise config.wrong(f"no `match` is called {self.match!r}.{hint}")

    async def look(self, given: Given) -> GraderResult:
        repeats, told = self.repeats(given)
        looped = repeats - 1 > self.most
        wanted = "a loop is expected" if self.should_loop else f"at most {self.most} retries are accepted"
        return self.found(looped == self.should_loop, f"{told}; {wanted}")


def _counts(call: Call, tools: Sequence[JsRegex]) -> bool:
    return not tools or any(tool.search(call.name) for tool in tools)


def _said(call: Call, match: str) -> str:
    if match == "name":
        return call.name
    return f"{call.name} {call.result or ''}" if match == "observation" else f"{call.name} {call.serialised}"

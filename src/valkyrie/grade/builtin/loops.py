"""Whether the agent ran in circles: the same tool calls with the same arguments, again and again."""

from __future__ import annotations

from collections.abc import Sequence

from valkyrie.grade.base import BuiltIn
from valkyrie.grade.calls import calls_of
from valkyrie.grade.config import Config
from valkyrie.grade.protocol import Given, GraderResult

DEFAULT_MAX = 3
LONGEST_CYCLE = 10


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


class RepeatGrader(BuiltIn):
    """`max-repeat` (no sequence more than `max` times) and `loop-outcome` (looping is as expected)."""

    def read(self, config: Config) -> None:
        self.most = config.number("max", low=1, default=float(DEFAULT_MAX))
        self.longest = config.whole("max_cycle_period", low=1, high=LONGEST_CYCLE, default=1)
        self.tools = config.pattern_list("tools")
        self.should_loop = self.spec.type == "loop-outcome" and config.flag("should_loop")

    async def look(self, given: Given) -> GraderResult:
        calls = [
            f"{call.name} {call.serialised}"
            for call in calls_of(given.transcript)
            if not self.tools or any(tool.search(call.name) for tool in self.tools)
        ]
        repeats, period = most_repeats(calls, self.longest)
        looped = repeats > self.most
        what = "the same call" if period == 1 else f"the same {period} calls"
        found = f"{what} {repeats} times in a row" if repeats else "no calls"
        wanted = "a loop is expected" if self.should_loop else f"at most {self.most:g}"
        return self.found(looped == self.should_loop, f"{found}; {wanted}")

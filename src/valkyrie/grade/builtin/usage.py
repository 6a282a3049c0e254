"""Graders of tool calls, skills, repeated calls, and of how much was used against a bound."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from valkyrie.errors import GraderError
from valkyrie.grade.base import BuiltIn, Config, clipped
from valkyrie.grade.calls import ENTRY_KEYS, CallPattern, TranscriptCall, calls_of, steps_of, wanted_entries
from valkyrie.grade.js_regex import JsRegex
from valkyrie.grade.protocol import TOKENS_UNREPORTED, GraderInput, GraderResult
from valkyrie.text import did_you_mean
from valkyrie.trajectory.transcript import Transcript


class ToolCallsGrader(BuiltIn):
    """`tool-calls`: what must be called, must not be, must be called in order, and at once."""

    type = "tool-calls"

    def read(self, config: Config) -> None:
        lists = {key: wanted_entries(config, key) for key in ENTRY_KEYS}
        self.required, self.disallowed = lists["required"], lists["disallowed"]
        self.sequence, self.parallel = lists["sequence"], lists["parallel"]
        self.ordered = config.flag("ordered")
        self.absence_only = not (self.required or self.sequence or self.parallel)
        if not any(lists.values()):
            *others, last = [f"`{key}`" for key in lists]
            raise config.wrong(f"{', '.join(others)} or {last} must have at least one entry.")

    async def look(self, given: GraderInput) -> GraderResult:
        calls = calls_of(given.transcript)
        problems = [*self._missing(calls), *self._refused(calls)]
        if self.ordered:
            problems += _out_of_order(self.required, [call for call in calls if call.completed])
        problems += _out_of_order(self.sequence, calls)
        if self.parallel and not _has_batch(self.parallel, calls):
            wanted = " and ".join(entry.shown for entry in self.parallel)
            problems.append(f"never called at once: {wanted}")
        names = clipped(", ".join(call.name for call in calls), 300) or "none"
        return self.found(not problems, "; ".join([*problems, f"calls: {names}"]))

    def _missing(self, calls: Sequence[TranscriptCall]) -> list[str]:
        """A call that never returned does not count."""
        problems = []
        for entry in self.required:
            fitting = [call for call in calls if entry.fits(call)]
            made = sum(call.completed for call in fitting)
            if made >= entry.min_count:
                continue
            if not fitting:
                problems.append(f"required but never called: {entry.shown}")
            else:
                often = f"{made} of {entry.min_count} times" if made else "but it never returned"
                problems.append(f"required, called {often}: {entry.shown}")
        return problems

    def _refused(self, calls: Sequence[TranscriptCall]) -> list[str]:
        found = []
        for entry in self.disallowed:
            if wrong := next((call for call in calls if entry.fits(call)), None):
                found.append(f"disallowed ({entry.shown}): {wrong.name} {clipped(wrong.serialised, 200)}")
        return found


def _out_of_order(entries: Sequence[CallPattern], calls: Sequence[TranscriptCall]) -> list[str]:
    """Each entry fits a later call than the one before it."""
    at = 0
    done: list[CallPattern] = []
    for entry in entries:
        at = next((number + 1 for number in range(at, len(calls)) if entry.fits(calls[number])), -1)
        if at < 0:
            after = f" after {done[-1].shown}" if done else ""
            return [f"required in this order, but not called{after}: {entry.shown}"]
        done.append(entry)
    return []


def _has_batch(entries: Sequence[CallPattern], calls: Sequence[TranscriptCall]) -> bool:
    """Return whether the calls of one step fit all entries, each another one."""
    batches: defaultdict[int, list[TranscriptCall]] = defaultdict(list)
    for call in calls:
        batches[call.step].append(call)
    return any(len(batch) >= len(entries) and _are_matched(entries, batch) for batch in batches.values())


def _are_matched(entries: Sequence[CallPattern], batch: Sequence[TranscriptCall]) -> bool:
    """Return whether each entry finds a call of its own (augmenting paths)."""
    fitting = [[number for number, call in enumerate(batch) if entry.fits(call)] for entry in entries]
    taken: dict[int, int] = {}

    def place(entry: int, seen: set[int]) -> bool:
        for call in fitting[entry]:
            if call not in seen:
                seen.add(call)
                if call not in taken or place(taken[call], seen):
                    taken[call] = entry
                    return True
        return False

    return all(place(entry, set()) for entry in range(len(entries)))


# Which skills were used.

ANY = "*"


class SkillInvocationGrader(BuiltIn):
    """`skill-invocation`: exact names against the skills that were activated; `*` forbids every skill."""

    type = "skill-invocation"

    def read(self, config: Config) -> None:
        self.required = config.texts("required")
        self.disallowed = config.texts("disallowed")
        self.absence_only = not self.required
        if not self.required and not self.disallowed:
            raise config.wrong("`required` or `disallowed` must name at least one skill.")
        both = sorted(set(self.required) & set(self.disallowed))
        if both or (self.required and ANY in self.disallowed):
            raise config.wrong(f"{', '.join(both) or ANY} is both required and disallowed.")

    async def look(self, given: GraderInput) -> GraderResult:
        used = list(
            dict.fromkeys(
                str(event.data.get("name")) for event in given.transcript.of_type("skill_activation")
            )
        )
        missing = [name for name in self.required if name not in used]
        wrong = used if ANY in self.disallowed else [name for name in used if name in self.disallowed]
        problems = [f"required but not used: {', '.join(missing)}"] if missing else []
        problems += [f"used but disallowed: {', '.join(wrong)}"] if wrong else []
        return self.found(not problems, "; ".join([*problems, f"used: {', '.join(used) or 'none'}"]))


# Whether the agent ran in circles: the same tool calls again and again.

LONGEST_CYCLE = 10
MATCHES = ("name-args", "name", "observation")
"""What makes two calls the same: name and arguments, the name alone, or name and result."""


def most_repeats(calls: Sequence[str], longest: int) -> tuple[int, int]:
    """Return how often a sequence of at most `longest` calls was made right after itself, and how long it
    is."""
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

    def repeats(self, given: GraderInput) -> tuple[int, str]:
        """Return how often, and that in words."""
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

    async def look(self, given: GraderInput) -> GraderResult:
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

    async def look(self, given: GraderInput) -> GraderResult:
        repeats, told = self.repeats(given)
        looped = repeats - 1 > self.most
        wanted = "a loop is expected" if self.should_loop else f"at most {self.most} retries are accepted"
        return self.found(looped == self.should_loop, f"{told}; {wanted}")


def _counts(call: TranscriptCall, tools: Sequence[JsRegex]) -> bool:
    return not tools or any(tool.search(call.name) for tool in tools)


def _said(call: TranscriptCall, match: str) -> str:
    if match == "name":
        return call.name
    return f"{call.name} {call.result or ''}" if match == "observation" else f"{call.name} {call.serialised}"


# How much was used, against a bound: over it the score falls linearly.


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

    async def look(self, given: GraderInput) -> GraderResult:
        used = self.count(given.transcript)
        return self.against(used, self.most, f"{used:g} {self.unit}, at most {self.most:g}")


class ToolCallCountGrader(_AtMost):
    """`tool-call-count`: at most `max` calls, of any tool or of those whose name fits one of `tools`."""

    type = "tool-call-count"

    def read(self, config: Config) -> None:
        self.most = config.number("max")
        self.tools = config.tool_patterns("tools")

    async def look(self, given: GraderInput) -> GraderResult:
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

    async def look(self, given: GraderInput) -> GraderResult:
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

    async def look(self, given: GraderInput) -> GraderResult:
        used = given.transcript.measures.wall_time_ms
        told = f"{used / 1000:g} s, at most {self.most:g} s"
        return self.against(used, self.most * 1000, told)

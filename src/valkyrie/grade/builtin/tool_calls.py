"""Which tools were called, and with what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from valkyrie.grade.base import BuiltIn, clipped
from valkyrie.grade.calls import ENTRY_KEYS, Call, Wanted, calls_of, wanted_entries
from valkyrie.grade.config import Config
from valkyrie.grade.protocol import Given, GraderResult


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

    async def look(self, given: Given) -> GraderResult:
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

    def _missing(self, calls: Sequence[Call]) -> list[str]:
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

    def _refused(self, calls: Sequence[Call]) -> list[str]:
        found = []
        for entry in self.disallowed:
            if wrong := next((call for call in calls if entry.fits(call)), None):
                found.append(f"disallowed ({entry.shown}): {wrong.name} {clipped(wrong.serialised, 200)}")
        return found


def _out_of_order(entries: Sequence[Wanted], calls: Sequence[Call]) -> list[str]:
    """Each entry fits a later call than the one before it."""
    at = 0
    done: list[Wanted] = []
    for entry in entries:
        at = next((number + 1 for number in range(at, len(calls)) if entry.fits(calls[number])), -1)
        if at < 0:
            after = f" after {done[-1].shown}" if done else ""
            return [f"required in this order, but not called{after}: {entry.shown}"]
        done.append(entry)
    return []


def _has_batch(entries: Sequence[Wanted], calls: Sequence[Call]) -> bool:
    """Whether the calls of one step fit all entries, each another one."""
    batches: defaultdict[int, list[Call]] = defaultdict(list)
    for call in calls:
        batches[call.step].append(call)
    return any(len(batch) >= len(entries) and _are_matched(entries, batch) for batch in batches.values())


def _are_matched(entries: Sequence[Wanted], batch: Sequence[Call]) -> bool:
    """Whether each entry finds a call of its own (augmenting paths)."""
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

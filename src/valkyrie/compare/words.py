"""A comparison in one plain sentence, and the gates that fail a command on it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from valkyrie.compare.pairs import same_within
from valkyrie.compare.views import Comparison, ComparisonBound
from valkyrie.domain import Json
from valkyrie.errors import UsageError
from valkyrie.report.formats import plural
from valkyrie.report.statistics.anytime import AnytimeStanding, DecidedOutcome
from valkyrie.report.statistics.intervals import FEW_FAMILIES, unseen_share
from valkyrie.report.statistics.paired import SURE, NoWorse, within_margin


def anytime_sentence(one: Comparison) -> str:
    """Say who is ahead and whether that is decided, in words that hold whenever one looks."""
    found = one.anytime
    if found is None or found.outcome is None:
        return _anytime_undecided(one, found)
    ahead, behind = (one.b, one.a) if found.outcome is DecidedOutcome.B_AHEAD else (one.a, one.b)
    still = "" if one.ended else "; trials are still open"
    when = "Decided at the last look" if found.last else "Decided, whenever you look"
    if found.outcome is DecidedOutcome.ALIKE:
        limit = _points(one.margin or 0.0)
        said = f"{one.a} and {one.b} are no further apart than {limit} points"
        return f"{when}: {said}, {_anytime_evidence(found, one, signed=True)}{still}."
    amount = _points(abs(found.difference or 0.0))
    said = f"{ahead} is ahead of {behind} by {amount} points"
    return f"{when}: {said}, {_anytime_evidence(found, one)}{still}."


def _anytime_undecided(one: Comparison, found: AnytimeStanding | None) -> str:
    if one.ended and found is not None:
        return f"Not decided: {_lead(one)}, {_anytime_evidence(found, one)}."
    if one.difference is None:
        return f"So far no task of {one.a} and {one.b} has ended on both sides; not decided."
    why = "trials are still open, and quick tasks end first"
    return f"So far {_lead(one)} on {plural(one.tasks, 'task')} in common; not decided: {why}."


def _lead(one: Comparison) -> str:
    difference = one.difference or 0.0
    if abs(difference) < 1e-9:
        return f"{one.a} and {one.b} are level"
    ahead, behind = (one.a, one.b) if difference > 0 else (one.b, one.a)
    amount = f"{_points(abs(difference))} points" if one.fraction else f"{abs(difference):g}"
    return f"{ahead} is ahead of {behind} by {amount}"


def _anytime_evidence(found: AnytimeStanding, one: Comparison, *, signed: bool = False) -> str:
    low, high = found.interval or (-1.0, 1.0)
    units = "families" if found.families is not None else "tasks"
    level = f"{round(100 * (1 - found.error), 2):g} %"
    if not signed and (found.difference or 0.0) < 0:
        low, high = -high, -low
    bar = round(found.bar, 1)
    share = "" if one.comparisons == 1 else f" for {one.comparisons} comparisons"
    if found.last:
        return f"on all {found.units} {units}, {level} interval {_points(low)} to {_points(high)}"
    if signed:
        evidence = ""
    elif found.lead is not None:
        evidence = f", {found.lead} more tasks won than lost (decided from {found.needed} on{share})"
    else:
        evidence = f", e-value {_size(found.e_value)} (decided from {bar:g} on{share})"
    return (
        f"on the first {found.units} {units} of an order fixed before the run, "
        f"{level} interval at every look {_points(low)} to {_points(high)}{evidence}"
    )


def _points(value: float) -> str:
    return f"{100 * value:.1f}".replace("-0.0", "0.0").replace("-", "−")


def _size(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}" if value < 1e6 else "over a million"


# A comparison in one plain sentence.

_ERRORS = ("infrastructure", "benchmark", "user", "internal", "agent")


def sentence(one: Comparison) -> str:
    """Return who beats whom, by how much and how sure, or that it cannot be told and what would be needed."""
    if one.anytime is not None or not one.ended:
        return anytime_sentence(one)
    so_far = "" if one.ended else "So far: "
    left_out = _left_out(one)
    if one.verdict == "nothing":
        return f"{so_far}{one.a} and {one.b} cannot be compared: no task has a result of both{left_out}."
    if one.undecided:
        return f"{so_far}{_undecided(one)}{left_out}."
    said = {"better": _beats, "worse": _beats, "same": _same, "unclear": _unclear}[one.verdict](one)
    return f"{so_far}{said}{left_out}{_wanting(one)}."


def _beats(one: Comparison) -> str:
    ahead, behind = (one.a, one.b) if one.verdict == "better" else (one.b, one.a)
    return f"{ahead} beats {behind} by {_amount(one)}, {_evidence(one)}"


def _unclear(one: Comparison) -> str:
    return f"Can't tell {one.a} and {one.b} apart: {_ahead(one)}, {_evidence(one)}"


def _undecided(one: Comparison) -> str:
    """Return what the tasks in common say does not hold for every way the others could have ended."""
    lacks = {one.a: one.a_lacks, one.b: one.b_lacks}
    said = " and ".join(
        f"{plural(count, 'trial')} that {name} lacks" for name, count in lacks.items() if count
    )
    spread = ""
    if one.lowest and one.highest:
        low, high = (points(end.difference, fraction=True) for end in (one.lowest, one.highest))
        spread = f", which make the difference anything from {low} to {high} points"
    return (
        f"Can't tell {one.a} and {one.b} apart because of {said}{spread}; "
        f"on what both have, {_ahead(one)}, {_evidence(one)}"
    )


def _ahead(one: Comparison) -> str:
    difference = one.difference or 0.0
    if not one.won and not one.lost and one.tasks > 1:
        share = unseen_share(one.families or one.tasks)
        seen = f"{one.families} families" if one.families else f"{one.tasks} tasks"
        return (
            f"the same result on every task, but {seen} cannot exclude a difference on up to "
            f"{points(share, fraction=True)} % of tasks"
        )
    if abs(difference) < 1e-9:
        return "they are level"
    return f"{one.a if difference > 0 else one.b} is ahead by {_amount(one)}"


def _same(one: Comparison) -> str:
    alike = "the same result on every task, and " if not one.won and not one.lost else ""
    why = f"{alike}what there may be is within {_margin(one)}"
    return f"No difference seen between {one.a} and {one.b}: {why}, {_evidence(one)}"


def _evidence(one: Comparison) -> str:
    of = ""
    if one.families is not None:
        of = f" of {plural(one.families, 'family', 'families')}"
    return f"{_interval(one)}, {_chance(one)}, {plural(one.tasks, 'task')}{of} in common"


def _amount(one: Comparison) -> str:
    return points(abs(one.difference or 0.0), fraction=one.fraction) + (" points" if one.fraction else "")


def _interval(one: Comparison) -> str:
    if one.interval is None:
        return f"no interval ({one.interval_method})"
    low, high = one.interval
    if (one.difference or 0.0) < 0:
        low, high = -high, -low
    excludes = low > 0 or high < 0
    alone = " of this pair alone" if excludes and one.verdict == "unclear" and not one.undecided else ""
    return (
        f"95 % interval{alone} {points(low, fraction=one.fraction)} to {points(high, fraction=one.fraction)}"
    )


def _chance(one: Comparison) -> str:
    if one.comparisons == 1:
        return probability(one.p_adjusted or 0.0)
    corrected = probability(one.p_adjusted or 0.0)
    return f"{corrected} after Holm's correction for {one.comparisons} comparisons"


def points(value: float, *, fraction: bool) -> str:
    """A difference in points, never shown as 0.0 when it is not 0."""
    if not fraction:
        return f"{value + 0.0:g}".replace("-", "−")
    value = value * 100
    text = f"{value:.1f}"
    if float(text) == 0 and abs(value) > 1e-9:
        text = f"{value:.2g}"
    return ("0.0" if float(text) == 0 else text).replace("-", "−")


def probability(p: float) -> str:
    """`p = 0.016`; what is below 0.05 never reads as 0.050."""
    if p < 0.001:
        return "p < 0.001"
    if p >= 0.05:
        return f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"
    said = next((text for text in (f"{p:.3f}", f"{p:.4f}") if float(text) < 0.05), None)
    return f"p = {said}" if said else "p < 0.05"


def _left_out(one: Comparison) -> str:
    parts = excluded_words(one.excluded, one.a, one.b)
    return f"; {', '.join(parts)}" if parts else ""


def excluded_words(excluded: Mapping[str, Sequence[str]], a: str, b: str) -> list[str]:
    """`4 excluded as infrastructure errors`, `1 not run`, …, the most telling first."""
    words = []
    for reason in [*(name for name in _ERRORS if name in excluded), *_others(excluded)]:
        count = len(excluded[reason])
        if reason in ("only A", "only B"):
            words.append(f"{plural(count, 'task')} only {a if reason == 'only A' else b} has")
        elif reason == "content":
            words.append(f"{count} excluded because the task itself was changed in between")
        elif reason in ("not run", "no number"):
            words.append(f"{count} {'not run yet or stopped' if reason == 'not run' else 'without a number'}")
        else:
            words.append(f"{count} excluded as {reason} {'error' if count == 1 else 'errors'}")
    return words


def _others(excluded: Mapping[str, Sequence[str]]) -> list[str]:
    return [reason for reason in excluded if reason not in _ERRORS]


def _wanting(one: Comparison) -> str:
    """Say what would show a gap of a stated size."""
    if one.families is not None and one.families < FEW_FAMILIES:
        return f"; fewer than {FEW_FAMILIES} families say little about others"
    if one.verdict != "unclear":
        return ""
    if one.tasks == 1:
        return "; one task says nothing about others"
    if one.needed is None:
        return ""
    needed = one.needed
    unit = " points" if one.fraction else ""
    gap, least, most = (
        points(size, fraction=one.fraction) for size in (needed.gap, needed.least, needed.most)
    )
    trials = f" (or {needed.trials:,} trials of each of these)" if needed.trials else ""
    return (
        f"; if the true gap is {gap}{unit}, about {needed.tasks:,} tasks in all{trials} show it 4 times "
        f"in 5; it may be {least} to {most}"
    )


def _margin(one: Comparison) -> str:
    margin = same_within(one) or 0.0
    return f"{margin * 100:g} points" if one.fraction else f"{margin:g}"


# Gates over comparisons: whether a build may go on. The first run is the baseline.

_NEAR = 1e-9
_LARGEST_SHARE = 0.2
"""A bare number up to this is a share of 1; from 1 on it is points. What is between could be either."""
_MARGIN = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%|pp|points?)?\s*", re.IGNORECASE)
_EXAMPLES = "write 2 or 2% for two points, 0.02 for the same as a share of 1"


@dataclass(frozen=True, slots=True)
class Margin:
    """How much worse does not matter, as it was written."""

    number: float
    in_points: bool
    """A unit was written: per cent, or points."""

    def on_scale(self, *, fraction: bool) -> float:
        """Return the margin in units of the score; raise UsageError where it cannot be told."""
        if not fraction:
            if self.in_points:
                raise UsageError(
                    "The scores of this benchmark are on a scale of its own, not per cent: give "
                    "--no-worse-than as a number on that scale."
                )
            return self.number
        if self.in_points or self.number >= 1 or self.number == 0:
            return self.number / 100
        if self.number > _LARGEST_SHARE:
            raise UsageError(
                f"--no-worse-than {self.number:g} could be {self.number:g} points or {100 * self.number:g}: "
                f"write {self.number:g}% or {100 * self.number:g}%."
            )
        return self.number


def read_margin(text: str) -> Margin:
    """Return the margin that is written; raise ValueError with what to write instead."""
    found = _MARGIN.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no margin; {_EXAMPLES}.")
    number, unit = float(found[1]), found[2]
    if not math.isfinite(number) or (unit and number > 100):
        raise ValueError(f"{text!r} is more than all there is; {_EXAMPLES}.")
    return Margin(number, unit is not None)


@dataclass(frozen=True, slots=True)
class Judgement:
    """One comparison with the baseline, held against a margin."""

    baseline: str
    name: str
    outcome: NoWorse
    at_least: float | None
    """How much worse it is at least, one-sided 95 %; below 0: it may be better."""
    at_most: float | None
    """How much worse it is at most, one-sided 95 %."""
    words: str


@dataclass(frozen=True, slots=True)
class ComparisonGate:
    """What a gate says of all comparisons with the baseline."""

    kind: Literal["fail-if-worse", "no-worse-than"]
    points: float
    """The number that was asked for, in points, or on the benchmark's own scale."""
    failures: Sequence[str]
    """Why it is shut; empty where it is open."""
    judgements: Sequence[Judgement] = field(default_factory=tuple)

    @property
    def outcome(self) -> NoWorse | None:
        """The least good of all; None for a gate without a margin."""
        found = {one.outcome for one in self.judgements}
        order = (NoWorse.WORSE, NoWorse.CANT_TELL, NoWorse.NO_WORSE)
        return next((outcome for outcome in order if outcome in found), None)

    def to_json(self) -> Json:
        """Return it as the field `gate` of a comparison."""
        data: Json = {"kind": self.kind, "points": self.points, "failures": list(self.failures)}
        if self.kind == "no-worse-than":
            data["outcome"] = self.outcome
            data["comparisons"] = [
                {
                    "a": one.baseline,
                    "b": one.name,
                    "outcome": one.outcome,
                    "worse_at_least": one.at_least,
                    "worse_at_most": one.at_most,
                    "sentence": one.words,
                }
                for one in self.judgements
            ]
        return data


def no_worse_gate(
    comparisons: Sequence[Comparison], baseline: Sequence[str], margin: Margin
) -> ComparisonGate:
    """Hold every comparison with a run of the baseline against a margin.

    The gate is open where all are no worse; so that no correction for several comparisons is needed.
    """
    held = [one for one in comparisons if one.a_run in baseline]
    fraction = all(one.fraction for one in held)
    found = [hold_against(one, margin.on_scale(fraction=one.fraction)) for one in held]
    failures = [one.words for one in found if one.outcome is not NoWorse.NO_WORSE]
    size = margin.on_scale(fraction=fraction) * (100 if fraction else 1)
    return ComparisonGate("no-worse-than", round(size, 9), failures, found)


def hold_against(one: Comparison, margin: float) -> Judgement:
    """Tell whether B is no worse than A by more than the margin, however lacking trials could have ended."""
    asked = f"{one.b} is worse than {one.a} by more than {_gates_amount(margin, one)}"
    limits = _limits(one)
    if one.verdict == "nothing" or limits is None or not one.ended:
        words = f"Can't tell whether {asked}: {_unknown(one)}"
        return Judgement(one.a, one.b, NoWorse.CANT_TELL, None, None, words)
    low, high = limits
    outcome = within_margin(-high, -low, margin + _NEAR)
    tasks = f"one-sided 95 % limit, {plural(one.tasks, 'task')} in common"
    if outcome is NoWorse.NO_WORSE:
        said = f"{_up_to(one.b, high, one)} ({tasks})"
        words = f"{one.b} is no worse than {one.a} by more than {_gates_amount(margin, one)}: {said}."
        return Judgement(one.a, one.b, NoWorse.NO_WORSE, low, high, words)
    if outcome is NoWorse.WORSE:
        return Judgement(
            one.a,
            one.b,
            NoWorse.WORSE,
            low,
            high,
            f"{asked}: by at least {_gates_amount(low, one)} ({tasks}).",
        )
    lacking = "; it depends on trials that one of them lacks" if one.a_lacks or one.b_lacks else ""
    words = f"Can't tell whether {asked}: {_up_to(one.b, high, one)} ({tasks}){lacking}."
    return Judgement(one.a, one.b, NoWorse.CANT_TELL, low, high, words)


def _limits(one: Comparison) -> tuple[float, float] | None:
    """Return how much worse B is at least and at most; over all ways the lacking trials could have ended.

    Limits for a fixed number of tasks do not hold for a job that stopped when it was decided: its own
    interval does.
    """
    if one.anytime is not None:
        return one.interval
    if not (one.a_lacks or one.b_lacks):
        return one.limits
    ends = [end.limits for end in (one.lowest, one.highest) if end and end.limits]
    return (min(low for low, _ in ends), max(high for _, high in ends)) if len(ends) == 2 else None


def _unknown(one: Comparison) -> str:
    if not one.ended:
        return "they have not both ended; wait for them (valk run wait)."
    if one.verdict == "nothing":
        return sentence(one)
    return "one of them lacks trials; `valk run retry` runs them again."


def _up_to(name: str, high: float, one: Comparison) -> str:
    if high <= 0:
        return f"{name} is better by at least {_gates_amount(-high, one)}"
    return f"{name} is worse by at most {_gates_amount(high, one)}"


def _gates_amount(value: float, one: Comparison) -> str:
    return points(value, fraction=one.fraction) + (" points" if one.fraction else "")


def worse_gate(comparisons: Sequence[Comparison], baseline: Sequence[str], least: float) -> ComparisonGate:
    """Shut where a later one is worse than the baseline, by a one-sided test, and by at least so many points.

    A gate that knows nothing stays shut: nothing to compare, runs that go on, and lacking trials that could
    make it worse.
    """
    held = [one for one in comparisons if one.a_run in baseline]
    return ComparisonGate(
        "fail-if-worse", least, [reason for one in held if (reason := _why_shut(one, least))]
    )


def _why_shut(one: Comparison, least: float) -> str | None:
    if one.verdict == "nothing":
        return sentence(one)
    if one.ended and is_worse(one) and one.drop >= least - _NEAR:
        sure = "decided" if one.anytime else f"one-sided {probability((one.p_adjusted or 0.0) / 2)}"
        return (
            f"{one.b} is worse than {one.a} by {_gates_amount(one.difference or 0.0, one)} ({sure}, "
            f"{plural(one.tasks, 'task')} in common)."
        )
    if one.highest and _bound_is_worse(one.highest, one) and 100 * one.highest.difference >= least - _NEAR:
        return (
            f"{one.b} could be worse than {one.a}, depending on trials that one of them lacks; "
            "`valk run retry` runs them again."
        )
    if not one.ended:
        return f"{one.a} and {one.b} have not both ended; wait for them (valk run wait)."
    return None


def is_worse(one: Comparison) -> bool:
    """Return whether B is worse than A by a one-sided test at 5 %, corrected for several comparisons.

    The tests are symmetric: the one-sided p-value is half of the two-sided one. Of a job that stopped when it
    was decided, the decision tells.
    """
    if one.anytime is not None:
        return one.verdict == "better"
    if one.difference is None or one.p_adjusted is None:
        return False
    return one.difference > _NEAR and one.p_adjusted / 2 < SURE


def _bound_is_worse(end: ComparisonBound, one: Comparison) -> bool:
    """The same had lacking trials ended in B's disfavour; corrected in the strictest way."""
    return end.difference > _NEAR and min(1.0, end.p_value * one.comparisons) / 2 < SURE

"""Gates over comparisons: whether a build may go on. The first run is the baseline."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from valkyrie.compare.views import Comparison, ComparisonBound
from valkyrie.compare.words import points, probability, sentence
from valkyrie.domain import Json
from valkyrie.errors import UsageError
from valkyrie.report.formats import plural
from valkyrie.report.statistics import SURE, NoWorse, within_margin

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
    asked = f"{one.b} is worse than {one.a} by more than {_amount(margin, one)}"
    limits = _limits(one)
    if one.verdict == "nothing" or limits is None or not one.ended:
        words = f"Can't tell whether {asked}: {_unknown(one)}"
        return Judgement(one.a, one.b, NoWorse.CANT_TELL, None, None, words)
    low, high = limits
    outcome = within_margin(-high, -low, margin + _NEAR)
    tasks = f"one-sided 95 % limit, {plural(one.tasks, 'task')} in common"
    if outcome is NoWorse.NO_WORSE:
        said = f"{_up_to(one.b, high, one)} ({tasks})"
        words = f"{one.b} is no worse than {one.a} by more than {_amount(margin, one)}: {said}."
        return Judgement(one.a, one.b, NoWorse.NO_WORSE, low, high, words)
    if outcome is NoWorse.WORSE:
        return Judgement(
            one.a, one.b, NoWorse.WORSE, low, high, f"{asked}: by at least {_amount(low, one)} ({tasks})."
        )
    lacking = "; it depends on trials that one of them lacks" if one.a_lacks or one.b_lacks else ""
    words = f"Can't tell whether {asked}: {_up_to(one.b, high, one)} ({tasks}){lacking}."
    return Judgement(one.a, one.b, NoWorse.CANT_TELL, low, high, words)


def _limits(one: Comparison) -> tuple[float, float] | None:
    """How much worse B is at least and at most; over all ways the lacking trials could have ended.

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
        return f"{name} is better by at least {_amount(-high, one)}"
    return f"{name} is worse by at most {_amount(high, one)}"


def _amount(value: float, one: Comparison) -> str:
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
            f"{one.b} is worse than {one.a} by {_amount(one.difference or 0.0, one)} ({sure}, "
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

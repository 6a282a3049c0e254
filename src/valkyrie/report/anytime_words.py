"""A comparison in one sentence, where it may be looked at before its runs have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from valkyrie.report.formats import plural
from valkyrie.report.statistics.anytime import AnytimeStanding, DecidedOutcome

if TYPE_CHECKING:
    from valkyrie.report.comparison_views import Comparison


def anytime_sentence(one: Comparison) -> str:
    """Say who is ahead and whether that is decided, in words that hold whenever one looks."""
    found = one.anytime
    if found is None or found.outcome is None:
        return _undecided(one, found)
    ahead, behind = (one.b, one.a) if found.outcome is DecidedOutcome.B_AHEAD else (one.a, one.b)
    still = "" if one.ended else "; trials are still open"
    when = "Decided at the last look" if found.last else "Decided, whenever you look"
    if found.outcome is DecidedOutcome.ALIKE:
        limit = _points(one.margin or 0.0)
        said = f"{one.a} and {one.b} are no further apart than {limit} points"
        return f"{when}: {said}, {_evidence(found, one, signed=True)}{still}."
    amount = _points(abs(found.difference or 0.0))
    said = f"{ahead} is ahead of {behind} by {amount} points"
    return f"{when}: {said}, {_evidence(found, one)}{still}."


def _undecided(one: Comparison, found: AnytimeStanding | None) -> str:
    if one.ended and found is not None:
        return f"Not decided: {_lead(one)}, {_evidence(found, one)}."
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


def _evidence(found: AnytimeStanding, one: Comparison, *, signed: bool = False) -> str:
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

"""A comparison in one plain sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from valkyrie.compare.pairs import same_within
from valkyrie.compare.views import Comparison
from valkyrie.report.formats import plural
from valkyrie.report.statistics import FEW_FAMILIES, unseen_share
from valkyrie.report.statistics.anytime import AnytimeStanding, DecidedOutcome


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
    """Who beats whom, by how much and how sure, or that it cannot be told and what would be needed."""
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
    """What the tasks in common say does not hold for every way the others could have ended."""
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

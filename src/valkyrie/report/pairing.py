"""Two runs, task by task: which tasks can be compared, and what the comparison says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from valkyrie.nouns import Json
from valkyrie.report.comparison_views import AgentSummary, Comparison, Verdict
from valkyrie.report.statistics import holm, mean, needed, paired

SURE = 0.05
"""p-values below this are more than chance."""
SMALL = 0.02
"""Two points: an interval that stays within this on both sides of 0 says that there is no difference."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two."""

    summary: AgentSummary
    counted: Mapping[str, Sequence[float]]
    """The trials that count, by task."""
    recipe: Json | None
    digests: Mapping[tuple[str, int], str]
    """Of every trial, by task and repetition."""


def compared(a: Side, b: Side, *, together: int = 1) -> Comparison:
    """A against B, one of several comparisons made together; its verdict is that before a correction."""
    excluded, common = _matched(a, b)
    left, right = ([side.counted[task] for task in common] for side in (a, b))
    mine, theirs = ([mean(trials) for trials in lists] for lists in (left, right))
    nothing = Comparison(
        a=a.summary.name,
        b=b.summary.name,
        a_run=a.summary.run_id,
        b_run=b.summary.run_id,
        excluded=excluded,
        fraction=a.summary.fraction and b.summary.fraction,
        ended=a.summary.ended and b.summary.ended,
    )
    if not common:
        return nothing
    found = paired(mine, theirs)
    comparison = replace(
        nothing,
        tasks=len(common),
        difference=found.difference,
        interval=found.interval,
        interval_method=found.interval_method,
        p_value=found.p_value,
        p_adjusted=found.p_value,
        test=found.test,
        won=[task for task, apart in zip(common, found.apart, strict=True) if apart > 0],
        lost=[task for task, apart in zip(common, found.apart, strict=True) if apart < 0],
        needed=needed(left, right, pass_fail=found.pass_fail, comparisons=together),
    )
    return replace(comparison, verdict=_verdict(comparison))


def corrected(found: Sequence[Comparison]) -> list[Comparison]:
    """Comparisons made together: Holm's correction, and the verdicts after it."""
    made = [one for one in found if one.p_value is not None]
    adjusted = iter(holm([one.p_value for one in made if one.p_value is not None]))
    together: list[Comparison] = []
    for one in found:
        p_value = None if one.p_value is None else next(adjusted)
        changed = replace(one, p_adjusted=p_value, comparisons=len(made))
        together.append(replace(changed, verdict=_verdict(changed)))
    return together


def _matched(a: Side, b: Side) -> tuple[dict[str, list[str]], list[str]]:
    """Tasks left out, by reason, and those in common; both in A's order."""
    excluded: dict[str, list[str]] = {}
    common: list[str] = []
    for task, result in a.summary.tasks.items():
        other = b.summary.tasks.get(task)
        reason = "only A" if other is None else result.why or other.why
        if reason is None and _changed(a, b, task):
            reason = "content"
        (common if reason is None else excluded.setdefault(reason, [])).append(task)
    if missing := [task for task in b.summary.tasks if task not in a.summary.tasks]:
        excluded["only B"] = missing
    return excluded, common


def _changed(a: Side, b: Side, task: str) -> bool:
    """Whether the task itself is another one: known where all else that makes a trial is the same."""
    if a.recipe is None or a.recipe != b.recipe:
        return False
    first = (task, 0)
    return first in a.digests and first in b.digests and a.digests[first] != b.digests[first]


def _verdict(one: Comparison) -> Verdict:
    """Only what interval and p-value both say is said."""
    if one.difference is None or one.p_adjusted is None:
        return "nothing"
    apart = one.interval is None or one.interval[0] > 0 or one.interval[1] < 0
    if one.p_adjusted < SURE and apart:
        return "better" if one.difference > 0 else "worse"
    if not one.won and not one.lost and one.tasks > 1:
        return "same"
    if one.fraction and one.interval and one.interval[0] >= -SMALL and one.interval[1] <= SMALL:
        return "same"
    return "unclear"

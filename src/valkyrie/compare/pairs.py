"""Two runs, task by task: which tasks can be compared, and what the comparison says."""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, cast

from valkyrie.compare.views import AgentSummary, Comparison, ComparisonBound, TaskResult, Verdict
from valkyrie.domain import Json, TrialState
from valkyrie.report.statistics.intervals import mean
from valkyrie.report.statistics.paired import SURE, Paired, holm, paired, surely_alike
from valkyrie.report.statistics.power import needed

if TYPE_CHECKING:
    from valkyrie.views import TrialView


class ScoredTrial(NamedTuple):
    """One trial without its task: most trials of a run are equal to another one."""

    k: int
    state: str
    score: float | None
    passed: bool | None
    category: str | None
    confirmed: bool | None
    score_confirmed: float | None
    is_open: bool
    """Graded where the agent could have changed what its tests ran with."""


OfTask = tuple[ScoredTrial, ...]


@dataclass(frozen=True, slots=True)
class TaskTrial:
    """One trial with its task, as `report.evidence` looks at it."""

    task_id: str
    family: str | None
    state: str
    score: float | None
    passed: bool | None
    category: str | None


class ScoredTrials:
    """Every trial of a run by task, in the order of the plan. A hundred thousand take some 15 MB."""

    def __init__(self, trials: Iterable[TrialView]) -> None:
        self.families: dict[str, str] = {}
        """Of each task that has one."""
        self._contents = array("q")
        self._found_late: dict[str, int] = {}
        self._compared: tuple[ScoredTrials, frozenset[str]] | None = None
        by_task: dict[str, OfTask | list[ScoredTrial]] = {}
        alone: dict[ScoredTrial, OfTask] = {}
        for trial in trials:
            one = _scored(trial)
            found = by_task.get(trial.task_id)
            if found is None:
                task = sys.intern(trial.task_id)  # shared with the run it is compared with
                by_task[task] = alone.setdefault(one, (one,))
                self._contents.append(hash(trial.digest) if trial.k == 0 else 0)
            else:
                if isinstance(found, tuple):
                    by_task[trial.task_id] = found = [*found]
                found.append(one)
                if trial.k == 0:
                    self._found_late[trial.task_id] = hash(trial.digest)
            if trial.family is not None:
                self.families[trial.task_id] = trial.family
        alike: dict[OfTask, OfTask] = {}
        for task, found in by_task.items():
            if isinstance(found, list):
                by_task[task] = alike.setdefault(tuple(found), tuple(found))
        self.by_task = cast("dict[str, OfTask]", by_task)

    @property
    def contents(self) -> dict[str, int]:
        """By task, a hash of its first trial's digest, which takes a tenth of that; 0: not known."""
        return dict(zip(self.by_task, self._contents, strict=True)) | self._found_late

    def other_contents(self, other: ScoredTrials) -> frozenset[str]:
        """Return the tasks of both whose first trials have different digests."""
        if self._compared is None or self._compared[0] is not other:
            theirs = other.contents
            changed = (
                task
                for task, digest in zip(self.by_task, self._contents, strict=True)
                if (own := self._found_late.get(task, digest))
                and (found := theirs.get(task, 0))
                and own != found
            )
            self._compared = other, frozenset(changed)
        return self._compared[1]

    @cached_property
    def kinds(self) -> Counter[OfTask]:
        """How many tasks have such trials."""
        return Counter(self.by_task.values())

    def counted(self) -> Iterator[tuple[ScoredTrial, int]]:
        """Yield each kind of trial, and how many tasks have it."""
        for own, count in self.kinds.items():
            for trial in own:
                yield trial, count

    def __iter__(self) -> Iterator[ScoredTrial]:
        for own in self.by_task.values():
            yield from own

    def rows(self) -> Iterator[TaskTrial]:
        """Yield every trial with its task."""
        for task, own in self.by_task.items():
            family = self.families.get(task)
            for one in own:
                yield TaskTrial(task, family, one.state, one.score, one.passed, one.category)

    def without_skipped(self) -> ScoredTrials:
        """Return those that were needed to decide; itself where all were."""
        if not any(one.state == TrialState.SKIPPED for one, _ in self.counted()):
            return self
        kept = ScoredTrials(())
        contents = self.contents
        for task, own in self.by_task.items():
            if needed := tuple(one for one in own if one.state != TrialState.SKIPPED):
                kept.by_task[task] = needed
                kept._contents.append(contents[task] if needed[0].k == 0 else 0)
        kept.families = {task: family for task, family in self.families.items() if task in kept.by_task}
        return kept


def _scored(trial: TrialView) -> ScoredTrial:
    return ScoredTrial(
        trial.k,
        trial.state,
        trial.score,
        trial.passed,
        trial.category,
        trial.confirmed,
        trial.score_confirmed,
        trial.state == TrialState.FINISHED and bool((trial.evidence or {}).get("open_to_tampering")),
    )


# Two runs, task by task: which tasks can be compared, and what the comparison says.

SMALL = 0.02
"""Two points: an interval that stays within this on both sides of 0 says that there is no difference."""


@dataclass(frozen=True, slots=True)
class TaskTrials:
    """The trials of one task, by what they are worth."""

    graded: Sequence[float]
    counted: Sequence[float]
    """Graded, and the worst for each error of the agent's own."""
    planned: Sequence[float]
    """One for every trial, 0 where there is no grade."""
    passing: Sequence[float]
    """The same, 1 where there is no grade and the agent did not bring that about."""
    confirmed: Sequence[float | None]
    """What a fresh sandbox saw of every trial; None: not known."""
    values: Mapping[int, float | None]
    """What each repetition counts; None: ungraded."""
    result: TaskResult


@dataclass(frozen=True, slots=True)
class PairSide:
    """One of the two."""

    summary: AgentSummary
    tasks: Mapping[str, TaskTrials]
    """Tasks with the same results share one object."""
    recipe: Json | None
    scored: ScoredTrials
    families: Mapping[str, str] = field(default_factory=dict)
    """The family of each task that has one."""
    scale: tuple[float, float] = (0.0, 1.0)
    """The range of possible scores."""


def compared(a: PairSide, b: PairSide, *, together: int = 1, margin: float | None = None) -> Comparison:
    """A against B, one of several comparisons made together; its verdict is that before a correction.

    `margin` is the difference that counts as none, 2 points unless said.
    """
    excluded, common = _matched(a, b)
    fraction = a.summary.fraction and b.summary.fraction
    a_lacks, b_lacks = _lacking(a, b), _lacking(b, a)
    left, right = ([side.tasks[task].counted for task in common] for side in (a, b))
    mine, theirs = ([side.tasks[task].result.mean or 0.0 for task in common] for side in (a, b))
    nothing = Comparison(
        a=a.summary.name,
        b=b.summary.name,
        a_run=a.summary.run_id,
        b_run=b.summary.run_id,
        excluded=excluded,
        fraction=fraction,
        ended=a.summary.ended and b.summary.ended,
        a_lacks=a_lacks,
        b_lacks=b_lacks,
        lowest=_bound(a, b, (0.0, 1.0)) if fraction and (a_lacks or b_lacks) else None,
        highest=_bound(a, b, (1.0, 0.0)) if fraction and (a_lacks or b_lacks) else None,
        margin=margin,
    )
    if not common:
        return nothing
    found = _found(a, b, common, mine, theirs)
    advice = None
    if found.families is None:  # how many more families there could be is not known
        advice = needed(left, right, pass_fail=found.pass_fail, comparisons=together, interval=found.interval)
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
        needed=advice,
        limits=(found.lowest, found.highest),
        families=found.families,
    )
    return _judged(comparison)


def _found(
    a: PairSide, b: PairSide, tasks: Sequence[str], mine: Sequence[float], theirs: Sequence[float]
) -> Paired:
    """Pair the means of tasks; over families where either side knows of some."""
    known = {**b.families, **a.families}
    families = [known.get(task, task) for task in tasks] if any(task in known for task in tasks) else None
    scale = min(a.scale[0], b.scale[0]), max(a.scale[1], b.scale[1])
    return paired(mine, theirs, families=families, scale=scale)


def corrected(found: Sequence[Comparison]) -> list[Comparison]:
    """Comparisons made together: Holm's correction, and the verdicts after it."""
    made = [one.p_value for one in found if one.p_value is not None]
    adjusted = iter(holm(made) if made else ())
    together: list[Comparison] = []
    for one in found:
        p_value = None if one.p_value is None else next(adjusted)
        changed = replace(one, p_adjusted=p_value, comparisons=len(made))
        together.append(_judged(changed))
    return together


def _matched(a: PairSide, b: PairSide) -> tuple[dict[str, list[str]], list[str]]:
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


def _changed(a: PairSide, b: PairSide, task: str) -> bool:
    """Return whether the task itself is another one: known where all else that makes a trial is the same."""
    if a.recipe is None or a.recipe != b.recipe:
        return False
    return task in a.scored.other_contents(b.scored)


def _shared(a: PairSide, b: PairSide) -> list[str]:
    """Tasks both runs have, the same on both sides."""
    return [task for task in a.tasks if task in b.tasks and not _changed(a, b, task)]


def _lacking(one: PairSide, other: PairSide) -> int:
    """Trials that have a value on the other side, and none on this one for reasons that are not its doing."""
    return sum(
        value is None and other.tasks[task].values.get(k) is not None
        for task in _shared(one, other)
        for k, value in one.tasks[task].values.items()
    )


def _bound(a: PairSide, b: PairSide, filled: tuple[float, float]) -> ComparisonBound | None:
    """The comparison had all trials only A lacks, and all only B lacks, ended with these values."""
    mine, theirs, tasks = [], [], []
    known: dict[tuple[int, int], tuple[float, float] | None] = {}
    for task in _shared(a, b):
        own, others = a.tasks[task], b.tasks[task]
        if (kind := (id(own), id(others))) not in known:
            known[kind] = _filled_means(own.values, others.values, filled)
        if (means := known[kind]) is not None:
            mine.append(means[0])
            theirs.append(means[1])
            tasks.append(task)
    if not mine:
        return None
    found = _found(a, b, tasks, mine, theirs)
    return ComparisonBound(
        found.difference,
        found.interval,
        found.p_value,
        not any(found.apart),
        len(mine),
        limits=(found.lowest, found.highest),
    )


def _filled_means(
    a: Mapping[int, float | None], b: Mapping[int, float | None], filled: tuple[float, float]
) -> tuple[float, float] | None:
    """Return the mean of either side of a task; None where there is nothing of one."""
    left, right = _filled(a, b, filled[0]), _filled(b, a, filled[1])
    return (mean(left), mean(right)) if left and right else None


def _filled(
    values: Mapping[int, float | None], others: Mapping[int, float | None], value: float
) -> list[float]:
    """A task's values; what only this side lacks has `value`, what neither has is left out."""
    known = {k: found for k, found in values.items() if found is not None}
    return [known.get(k, value) for k in values if k in known or others.get(k) is not None]


def _judged(one: Comparison) -> Comparison:
    """The verdict: what the tasks in common say, if it holds however lacking trials could have ended."""
    seen = _seen(one)
    bounds = [
        replace(bound, verdict=_bound_verdict(bound, one)) if bound else None
        for bound in (one.lowest, one.highest)
    ]
    sure = not (one.a_lacks or one.b_lacks) or all(bound and bound.verdict == seen for bound in bounds)
    alike = one.tasks > 0 and not one.won and not one.lost
    undecided = not sure and (seen in ("better", "worse", "same") or alike)
    verdict: Verdict = "unclear" if undecided else seen
    return replace(one, verdict=verdict, seen=seen, undecided=undecided, lowest=bounds[0], highest=bounds[1])


def _bound_verdict(bound: ComparisonBound, one: Comparison) -> Verdict:
    """Corrected for comparisons made together in the strictest way: Holm's needs all of them."""
    p_value = min(1.0, bound.p_value * one.comparisons)
    return _verdict(bound.difference, bound.interval, p_value, one, bound.tasks)


def _seen(one: Comparison) -> Verdict:
    if one.difference is None or one.p_adjusted is None:
        return "nothing"
    return _verdict(one.difference, one.interval, one.p_adjusted, one, one.tasks)


def _verdict(
    difference: float, interval: tuple[float, float] | None, p_value: float, one: Comparison, tasks: int
) -> Verdict:
    """Say only what the data carry: "same" needs enough tasks to have met what differs on few of them.

    The interval excludes 0 exactly when the p-value, before a correction, is below 0.05.
    """
    if p_value < SURE:
        return "better" if difference > 0 else "worse"
    margin = same_within(one)
    if margin is None or interval is None:
        return "unclear"
    width = 1.0 if one.fraction else 0.0  # a scale of its own has no known ends
    return "same" if surely_alike(interval, one.families or tasks, margin, width) else "unclear"


def same_within(one: Comparison) -> float | None:
    """Return the difference that counts as none; None where scores are no fractions and none was stated."""
    return SMALL if one.margin is None and one.fraction else one.margin

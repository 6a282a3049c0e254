"""The trials of a run as comparisons need them, kept small: trials that are alike are one object."""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, cast

from valkyrie.nouns import TrialState

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

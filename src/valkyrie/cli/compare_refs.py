"""Words of `compare` as runs, and which of them are compared with which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import TYPE_CHECKING, TypeVar

from valkyrie.errors import UnknownError, UsageError
from valkyrie.report.comparing import check_alike

if TYPE_CHECKING:
    from valkyrie.job_views import JobView
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.views import RunView

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Group:
    """What one word stands for: a run, or the runs of a job."""

    runs: Sequence[RunView]
    job: JobView | None = None

    def name_of(self, run: RunView, *, several: bool) -> str:
        """`agent:model`, its variant, and which job it is from where there are several."""
        name = f"{run.agent}:{run.model}" if run.model else run.agent
        if (variant := run.arguments.get("variant", "main")) != "main":
            name = f"{name} ({variant})"
        return f"{name} in {self.job.name}" if self.job and several else name


def groups_of(opened: Tracker, refs: Sequence[str]) -> list[Group]:
    """Each word as a job or a run; UsageError for one that is neither, and for one said twice."""
    groups = [_group(opened, ref) for ref in refs]
    seen: dict[str, str] = {}
    for ref, group in zip(refs, groups, strict=True):
        for run in group.runs:
            if run.id in seen:
                raise UsageError(f"{ref!r} and {seen[run.id]!r} both stand for run {run.id}.")
            seen[run.id] = ref
    if len(groups) == 1 and len(groups[0].runs) < 2:
        what = "This job has one run only" if groups[0].job else "This is one run"
        raise UsageError(f"{what}; name another run or job to compare it with.")
    return groups


def _group(opened: Tracker, ref: str) -> Group:
    job, no_job = _asked(opened.fetch_job, ref)
    if job and job.name == ref.strip():
        return Group(job.runs, job)
    run, no_run = _asked(opened.fetch, ref)
    if job and run:
        raise UsageError(f"{ref!r} is the beginning of run {run.id} and of job {job.id}; give more of it.")
    if run:
        return Group([run])
    if job:
        return Group(job.runs, job)
    for error in (no_job, no_run):
        if error and not isinstance(error, UnknownError) and _may_be_id(ref):
            raise error  # several begin so
    raise UnknownError(f"{no_job} No run's id begins so either.")


def _may_be_id(ref: str) -> bool:
    return all(character in "0123456789abcdef-" for character in ref.strip().lower())


def _asked(fetch: Callable[[str], Found], ref: str) -> tuple[Found | None, UsageError | None]:
    """What the word names, or why it names nothing."""
    try:
        return fetch(ref), None
    except UsageError as error:
        return None, error


def pairs_of(groups: Sequence[Group]) -> list[tuple[int, int]]:
    """Positions, in all runs, of those to compare.

    Of one group all with all; of several, each run with those of its name in another group, or with all of
    them where one of the two groups is a single run.
    """
    places = [(which, run) for which, group in enumerate(groups) for run in group.runs]
    if len(groups) == 1:
        inside = combinations(range(len(places)), 2)
        pairs = [(a, b) for a, b in inside if _alike(places[a][1], places[b][1])]
        problem = "No two runs of this job are on the same benchmark and dataset: nothing to compare."
    else:
        pairs = []
        for first, second in combinations(range(len(groups)), 2):
            pairs += _between(places, first, second, named=_both_have_several(groups[first], groups[second]))
        problem = "These jobs have no agent of the same name on the same benchmark and dataset; name runs."
    if not pairs:
        raise UsageError(problem)
    return pairs


def _both_have_several(first: Group, second: Group) -> bool:
    return len(first.runs) > 1 and len(second.runs) > 1


def _between(
    places: Sequence[tuple[int, RunView]], first: int, second: int, *, named: bool
) -> list[tuple[int, int]]:
    left, right = ([at for at, (which, _) in enumerate(places) if which == one] for one in (first, second))
    pairs = [
        (a, b) for a, b in product(left, right) if not named or _name(places[a][1]) == _name(places[b][1])
    ]
    if len(left) == len(right) == 1:
        check_alike(places[left[0]][1], places[right[0]][1])
    return [(a, b) for a, b in pairs if _alike(places[a][1], places[b][1])]


def _name(run: RunView) -> tuple[str, str | None]:
    return run.agent, run.model


def _alike(a: RunView, b: RunView) -> bool:
    return (a.benchmark, a.dataset) == (b.benchmark, b.dataset)

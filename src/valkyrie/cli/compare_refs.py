"""Words of `compare` as runs, and which of them are compared with which."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import TYPE_CHECKING

from valkyrie.compare.summary import check_alike
from valkyrie.errors import UnknownError, UsageError
from valkyrie.tracker.named_runs import NamedRuns, named_runs

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.views import RunView


def groups_of(opened: Tracker, refs: Sequence[str]) -> list[NamedRuns]:
    """Each word as a job or a run; UsageError for one that is neither, and for one said twice."""
    groups = [_named(opened, ref) for ref in refs]
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


def _named(opened: Tracker, ref: str) -> NamedRuns:
    try:
        return named_runs(opened, ref)
    except UnknownError as error:
        if "/" not in ref:
            raise
        raise UnknownError(f"{error} It is no result folder either.") from None


def pairs_of(groups: Sequence[NamedRuns]) -> list[tuple[int, int]]:
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


def _both_have_several(first: NamedRuns, second: NamedRuns) -> bool:
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

"""Trials of two sides that belong together: the same stimulus, the same number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from valkyrie.errors import UsageError
from valkyrie.evals.comparing.sides import ResultSide
from valkyrie.evals.results import TrialResult

Key = tuple[str, str, str, int]
"""Eval and model (each empty where it does not tell trials apart), stimulus, number."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One trial of each side."""

    task: str
    """The stimulus, with its eval and model where these tell stimuli apart."""
    index: int
    baseline: TrialResult
    treatment: TrialResult


@dataclass(frozen=True, slots=True)
class Matched:
    """All that belong together, and what is left over on each side (`stimulus#number`)."""

    pairs: Sequence[Pair]
    only_baseline: Sequence[str]
    only_treatment: Sequence[str]
    baseline: Mapping[str, Sequence[TrialResult]] = field(default_factory=dict)
    """All trials of the side, by task."""
    treatment: Mapping[str, Sequence[TrialResult]] = field(default_factory=dict)


def match(baseline: ResultSide, treatment: ResultSide) -> Matched:
    """By stimulus and number; by eval and model as well where a side has several. UsageError if it cannot."""
    evals = _tells_apart("eval", baseline, treatment)
    models = _tells_apart("model", baseline, treatment)
    left, right = (_by_key(side.trials, evals=evals, models=models) for side in (baseline, treatment))
    pairs = [Pair(_task(key), key[3], left[key], right[key]) for key in left if key in right]
    return Matched(pairs, _named(left, right), _named(right, left), _by_task(left), _by_task(right))


def _tells_apart(what: str, baseline: ResultSide, treatment: ResultSide) -> bool:
    """Whether the eval, or the model, is part of what trials are matched by."""
    sides = [_values(what, side.trials) for side in (baseline, treatment)]
    if all(len(values) <= 1 for values in sides):
        return False
    if not sides[0] & sides[1]:
        told = [", ".join(sorted(values)) or "none" for values in sides]
        raise UsageError(
            f"{baseline.name} and {treatment.name} have no {what} in common ({told[0]}; {told[1]}) "
            f"and several of them: compare folders with one {what} each."
        )
    return True


def _values(what: str, trials: Iterable[TrialResult]) -> set[str]:
    return {(trial.eval_name if what == "eval" else trial.model) or "" for trial in trials} - {""}


def _by_key(trials: Iterable[TrialResult], *, evals: bool, models: bool) -> dict[Key, TrialResult]:
    """Of two results of one trial the later counts."""
    return {
        (
            trial.eval_name if evals else "",
            (trial.model or "") if models else "",
            trial.stimulus,
            trial.index,
        ): trial
        for trial in trials
    }


def _by_task(trials: Mapping[Key, TrialResult]) -> Mapping[str, Sequence[TrialResult]]:
    found: dict[str, list[TrialResult]] = {}
    for key, trial in trials.items():
        found.setdefault(_task(key), []).append(trial)
    return found


def _task(key: Key) -> str:
    evaluated, model, stimulus, _ = key
    named = f"{evaluated}/{stimulus}" if evaluated else stimulus
    return f"{named} [{model}]" if model else named


def _named(mine: Iterable[Key], theirs: dict[Key, TrialResult]) -> list[str]:
    return [f"{_task(key)}#{key[3]}" for key in mine if key not in theirs]

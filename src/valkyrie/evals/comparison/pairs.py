"""Read two result folders, pair their trials, and say which of a pair did better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from valkyrie.domain import Json
from valkyrie.errors import UsageError, UserError
from valkyrie.evals.records import read_results_file
from valkyrie.evals.results import TrialResult

RESULTS = "results.jsonl"
_TIMESTAMP = 19
"""Characters of a folder's name that is a time: 2025-01-15T10-30-00."""


def names_results(word: str) -> bool:
    """Return whether a word of the command line means a result folder or file, not a run or a job."""
    path = Path(word).expanduser()
    if word in (".", "..") or word.startswith(("/", "./", "../", "~")) or word.endswith(("/", ".jsonl")):
        return True
    if "/" in word:  # a run may be named JOB/AGENT
        return path.exists()
    return path.is_dir() and _within(path) is not None


def find_results(word: str) -> Path:
    """The results.jsonl a word stands for: itself, in the folder, or in the newest folder inside it."""
    path = Path(word).expanduser()
    if path.is_file():
        return path
    if not path.exists():
        raise UsageError(f"There is no {path}; give a result folder or a {RESULTS}.")
    found = _within(path)
    if found is None:
        raise UsageError(f"There is no {RESULTS} in {path}.{_inside(path)}")
    return found


def _within(folder: Path) -> Path | None:
    if (folder / RESULTS).is_file():
        return folder / RESULTS
    stamped = [one for one in _children(folder) if _is_time(one.parent.name)]
    return max(stamped, key=lambda file: file.parent.name, default=None)


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.glob(f"*/{RESULTS}"))
    except OSError:
        return []


def _is_time(name: str) -> bool:
    return len(name) >= _TIMESTAMP and name[:4].isdigit() and name[10:11] == "T"


def _inside(folder: Path) -> str:
    names = [one.parent.name for one in _children(folder)]
    return f" Folders in it have one: {', '.join(names[:10])}." if names else ""


# The two sides of a comparison: result folders, read.


@dataclass(frozen=True, slots=True)
class ResultSide:
    """One side."""

    name: str
    """What people call it."""
    file: Path
    trials: Sequence[TrialResult]

    @property
    def folder(self) -> Path:
        """What paths in its records are relative to."""
        return self.file.parent


def read_sides(baseline: str, treatment: str) -> tuple[ResultSide, ResultSide]:
    """Both sides; UsageError where they are not two, UserError where a file cannot be read."""
    files = find_results(baseline), find_results(treatment)
    if files[0].resolve() == files[1].resolve():
        raise UsageError(f"{baseline!r} and {treatment!r} are the same results; give two of them.")
    trials = [_read(file) for file in files]
    names = _names((baseline, treatment), files, trials)
    first, second = (
        ResultSide(name, file, own) for name, file, own in zip(names, files, trials, strict=True)
    )
    return first, second


def _read(file: Path) -> list[TrialResult]:
    trials = read_results_file(file)
    if not trials:
        raise UserError(f"{file} holds no trial results.")
    variants = list(dict.fromkeys(trial.variant for trial in trials))
    if len(variants) > 1:
        raise UsageError(
            f"{file} holds several variants ({', '.join(variants[:5])}); compare the folders of two of them."
        )
    return trials


def _folder(word: str) -> str:
    """The name of the folder someone named: `before` says more than the time of the eval in it."""
    path = Path(word).expanduser().resolve()
    return path.name if path.is_dir() else path.parent.name


def _names(
    words: tuple[str, str], files: tuple[Path, Path], trials: Sequence[Sequence[TrialResult]]
) -> tuple[str, str]:
    """The variants where they differ, else the folders as they were given or found, else the words."""
    variants = trials[0][0].variant, trials[1][0].variant
    if variants[0] != variants[1]:
        return variants
    said = _folder(words[0]), _folder(words[1])
    if files[0].name == files[1].name and said[0] != said[1]:
        return said
    folders = files[0].resolve().parent.name, files[1].resolve().parent.name
    if files[0].name == files[1].name and folders[0] != folders[1]:
        return folders
    return (words[0], words[1]) if words[0] != words[1] else (f"{words[0]} (A)", f"{words[1]} (B)")


# Trials of two sides that belong together: the same stimulus, the same number.

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
class MatchedTrials:
    """All that belong together, and what is left over on each side (`stimulus#number`)."""

    pairs: Sequence[Pair]
    only_baseline: Sequence[str]
    only_treatment: Sequence[str]
    baseline: Mapping[str, Sequence[TrialResult]] = field(default_factory=dict)
    """All trials of the side, by task."""
    treatment: Mapping[str, Sequence[TrialResult]] = field(default_factory=dict)


def match(baseline: ResultSide, treatment: ResultSide) -> MatchedTrials:
    """By stimulus and number; by eval and model as well where a side has several. UsageError if it cannot."""
    evals = _tells_apart("eval", baseline, treatment)
    models = _tells_apart("model", baseline, treatment)
    left, right = (_by_key(side.trials, evals=evals, models=models) for side in (baseline, treatment))
    pairs = [Pair(_task(key), key[3], left[key], right[key]) for key in left if key in right]
    return MatchedTrials(pairs, _named(left, right), _named(right, left), _by_task(left), _by_task(right))


def _tells_apart(what: str, baseline: ResultSide, treatment: ResultSide) -> bool:
    """Return whether the eval, or the model, is part of what trials are matched by."""
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


# Who of a pair did better: by its verdicts, or by what judges said.

Winner = Literal["baseline", "treatment", "tie"]
MUCH, SLIGHTLY = 1.0, 0.4
_NEAR = 1e-9


@dataclass(frozen=True, slots=True)
class PairOutcome:
    """What became of one pair. `score` is from −1 (baseline much better) to 1 (treatment much better)."""

    pair: Pair
    score: float
    evidence: str
    errored: str | None = None
    """Why it counts nowhere: `execution`, `grader`, `judge`, `ungraded`."""
    disagreed: bool = False
    """A judge changed its mind with the order."""
    judged: bool = False

    @property
    def winner(self) -> Winner:
        if abs(self.score) < _NEAR:
            return "tie"
        return "treatment" if self.score > 0 else "baseline"

    @property
    def magnitude(self) -> str:
        """The nearest of the three words; a mean half-way counts as the larger."""
        size = abs(self.score) + _NEAR
        if size >= (MUCH + SLIGHTLY) / 2:
            return "much-better"
        return "slightly-better" if size >= SLIGHTLY / 2 else "equal"

    def to_json(self) -> Json:
        """As the comparison record has it."""
        found: Json = {
            "trialIndex": self.pair.index,
            "winner": self.winner,
            "magnitude": self.magnitude,
            "score": self.score,
            "evidence": self.evidence,
            "baselinePassed": self.pair.baseline.passed,
            "treatmentPassed": self.pair.treatment.passed,
        }
        if self.errored:
            found["errored"] = True
        if self.disagreed:
            found["orderDisagreement"] = True
        return found


def fault_of(pair: Pair) -> PairOutcome | None:
    """A pair of which one side could not be graded, for a reason that is not its agent's doing."""
    told = [
        (side, trial.fault)
        for side, trial in (("baseline", pair.baseline), ("treatment", pair.treatment))
        if trial.fault is not None and not trial.fault.by_agent
    ]
    if not told:
        return None
    kinds = [fault.kind for _, fault in told]
    evidence = "; ".join(f"{side}: {fault.kind} error: {fault.message}" for side, fault in told)
    return PairOutcome(pair, 0.0, evidence, "execution" if "execution" in kinds else "grader")


def by_verdict(pair: Pair) -> PairOutcome:
    """Without a judge: another verdict is much, another score is slight."""
    if fault := fault_of(pair):
        return fault
    before, after = pair.baseline, pair.treatment
    if ended := _ended_by_agent(pair):
        return ended
    if before.passed is None or after.passed is None:
        return PairOutcome(pair, 0.0, "not graded; --judge-model compares the answers themselves", "ungraded")
    if before.passed != after.passed:
        score = MUCH if after.passed else -MUCH
    else:
        apart = (after.score or 0.0) - (before.score or 0.0)
        score = 0.0 if abs(apart) < _NEAR else SLIGHTLY if apart > 0 else -SLIGHTLY
    return PairOutcome(pair, score, f"by verdict: {_verdict(before)}, then {_verdict(after)}")


def _ended_by_agent(pair: Pair) -> PairOutcome | None:
    """A pair that was not graded, of which an agent brought an end about itself: no answer is the worst."""
    ended = [trial.fault is not None and trial.fault.by_agent for trial in (pair.baseline, pair.treatment)]
    if not any(ended) or None not in (pair.baseline.passed, pair.treatment.passed):
        return None
    score = 0.0 if all(ended) else MUCH if ended[0] else -MUCH
    told = [side for side, by_agent in zip(("baseline", "treatment"), ended, strict=True) if by_agent]
    return PairOutcome(pair, score, f"no answer, by the agent's own doing: {' and '.join(told)}")


def _verdict(trial: TrialResult) -> str:
    said = "passed" if trial.passed else "failed"
    return said if trial.score is None else f"{said} ({trial.score:.2f})"


def counted(outcomes: Sequence[PairOutcome]) -> list[PairOutcome]:
    return [one for one in outcomes if one.errored is None]

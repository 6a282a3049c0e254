"""What an eval came to, as data: made from the store, or put together from the trials of a results.jsonl."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from valkyrie.domain import Json, TrialState, ended_by_agent
from valkyrie.grade.protocol import ConstraintResult, GraderResult

if TYPE_CHECKING:
    from valkyrie.views import ScoreView


@dataclass(frozen=True, slots=True)
class TrialFault:
    """Why a trial has no verdict. One that the agent brought about counts as the worst score; others count
    nowhere."""

    kind: Literal["execution", "grader"]
    """The agent could not be run to its end, or a grader could not tell. Neither is a wrong answer."""
    message: str
    category: str = "infrastructure"
    cause: str = "internal"

    @property
    def by_agent(self) -> bool:
        """The agent brought it about; so it counts."""
        return ended_by_agent(TrialState.ERROR, self.category)


def fault_kind(cause: str) -> Literal["execution", "grader"]:
    """Return which kind of fault a cause is: those that begin so are a grader's."""
    return "grader" if cause.startswith(("grader", "judge")) else "execution"


@dataclass(frozen=True, slots=True)
class ScoreVerification:
    """How the score of a trial of the store was verified."""

    confirmed: bool | None = None
    """The score was seen in a fresh sandbox; None: not known."""
    score_confirmed: float | None = None
    evidence: Json | None = None
    category: str | None = None
    cause: str | None = None
    """Why it counts 0 without a verdict."""
    message: str | None = None

    def to_json(self) -> Json:
        """As records have it; what is not known is left out."""
        said: Json = {
            "confirmed": self.confirmed,
            "scoreConfirmed": self.score_confirmed,
            "countedAsZero": True if self.cause else None,
            "category": self.category,
            "cause": self.cause,
            "message": self.message,
            "evidence": self.evidence,
        }
        return {name: value for name, value in said.items() if value is not None}

    @property
    def fault(self) -> TrialFault | None:
        """What is behind a score that no grader gave."""
        if self.cause is None:
            return None
        return TrialFault(
            fault_kind(self.cause), self.message or self.cause, self.category or "agent", self.cause
        )

    @property
    def open_to_tampering(self) -> bool:
        return bool((self.evidence or {}).get("open_to_tampering"))


@dataclass(frozen=True, slots=True)
class TrialResult:
    """One trial of one stimulus."""

    eval_name: str
    stimulus: str
    index: int
    """From 0."""
    model: str | None = None
    executor: str | None = None
    variant: str = "main"
    duration_ms: float = 0.0
    score: float | None = None
    passed: bool | None = None
    """None: not graded (--skip-grade), or a fault that is not the agent's doing."""
    graders: Sequence[GraderResult] = ()
    constraints: Sequence[ConstraintResult] = ()
    """Whether it kept to them; in no score, and in the verdict only where they are enforced."""
    fault: TrialFault | None = None
    transcript: Json | None = None
    """The trajectory of a record, as `trajectory.records.to_record` writes it."""
    attempts: int = 1
    """How often it was tried."""
    graded_at: str | None = None
    run_id: str | None = None
    eval_file: str | None = None
    session_log: Path | None = None
    """What the agent itself wrote while it worked, if it did."""
    artifacts: Path | None = None
    """Files kept of its workspace."""
    patch: Path | None = None
    """What it changed of its workspace, as a patch."""
    threshold: float | None = None
    """What its score was held against, if anything."""
    experiment: Json | None = None
    verification: ScoreVerification | None = None
    """Of a trial of the store; None: nothing is known."""
    planned: int | None = None
    """How many trials its stimulus was to have; None: not known."""
    fraction: bool = True
    """Scores are 0..1; else they are on a scale of the benchmark's own."""
    family: str | None = None
    """The family its stimulus belongs to."""
    ingested: bool = False
    """It ran elsewhere, and its score is what a file said."""
    reason: str | None = None
    """What the grader said last, where it gave no pass."""
    exit_code: int | None = None
    """The agent's."""
    exit_reason: str | None = None
    usage: Json | None = None
    """`inputTokens`, `cacheReadTokens`, `outputTokens`, `cost`, where a run of the store knows them."""
    job: Json | None = None
    """The job its run belongs to: `id`, `name`, and the run's `position` in it."""
    log: Path | None = None
    """The log of its last attempt, where that was written beside the results."""
    workspace: Path | None = None
    """Where its workspace is kept as the agent left it."""
    kept_in: Path | None = None
    """The output folder that has its log and files already; its paths are relative to that."""

    @property
    def metrics(self) -> Json:
        """What it used, as its run or its trajectory says: `tokenUsage`, `cost`."""
        if self.usage is not None:
            return {"tokenUsage": self.usage, "cost": self.usage.get("cost")}
        said = (self.transcript or {}).get("metrics")
        return said if isinstance(said, dict) else {}

    @property
    def broke(self) -> Sequence[ConstraintResult]:
        """Constraints it did not keep to that fail it."""
        return [one for one in self.constraints if one.enforced and not one.held]


@dataclass(frozen=True, slots=True)
class StimulusResult:
    """All trials of one stimulus with one model."""

    name: str
    prompt: str
    trials: Sequence[TrialResult]
    planned: int
    threshold: float | None = None

    @property
    def graded(self) -> Sequence[TrialResult]:
        return [trial for trial in self.trials if trial.passed is not None]

    @property
    def passes(self) -> int:
        return sum(1 for trial in self.trials if trial.passed)

    @property
    def faults(self) -> Sequence[TrialResult]:
        return [trial for trial in self.trials if trial.fault is not None]

    @property
    def score(self) -> float | None:
        scores = [trial.score for trial in self.graded if trial.score is not None]
        return sum(scores) / len(scores) if scores else None

    @property
    def passed(self) -> bool:
        """With a threshold: its mean score reaches it; without: every graded trial passed.

        A broken constraint that is enforced fails it either way.
        """
        if not self.graded or any(trial.broke for trial in self.trials):
            return False
        if self.threshold is not None:
            return _reaches(self.score, self.threshold)
        return all(trial.passed for trial in self.graded)


@dataclass(frozen=True, slots=True)
class SpecResult:
    """One spec with one model (and variant)."""

    name: str
    file: str
    model: str | None
    executor: str
    stimuli: Sequence[StimulusResult]
    threshold: float | None = None
    variant: str = "main"
    skipped: str | None = None
    """Why nothing was run: `runs: 0`."""
    run_id: str | None = None
    graded: bool = True
    """False with --skip-grade."""
    score: ScoreView | None = None
    """The named numbers of a run of the store."""
    read_trials: Callable[[], Iterator[TrialResult]] | None = None
    """Reads its trials in the order of their plan; None: they are all here."""

    def each_trial(self) -> Iterator[TrialResult]:
        """Yield its trials; of a run of the store without holding them all."""
        return iter(self.trials) if self.read_trials is None else self.read_trials()

    @property
    def trials(self) -> Sequence[TrialResult]:
        return [trial for stimulus in self.stimuli for trial in stimulus.trials]

    @property
    def ingested(self) -> bool:
        """Whether trials of it ran elsewhere, and their scores are what a file said."""
        return any(trial.ingested for trial in self.trials)

    @property
    def faults(self) -> Sequence[TrialResult]:
        return [trial for trial in self.trials if trial.fault is not None]

    @property
    def missing(self) -> int:
        """Trials that never ended: the eval was interrupted."""
        return sum(stimulus.planned - len(stimulus.trials) for stimulus in self.stimuli)

    @property
    def mean_score(self) -> float | None:
        """The mean over stimuli of the mean over their graded trials."""
        scores = [score for stimulus in self.stimuli if (score := stimulus.score) is not None]
        return sum(scores) / len(scores) if scores else None

    @property
    def passed(self) -> bool:
        """With a threshold: the mean score reaches it; without: every stimulus passed.

        What was not graded on purpose fails nothing; a broken constraint that is enforced does.
        """
        graded = [stimulus for stimulus in self.stimuli if stimulus.graded]
        if not self.graded or not graded:
            return True
        if self.threshold is None:
            return all(stimulus.passed for stimulus in graded)
        return _reaches(self.mean_score, self.threshold) and not any(trial.broke for trial in self.trials)

    @property
    def ok(self) -> bool:
        """Nothing to complain about: verdict, faults, completeness."""
        return self.passed and not self.faults and not self.missing


def _reaches(score: float | None, threshold: float) -> bool:
    """A mean of tenths must not miss a threshold of tenths by the last bit."""
    return (score or 0.0) >= threshold - 1e-9


@dataclass(frozen=True, slots=True)
class Invocation:
    """Everything one command ran."""

    evals: Sequence[SpecResult]
    id: str | None = None
    """The job it is stored as."""
    name: str = ""
    started_at: str = ""
    folder: Path | None = None
    """Where its files are written."""
    notices: Sequence[str] = field(default_factory=tuple)
    command: Sequence[str] = ()
    """The words that ran it, to be run again."""
    again: Sequence[Sequence[str]] = ()
    """The words that run its runs again, where they are runs of a store."""
    sentences: Callable[[], Sequence[str]] | None = None
    """Compares its runs, in words; None: there is nothing to compare."""

    @property
    def exit_code_of_errors(self) -> int:
        """1 where something could not be run or graded; verdicts do not count."""
        return 1 if any(one.faults or one.missing for one in self.evals) else 0

    @property
    def exit_code(self) -> int:
        """0 when all is well; a threshold of 0 makes every verdict pass, faults remain."""
        return 0 if all(one.ok for one in self.evals) else 1


# Trial results put together again to what an eval came to.


def invocation_of(
    trials: Iterable[TrialResult], *, name: str = "", threshold: float | None = None
) -> Invocation:
    """Records put together again: by eval, model, variant and run, in the order they came.

    Of two results for one trial the later counts. Where records do not say how many trials were planned, the
    highest index tells of gaps.
    """
    groups: dict[tuple[Any, ...], dict[str, dict[int, TrialResult]]] = {}
    for trial in trials:
        key = (trial.eval_name, trial.eval_file, trial.model, trial.variant, trial.run_id)
        groups.setdefault(key, {}).setdefault(trial.stimulus, {})[trial.index] = trial
    return Invocation([_eval_of(stimuli, threshold) for stimuli in groups.values()], name=name)


def _eval_of(stimuli: dict[str, dict[int, TrialResult]], threshold: float | None) -> SpecResult:
    found = [_stimulus_of(list(by_index.values()), threshold) for by_index in stimuli.values()]
    first = found[0].trials[0]
    every = [trial for stimulus in found for trial in stimulus.trials]
    return SpecResult(
        name=first.eval_name,
        file=first.eval_file or "",
        model=first.model,
        executor=first.executor or "",
        stimuli=found,
        threshold=found[0].threshold,
        variant=first.variant,
        run_id=first.run_id,
        graded=_is_graded(every),
    )


def _is_graded(trials: Sequence[TrialResult]) -> bool:
    """Return whether graders were asked: one gave a verdict, or no trial could be run to its end."""
    if any(trial.graders or (trial.passed is not None and trial.fault is None) for trial in trials):
        return True
    return all(trial.fault is not None for trial in trials)


def _stimulus_of(trials: Sequence[TrialResult], threshold: float | None) -> StimulusResult:
    ordered = sorted(trials, key=lambda trial: trial.index)
    held = next((trial.threshold for trial in ordered if trial.threshold is not None), None)
    return StimulusResult(
        name=ordered[0].stimulus,
        prompt=next((prompt for trial in ordered if (prompt := _prompt(trial))), ""),
        trials=ordered,
        planned=max(len(ordered), ordered[-1].index + 1, *(trial.planned or 0 for trial in ordered)),
        threshold=held if threshold is None else threshold,
    )


def _prompt(trial: TrialResult) -> str:
    """Return what the agent was asked, where its trajectory says so."""
    story = trial.transcript or {}
    stimulus, events = story.get("stimulus"), story.get("events")
    if isinstance(stimulus, dict) and isinstance(stimulus.get("prompt"), str):
        return str(stimulus["prompt"])
    for event in events if isinstance(events, list) else ():
        if isinstance(event, dict) and event.get("type") == "user_message":
            content = event["data"].get("content") if isinstance(event.get("data"), dict) else None
            return content if isinstance(content, str) else ""
    return ""

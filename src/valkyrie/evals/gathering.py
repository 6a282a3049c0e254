"""Trial results put together again to what an eval came to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from valkyrie.evals.results import EvalResult, Invocation, StimulusResult, TrialResult


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


def _eval_of(stimuli: dict[str, dict[int, TrialResult]], threshold: float | None) -> EvalResult:
    found = [_stimulus_of(list(by_index.values()), threshold) for by_index in stimuli.values()]
    first = found[0].trials[0]
    every = [trial for stimulus in found for trial in stimulus.trials]
    return EvalResult(
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
    """What the agent was asked, where its trajectory says so."""
    story = trial.transcript or {}
    stimulus, events = story.get("stimulus"), story.get("events")
    if isinstance(stimulus, dict) and isinstance(stimulus.get("prompt"), str):
        return str(stimulus["prompt"])
    for event in events if isinstance(events, list) else ():
        if isinstance(event, dict) and event.get("type") == "user_message":
            content = event["data"].get("content") if isinstance(event.get("data"), dict) else None
            return content if isinstance(content, str) else ""
    return ""

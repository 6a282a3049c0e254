"""An eval's results as the document of --json."""

from __future__ import annotations

from typing import TYPE_CHECKING

from valkyrie.nouns import Json

if TYPE_CHECKING:
    from valkyrie.evals.results import EvalResult, Invocation, StimulusResult
    from valkyrie.evals.writing import Written


def document(invocation: Invocation, written: Written | None, *, interrupted: bool) -> Json:
    """What --json prints at the end."""
    return {
        "id": invocation.id,
        "name": invocation.name,
        "folder": str(written.folder) if written else None,
        "interrupted": interrupted,
        "passed": invocation.exit_code == 0 and not interrupted,
        "evals": [_eval(one) for one in invocation.evals],
    }


def _eval(one: EvalResult) -> Json:
    from valkyrie.evals.figures import figures

    found = figures([one])
    interval, method = found.score_interval
    low, high = found.score_range or ((found.score, found.score) if found.fraction else (None, None))
    return {
        "name": one.name,
        "file": one.file,
        "variant": one.variant,
        "model": one.model,
        "executor": one.executor,
        "run_id": one.run_id,
        "threshold": one.threshold,
        "skipped": one.skipped,
        "passed": one.passed,
        "missing": one.missing,
        "errors": len(one.faults),
        "score": found.score,
        "interval": interval,
        "interval_method": method if interval else None,
        "pass_rate": found.pass_rate,
        "ungraded": found.ungraded,
        "score_low": low,
        "score_high": high,
        "counted_as_zero": found.by_agent,
        "stimuli": [_stimulus(stimulus) for stimulus in one.stimuli],
    }


def _stimulus(one: StimulusResult) -> Json:
    return {
        "name": one.name,
        "planned": one.planned,
        "graded": len(one.graded),
        "passes": one.passes,
        "score": one.score,
        "passed": one.passed,
        "errors": [
            {
                "trial": trial.index,
                "kind": trial.fault.kind,
                "cause": trial.fault.cause,
                "message": trial.fault.message,
            }
            for trial in one.faults
            if trial.fault
        ],
    }

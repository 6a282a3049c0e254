"""Results made by hand for the tests of reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from valkyrie.evals.results import Invocation, SpecResult, StimulusResult, TrialFault, TrialResult
from valkyrie.grade.protocol import GraderResult

BROKEN = TrialFault("execution", "The sandbox could not be started.", cause="sandbox_failed")
UNSURE = TrialFault("grader", "The judge did not answer.", category="benchmark", cause="judge_failed")


def grader(
    passed: bool, name: str = "says-foo", evidence: str = "looked for foo", **more: Any
) -> GraderResult:
    return GraderResult(name, "output-contains", passed, float(passed), evidence, **more)


def trial(passed: bool | None, index: int = 0, **more: Any) -> TrialResult:
    graded: dict[str, Any] = {}
    if passed is not None:
        graded = {"score": float(passed), "passed": passed, "graders": (grader(passed),)}
    given = {"eval_name": "my-eval", "stimulus": "greet", "executor": "mock", "duration_ms": 8300.0}
    return TrialResult(**{**given, "index": index, **graded, **more})


def broken(index: int = 0, fault: TrialFault = BROKEN, **more: Any) -> TrialResult:
    return trial(None, index, fault=fault, **more)


def stimulus(outcomes: Sequence[Any], name: str = "greet", **more: Any) -> StimulusResult:
    """From verdicts (True, False, None for not graded) or faults, one per trial."""
    trials = [
        broken(index, one, stimulus=name) if isinstance(one, TrialFault) else trial(one, index, stimulus=name)
        for index, one in enumerate(outcomes)
    ]
    return StimulusResult(
        **{"name": name, "prompt": "Say foo.", "planned": len(trials), **more, "trials": trials}
    )


def an_eval(*stimuli: StimulusResult, **more: Any) -> SpecResult:
    given = {"name": "my-eval", "file": "eval.yaml", "model": "gpt-5.5", "executor": "mock"}
    return SpecResult(**{**given, **more, "stimuli": stimuli})


def invoked(*evals: SpecResult, **more: Any) -> Invocation:
    return Invocation(evals, **{"id": "job-1", "started_at": "2025-01-15T10:30:00.005+00:00", **more})

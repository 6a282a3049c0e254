"""Variants of an experiment are compared by the rules of runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.unit.evals.made import BROKEN, an_eval, invoked, stimulus
from valkyrie.evals.experiments import experiment_result, report, sentences, summary_lines
from valkyrie.evals.results import SpecResult, TrialFault

TIMED_OUT = TrialFault("execution", "took too long", "agent", "agent_timeout")


def variant(name: str, outcomes: list[Any], **more: Any) -> SpecResult:
    """An eval of a variant with one trial of each stimulus; its agent's faults count, as results are made."""
    made = []
    for number, outcome in enumerate(outcomes):
        one = stimulus([outcome], f"s{number}")
        trials = [
            replace(trial, passed=False, score=0.0) if trial.fault and trial.fault.by_agent else trial
            for trial in one.trials
        ]
        made.append(replace(one, trials=trials))
    return an_eval(*made, variant=name, **more)


def test_an_end_by_the_agents_doing_is_the_worst_score() -> None:
    invocation = invoked(variant("fast", [True] * 8), variant("slow", [TIMED_OUT] * 5 + [True] * 3))
    result = experiment_result(invocation, baseline="fast")
    (one,) = result.comparisons["score"]
    assert (one.difference, one.tasks, one.verdict, one.excluded) == (-0.625, 8, "worse", {})
    assert sentences(result)[0].startswith("fast beats slow by 62.5 points")
    assert "| slow | 3/8 | 37.5% |" in report(result)


def test_other_errors_are_bounds_and_no_verdict_is_said_that_they_could_turn() -> None:
    invocation = invoked(variant("fast", [True] * 8), variant("lost", [BROKEN] * 5 + [False] * 3))
    result = experiment_result(invocation, baseline="fast")
    (one,) = result.comparisons["score"]
    left_out = {"infrastructure": [f"my-eval / s{number}" for number in range(5)]}
    assert (one.a_lacks, one.tasks, one.excluded) == (5, 3, left_out)
    assert one.lowest and one.highest and (one.lowest.difference, one.highest.difference) == (-1.0, -0.375)
    assert "| lost | 0/8 | 0.0% to 62.5% |" in report(result)
    line = summary_lines(result)[1]
    assert (line["meanScore"], line["scoreLow"], line["scoreHigh"], line["ungraded"]) == (0.0, 0.0, 0.625, 5)


def test_several_models_of_a_variant_are_averaged_and_nothing_is_missing() -> None:
    both = [variant("one", [True] * 6, model=model) for model in ("m", "n")]
    other = [variant("two", [False] * 6, model=model) for model in ("m", "n")]
    (one,) = experiment_result(invoked(*both, *other), baseline="one").comparisons["score"]
    assert (one.tasks, one.a_lacks, one.b_lacks, one.verdict) == (6, 0, 0, "worse")

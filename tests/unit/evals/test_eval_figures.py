"""The numbers of an eval."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.evals.made import BROKEN, UNSURE, an_eval, grader, stimulus, trial
from valkyrie.evals.figures import (
    EvalOutcome,
    StimulusRepeats,
    curve,
    figures,
    repeats_of,
    stimulus_outcome,
    used_by,
)
from valkyrie.evals.phrases import constraints_text, counts_text, score_parts
from valkyrie.evals.records import from_line, to_line
from valkyrie.evals.results import StimulusResult, TrialFault
from valkyrie.grade.protocol import ConstraintResult


def test_four_of_five() -> None:
    found = repeats_of(stimulus([True, True, False, True, True]))
    assert found is not None and found.flaky
    assert (found.rate, found.flakiness) == (0.8, 0.4)
    assert found.pass_at(5) == 1.0
    assert found.pass_all(5) == 0.0
    assert found.pass_all(4) == pytest.approx(0.2)


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n), st.integers(1, n))))
def test_the_formulae_are_the_shares_of_all_choices(case: tuple[int, int, int]) -> None:
    passes, trials, k = case
    chosen = list(combinations([True] * passes + [False] * (trials - passes), k))
    found = StimulusRepeats(passes, trials)
    assert found.pass_at(k) == pytest.approx(sum(map(any, chosen)) / len(chosen))
    assert found.pass_all(k) == pytest.approx(sum(map(all, chosen)) / len(chosen))


def test_trials_without_a_verdict_are_no_wrong_answers() -> None:
    found = repeats_of(stimulus([True, BROKEN, UNSURE, True]))
    assert found == StimulusRepeats(2, 2) and not found.flaky
    assert repeats_of(stimulus([BROKEN])) is None


@pytest.mark.parametrize(
    ("outcomes", "more", "outcome"),
    [
        ([True], {}, EvalOutcome.PASSED),
        ([True, False], {}, EvalOutcome.FAILED),
        ([True, False], {"threshold": 0.5}, EvalOutcome.PASSED),
        ([False, BROKEN], {}, EvalOutcome.FAILED),
        ([False, BROKEN], {"threshold": 0.0}, EvalOutcome.EXECUTION_ERROR),
        ([True, UNSURE], {}, EvalOutcome.GRADER_ERROR),
        ([UNSURE, BROKEN], {}, EvalOutcome.EXECUTION_ERROR),
        ([True], {"planned": 2}, EvalOutcome.NOT_RUN),
        ([], {"planned": 1}, EvalOutcome.NOT_RUN),
        ([None], {}, EvalOutcome.NOT_GRADED),
        ([], {}, EvalOutcome.SKIPPED),
    ],
)
def test_what_a_stimulus_comes_to(outcomes: list[Any], more: Any, outcome: EvalOutcome) -> None:
    assert stimulus_outcome(stimulus(outcomes, **more)) is outcome


def bounded(result: StimulusResult, held: bool, *, enforced: bool = False) -> StimulusResult:
    """The same with a constraint that its trials kept to, or did not."""
    bound = ConstraintResult("max_turns", held, "7 turns, at most 5", enforced)
    return replace(result, trials=[replace(one, constraints=(bound,)) for one in result.trials])


def test_with_a_threshold_the_mean_over_stimuli_decides() -> None:
    good, bad = stimulus([True, True], threshold=0.5), stimulus([False, False], "b", threshold=0.5)
    assert (good.passed, bad.passed) == (True, False)
    assert an_eval(good, bad, threshold=0.5).passed
    assert not an_eval(good, bad, bad, threshold=0.5).passed
    assert not an_eval(good, bad).passed  # without one, every stimulus must pass
    late = TrialFault("execution", "late", "agent", "agent_timeout")
    zero = replace(bad, trials=[replace(bad.trials[0], fault=late)])
    assert not an_eval(good, zero, threshold=0.6).passed


def test_constraints_change_no_verdict_unless_they_are_enforced() -> None:
    free = an_eval(bounded(stimulus([True]), False))
    assert free.passed and free.ok
    assert constraints_text(free.trials) == (
        "constraints: 0 of 1 held; broken: max_turns (7 turns, at most 5)"
    )
    both = [*free.trials, *bounded(stimulus([True]), True).trials]
    assert constraints_text(both) == "constraints: 1 of 2 held; broken: max_turns"
    assert constraints_text(an_eval(stimulus([True])).trials) == ""
    for threshold in (None, 0.5):
        held = an_eval(
            bounded(stimulus([True], threshold=threshold), True, enforced=True), threshold=threshold
        )
        broke = an_eval(
            bounded(stimulus([True], threshold=threshold), False, enforced=True), threshold=threshold
        )
        assert (held.passed, broke.passed) == (True, False)


def test_constraints_stand_in_records() -> None:
    (trial,) = an_eval(bounded(stimulus([True]), False)).trials
    record = to_line(trial)
    assert record["gradeResult"]["constraints"] == [
        {"name": "max_turns", "held": False, "evidence": "7 turns, at most 5"}
    ]
    assert record["gradeResult"]["evidence"] == "1 of 1 graders passed; constraints: 0 of 1 held"
    assert from_line(record).constraints == trial.constraints


def test_an_eval_counts_and_averages_over_stimuli() -> None:
    found = figures(
        [
            an_eval(stimulus([True, True, False, False]), stimulus([True, BROKEN], "b")),
            an_eval(stimulus([UNSURE], "c"), stimulus([False], "d", planned=3)),
        ]
    )
    assert found.trials == {
        EvalOutcome.PASSED: 3,
        EvalOutcome.FAILED: 3,
        EvalOutcome.EXECUTION_ERROR: 1,
        EvalOutcome.GRADER_ERROR: 1,
        EvalOutcome.NOT_RUN: 2,
    }
    assert (found.counted, found.ungraded, found.by_agent, found.flaky) == (6, 4, 0, 1)
    assert found.score == found.pass_rate == pytest.approx((0.5 + 1 + 0) / 3)
    interval, method = found.score_interval
    assert interval and interval[0] <= 0.5 <= interval[1] and method == "Gaffke over tasks"


TIMED_OUT = TrialFault("execution", "took too long", "agent", "agent_timeout")


def counted(one: StimulusResult, score: float = 0.0) -> StimulusResult:
    """The stimulus with its agent's faults counted, as results are made."""
    trials = [
        replace(trial, passed=False, score=score) if trial.fault and trial.fault.by_agent else trial
        for trial in one.trials
    ]
    return replace(one, trials=trials)


def test_an_end_by_the_agents_doing_counts_and_other_errors_make_a_range() -> None:
    stimuli = [stimulus([number < 4 or TIMED_OUT], str(number)) for number in range(8)]
    found = figures([an_eval(*map(counted, stimuli))])
    assert (found.score, found.counted, found.by_agent, found.score_range) == (0.5, 8, 4, None)
    assert score_parts(found)[0].startswith("score 50.0% (95% interval ")
    assert counts_text(found).endswith("; 4 errors by the agent's own doing count 0")
    found = figures(
        [an_eval(*map(counted, stimuli), stimulus([BROKEN], "lost"), stimulus([], "x", planned=1))]
    )
    assert (found.score, found.counted, found.ungraded, found.score_range) == (0.5, 8, 2, (0.4, 0.6))
    assert score_parts(found)[0] == "score 40.0% to 60.0%, depending on 2 ungraded trials"
    assert score_parts(found)[1].startswith("without them: 50.0% (95% interval ")


def test_on_a_scale_of_its_own_an_end_by_the_agents_doing_is_the_worst_grade() -> None:
    low = StimulusResult("low", "", [trial(False, score=-6.0, fraction=False)], 1)
    high = StimulusResult("high", "", [trial(True, score=12.0, fraction=False)], 1)
    found = figures([an_eval(low, high, counted(stimulus([TIMED_OUT], "late"), -6.0))])
    assert (found.fraction, found.score, found.score_range) == (False, 0.0, None)
    assert score_parts(found)[0].startswith("score 0 (")
    assert "1 error by the agent's own doing counts as the worst score" in counts_text(found)


def test_intervals_are_clopper_and_pearsons_where_stimuli_pass_or_fail() -> None:
    found = figures([an_eval(*(stimulus([number < 8], str(number)) for number in range(10)))])
    interval, method = found.pass_interval
    assert method == "Gaffke over tasks" and interval == pytest.approx((0.4439, 0.9748), abs=1e-4)
    assert figures([an_eval(stimulus([BROKEN]))]).score_interval == (None, "nothing was graded")


def test_curves_go_as_far_as_every_stimulus() -> None:
    points = curve(
        [stimulus([True, False, True]), stimulus([False, False, True, True], "b"), stimulus([BROKEN], "c")]
    )
    assert [point.k for point in points] == [1, 2, 3]
    assert (points[0].pass_at, points[0].pass_all) == pytest.approx([(2 / 3 + 1 / 2) / 2] * 2)
    low, high = points[1].pass_all_interval or (1.0, 0.0)
    assert 0 <= low < points[1].pass_all < high <= 1
    assert points[2].pass_at == 1.0 and points[2].pass_all == 0.0
    assert curve([]) == []


def test_tokens_and_cost_are_added_up_whatever_stands_there() -> None:
    story = {"metrics": {"tokenUsage": {"inputTokens": 100, "outputTokens": 20}, "cost": 0.5}}
    judged = grader(True, usage={"inputTokens": 7, "outputTokens": 3, "cost": 0.25})
    odd = {"metrics": {"tokenUsage": {"inputTokens": "many", "outputTokens": -5}, "cost": float("nan")}}
    found = used_by(
        [
            trial(True, transcript=story, graders=(judged,)),
            trial(True, transcript=odd),
            trial(True, transcript={"metrics": []}),
            trial(None),
        ]
    )
    assert (found.input_tokens, found.output_tokens, found.judge_tokens) == (100, 20, 10)
    assert (found.cost, found.judge_cost, found.total_cost) == (0.5, 0.25, 0.75)
    assert used_by([trial(True)]).total_cost is None

"""Weights, thresholds, constraints and errors: how results become a verdict."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.grade.sample_transcripts import called, outcome, results_of, said, skill, story
from valkyrie.errors import GraderError, JudgeError
from valkyrie.evals.figures import StimulusRepeats
from valkyrie.grade.builtin.usage import budget_score
from valkyrie.grade.graders import (
    SCORING_TIMEOUT,
    GradingTime,
    MadeGrader,
    checks,
    grade_all,
    judges,
    make_graders,
    verdict,
)
from valkyrie.grade.protocol import ConstraintResult, GraderInput, GraderResult, Need, check_constraints
from valkyrie.specs.model import Constraints, GraderSpec, Scoring, SpecError, Stimulus


def result(
    score: float, *, passed: bool | None = None, weight: float = 1.0, status: Any = "ok"
) -> GraderResult:
    good = score >= 0.5 if passed is None else passed
    return GraderResult("g", "g", good, score, "because", weight=weight, status=status)


@pytest.mark.parametrize(
    ("results", "threshold", "score", "passed"),
    [
        ([result(1), result(1)], None, 1.0, True),
        ([result(1), result(0)], None, 0.5, False),
        ([result(1), result(0)], 0.5, 0.5, True),
        ([result(1), result(0)], 0.51, 0.5, False),
        ([result(1, weight=3), result(0)], 0.75, 0.75, True),
        ([result(0.1), result(0.2)], 0.15, 0.15, True),
        ([result(0), result(0)], 0.0, 0.0, True),
        ([result(0.4, passed=True)], None, 0.4, True),
        ([result(1), result(0, status="skipped")], None, 1.0, True),
        ([result(0, status="skipped")], 1.0, 1.0, True),
        ([result(1, weight=0), result(0, weight=0)], 0.5, 0.5, True),
        ([result(0, weight=0), result(1)], None, 1.0, False),
        ([], None, 1.0, True),
    ],
)
def test_verdict(results: list[GraderResult], threshold: float | None, score: float, passed: bool) -> None:
    found = verdict(results, threshold)
    assert found.score == pytest.approx(score)
    assert found.passed is passed
    assert not found.errors


@pytest.mark.parametrize("threshold", [None, 0.0, 1.0])
def test_with_an_error_there_is_no_verdict(threshold: float | None) -> None:
    found = verdict([result(1), result(0, status="error")], threshold)
    assert not found.passed
    assert [one.status for one in found.errors] == ["error"]
    assert found.score == 1.0


def test_the_documented_numbers_of_several_trials() -> None:
    """passAtK(5, 3, 5) = 1; pass^5 of 4 in 5 is 0, and two of the five disagree in 8 of 20 draws."""
    assert StimulusRepeats(3, 5).pass_at(5) == 1.0
    four = StimulusRepeats(4, 5)
    assert four.pass_at(5) == 1.0
    assert four.pass_all(5) == 0.0
    assert four.flakiness == pytest.approx(0.4)


WEIGHED = [
    (
        GraderSpec("output-contains", {"value": "x"}, name="mine", weight=9),
        {"mine": 2, "output-contains": 3},
        2,
    ),
    (GraderSpec("output-contains", {"value": "x"}, name="mine", weight=9), {"output-contains": 3}, 3),
    (GraderSpec("output-contains", {"value": "x"}, weight=9), {"other": 3}, 9),
    (GraderSpec("output-contains", {"value": "x"}), {"other": 3}, 1),
    (GraderSpec("output-contains", {"value": "x"}), {"output-contains": 0}, 0),
]


@pytest.mark.parametrize(("grader", "weights", "expected"), WEIGHED)
async def test_weights(grader: GraderSpec, weights: dict[str, float], expected: float) -> None:
    found = await results_of([grader], story(said("x")), scoring=Scoring(weights=weights))
    assert [one.weight for one in found] == [expected]


async def test_a_repeated_type_counts_each_time() -> None:
    graders = [GraderSpec("output-contains", {"value": value}) for value in ("x", "y")]
    weights = {"output-contains": 2, "completed": 1}
    found = await results_of(
        [*graders, GraderSpec("exit-success")], story(said("x")), scoring=Scoring(weights=weights)
    )
    assert verdict(found).score == pytest.approx((2 * 1 + 2 * 0 + 1 * 1) / 5)
    assert [one.name for one in found] == ["output-contains", "output-contains", "exit-success"]


def test_a_negative_weight_is_refused() -> None:
    stimulus = Stimulus("s", ("p",), (GraderSpec("completed"),))
    with pytest.raises(SpecError, match="weight"):
        make_graders(stimulus, scoring=Scoring(weights={"completed": -1}))


CONSTRAINED = [
    (Constraints(max_turns=1), "max_turns", "fail"),
    (Constraints(max_turns=2), "max_turns", "pass"),
    (Constraints(max_tokens=10), "max_tokens", "fail"),
    (Constraints(max_tool_calls=0), "max_tool_calls", "fail"),
    (Constraints(max_agent_duration=0.5), "max_agent_duration", "fail"),
    (Constraints(max_duration=0.5), "max_duration", "fail"),
    (Constraints(max_duration=90.0), "max_duration", "pass"),
    (Constraints(expect_tools=("bash",)), "expect_tools", "pass"),
    (Constraints(expect_tools=("edit",)), "expect_tools", "fail"),
    (Constraints(reject_tools=("bash",)), "reject_tools", "fail"),
    (Constraints(reject_tools=("edit",)), "reject_tools", "pass"),
    (Constraints(reject_tools=("*",)), "reject_tools", "fail"),
    (Constraints(expect_skills=("azure",)), "expect_skills", "pass"),
    (Constraints(reject_skills=("other",)), "reject_skills", "pass"),
    (Constraints(reject_skills=("*",)), "reject_skills", "fail"),
]


@pytest.mark.parametrize(("constraints", "name", "expected"), CONSTRAINED)
async def test_constraints_are_checked_beside_the_graders(
    constraints: Constraints, name: str, expected: str
) -> None:
    happened = story(skill("azure"), called("bash", command="ls"), said("one"), said("two"), ms=1000)
    found = await results_of([GraderSpec("exit-success")], happened, constraints=constraints)
    assert [one.name for one in found] == ["exit-success"]  # in no score and no verdict
    held = await check_constraints(constraints, GraderInput(Stimulus("s", ("p",)), happened))
    assert [(one.name, one.held) for one in held] == [(name, expected == "pass")]
    assert held[0].evidence
    assert ConstraintResult.read_all([one.to_json() for one in held]) == held


async def test_no_skill_may_load_and_none_did() -> None:
    given = GraderInput(Stimulus("s", ("p",)), story(said("x")))
    assert [one.held for one in await check_constraints(Constraints(reject_skills=("*",)), given)] == [True]


@pytest.mark.parametrize(
    ("used", "most", "score"),
    [
        (3, 3, 1.0),
        (4, 4, 1.0),
        (6, 4, 0.5),
        (8, 4, 0.0),
        (100, 4, 0.0),
        (1, 0, 0.0),
        (0, 0, 1.0),
        (1, 0.5, 0.5),
    ],
)
def test_over_a_budget_the_score_falls_linearly(used: float, most: float, score: float) -> None:
    assert budget_score(used, most) == score


async def test_over_a_budget_a_grader_fails_with_part_of_its_score() -> None:
    happened = story(*[said("x")] * 6, ms=90_000)
    turns, time = await results_of(
        [GraderSpec("turn-count", {"max": 4}), GraderSpec("wall-time", {"max": "1m"})], happened
    )
    assert (turns.passed, turns.score, time.passed, time.score) == (False, 0.5, False, 0.5)


class Scripted:
    """A grader that does what it is told."""

    type = "scripted"

    def __init__(self, answer: Any, *, judge: bool = False) -> None:
        self.answer = answer
        self.needs = frozenset({Need.JUDGE}) if judge else frozenset()

    async def grade(self, given: GraderInput) -> GraderResult:
        if isinstance(self.answer, Exception):
            raise self.answer
        return GraderResult("own-name", "own-type", True, 1.0, str(self.answer))


def made(*graders: Any) -> list[MadeGrader]:
    return [MadeGrader(one, GraderSpec("scripted"), f"g{number}") for number, one in enumerate(graders)]


GIVEN = GraderInput(Stimulus("s", ("p",)), story(said("x")))


async def test_broken_graders_are_errors_and_the_others_speak() -> None:
    graders = made(Scripted("a"), Scripted(GraderError("no idea")), Scripted(ZeroDivisionError("oops")))
    found = await grade_all(graders, GIVEN)
    assert [outcome(one) for one in found] == ["pass", "error", "error"]
    assert found[0].name == "g0"
    assert (found[1].name, found[1].evidence) == ("g1", "no idea")
    assert (found[2].name, found[2].evidence) == ("g2", "ZeroDivisionError: oops")


async def test_a_judge_that_cannot_be_asked_is_told_to_whoever_retries() -> None:
    graders = made(Scripted("a"), Scripted("b", judge=True), Scripted(JudgeError("busy"), judge=True))
    with pytest.raises(JudgeError, match="busy"):
        await grade_all(graders, GIVEN)
    assert [one.name for one in checks(graders)] == ["g0"]
    assert [one.name for one in judges(graders)] == ["g1", "g2"]
    found = await grade_all(graders, GIVEN, only=lambda one: not one.is_judge)
    assert [one.name for one in found] == ["g0"]


class Endless(Scripted):
    """A grader that never comes to an end."""

    async def grade(self, given: GraderInput) -> GraderResult:
        await asyncio.Event().wait()
        raise AssertionError


async def test_what_was_said_in_time_is_kept() -> None:
    graders = made(Scripted("a"), Endless(""), Scripted("b", judge=True), Endless("", judge=True))
    found = await grade_all(graders, GIVEN, time=GradingTime.from_now(0.05))
    assert [outcome(one) for one in found] == ["pass", "error", "pass", "error"]
    assert "`scoring.timeout`: 0.05 s" in found[1].evidence
    assert [one.details for one in found if one.status == "error"] == [[{"cause": SCORING_TIMEOUT}]] * 2
    assert GradingTime.from_now(None) is None

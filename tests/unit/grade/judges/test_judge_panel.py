"""`panel`: several judges, one grade."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.grade.judges.judge_server import QUICKLY, asked_at, grade, panel_spec, trial
from valkyrie.errors import JudgeError, UserError
from valkyrie.grade.judges import PanelGrader, shared_client
from valkyrie.grade.protocol import GraderResult
from valkyrie.specs.model import GraderSpec, SpecError
from valkyrie.testing import Fault, ModelServer, Say, Script, ToolRequest
from valkyrie.testing.model_server.script import Turn

MODELS = ("judge-a", "judge-b", "judge-c")


async def judged(turns: dict[str, list[Turn]], **config: Any) -> GraderResult:
    """The panel of these models, each with turns of its own."""
    script = Script({"default": [], **turns}, {f'"model": "{name}"': name for name in turns})
    async with ModelServer(script) as server, shared_client(QUICKLY):
        return await PanelGrader(panel_spec(*turns, **config)).grade(asked_at(server, trial()))


def three(*scores: int) -> dict[str, list[Turn]]:
    return {name: [grade(score)] for name, score in zip(MODELS, scores, strict=True)}


@pytest.mark.parametrize(
    ("aggregation", "scores", "score", "passed"),
    [
        ("majority", (5, 3, 1), 2 / 3, True),
        ("majority", (5, 2, 1), 1 / 3, False),
        ("mean", (5, 4, 3), 0.75, True),
        ("mean", (3, 2, 2), 1 / 3, False),
        ("median", (5, 4, 1), 0.75, True),
        ("min", (5, 5, 2), 0.25, False),
        ("min", (5, 5, 3), 0.5, True),
        ("unanimous", (5, 5, 3), 1.0, True),
        ("unanimous", (5, 5, 2), 2 / 3, False),
        (None, (5, 4, 3), 0.75, True),
    ],
)
async def test_how_grades_become_one(
    aggregation: str | None, scores: tuple[int, ...], score: float, passed: bool
) -> None:
    result = await judged(three(*scores), **({"aggregation": aggregation} if aggregation else {}))
    assert result.score == pytest.approx(score)
    assert result.passed is passed


async def test_a_tied_vote_has_not_passed() -> None:
    result = await judged({"judge-a": [grade(5)], "judge-b": [grade(1)]}, aggregation="majority")
    assert (result.score, result.passed) == (0.5, False)


CRITERIA = [
    {"name": "correct", "description": "It is right.", "weight": 3, "required": True, "pass_threshold": 0.75},
    {"name": "short", "description": "It is short."},
]


def scored(overall: int, **criteria: int) -> list[Turn]:
    """A judge that scores criteria by their names."""
    listed = [{"criterion": name, "score": score, "reasoning": "so"} for name, score in criteria.items()]
    return [
        ToolRequest(
            "submit_grade", {"rubric_scores": listed, "overall_score": overall, "overall_reasoning": "so"}
        )
    ]


@pytest.mark.parametrize(
    ("first", "second", "more", "score", "passed"),
    [
        ({"correct": 5, "short": 1}, {"correct": 5, "short": 1}, {}, 0.75, True),
        ({"correct": 5, "short": 5}, {"correct": 1, "short": 5}, {}, 0.625, False),  # the required one fails
        ({"correct": 5, "short": 1}, {"correct": 5, "short": 1}, {"overall_threshold": 0.8}, 0.75, False),
        ({"correct": 4, "short": 1}, {"correct": 5, "short": 1}, {"aggregation": "majority"}, 0.75, True),
    ],
)
async def test_criteria_are_scored_one_by_one(
    first: dict[str, int], second: dict[str, int], more: dict[str, Any], score: float, passed: bool
) -> None:
    turns = {"judge-a": scored(3, **first), "judge-b": scored(3, **second)}
    result = await judged(turns, criteria=CRITERIA, **more)
    assert (result.score, result.passed) == (pytest.approx(score), passed)
    assert [one["name"] for one in result.details[:2]] == ["panel/criterion/correct", "panel/criterion/short"]
    assert result.details[0]["metadata"]["criterion"] == "correct"


async def test_a_judge_that_names_no_criterion_is_reminded() -> None:
    wrong, right = scored(3, correctness=5, short=5), scored(3, correct=5, short=5)
    result = await judged({"judge-a": [*wrong, *right]}, criteria=CRITERIA)
    assert (result.score, result.passed) == (1.0, True)
    assert result.usage is not None
    assert result.usage["requests"] == 2


async def test_every_judge_and_the_spread_are_told() -> None:
    result = await judged(three(5, 4, 2), aggregation="median")
    judges, spread = result.details[:-1], result.details[-1]
    assert [one["judge"] for one in judges] == list(MODELS)
    assert [one["normalizedScore"] for one in judges] == [1.0, 0.75, 0.25]
    assert len(judges[0]["rubricScores"]) == 2
    assert (spread["spread"], spread["min"], spread["max"]) == (0.75, 0.25, 1.0)
    assert result.usage is not None
    assert result.usage["requests"] == 3
    assert result.usage["inputTokens"] == sum(one["usage"]["inputTokens"] for one in judges)


@pytest.mark.parametrize(
    "failing", [[Fault("server_error")], [Fault("unauthorized")], [Say("no"), Say("no"), Say("no")]]
)
async def test_one_that_fails_does_not_sink_the_others(failing: list[Turn]) -> None:
    result = await judged({"judge-a": failing, "judge-b": [grade(5)], "judge-c": [grade(4)]})
    assert (result.passed, result.score, result.status) == (True, 0.875, "ok")
    failed = result.details[0]
    assert (failed["judge"], failed["status"]) == ("judge-a", "error")
    assert "1 failed and are left out" in result.evidence


async def test_all_of_them_failing_is_an_error_that_may_pass() -> None:
    with pytest.raises(JudgeError, match="All 2 judges") as caught:
        await judged({"judge-a": [Fault("server_error")], "judge-b": [Say("no"), Say("no"), Say("no")]})
    assert caught.value.cause == "judge_unreachable"


async def test_all_of_them_refusing_is_the_users() -> None:
    with pytest.raises(UserError) as caught:
        await judged({"judge-a": [Fault("unauthorized")], "judge-b": [Fault("unknown_model")]})
    assert caught.value.cause == "judge_refused"


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"models": []},
        {"models": "judge-a"},
        {"models": [{"provider": "openai"}]},
        {"models": ["a"], "judges": ["b"]},
        {"models": ["a"], "aggregation": "mode"},
        {"judges": [{"model": "a", "provider": "nobody"}]},
    ],
)
def test_a_config_that_cannot_be_used(config: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        PanelGrader(GraderSpec("panel", config))


def test_judges_may_be_objects() -> None:
    spec = GraderSpec(
        "panel",
        {
            "judges": ["a", {"model": "b", "provider": "anthropic", "reasoning_effort": "low"}],
            "provider": "openai",
        },
    )
    first, second = PanelGrader(spec).panel.judges
    assert (first.model, first.provider, first.reasoning_effort) == ("a", "openai", None)
    assert (second.model, second.provider, second.reasoning_effort) == ("b", "anthropic", "low")

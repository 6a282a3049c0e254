"""`prompt`: what the judge is asked, what its answer is worth, and what is no answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.grade.judges.judge_server import asked_at, grade, judge, prompt_spec, trial
from valkyrie.errors import GraderError, JudgeError, UsageError, UserError
from valkyrie.grade.judges import PanelGrader, PromptGrader
from valkyrie.grade.protocol import GraderInput
from valkyrie.specs.model import GraderSpec, SpecError, Stimulus
from valkyrie.testing import Fault, ModelServer, Say, TokenCounts, ToolRequest

APIS = ("chat", "responses", "messages")


def spoken(api: str, server: ModelServer) -> GraderInput:
    """The trial, judged at this server over one of its APIs."""
    given = asked_at(server, trial(), provider="anthropic" if api == "messages" else "openai")
    whole = f"{server.url}/v1/responses?api-version=1"
    return replace(given, asking=replace(given.asking, url=whole)) if api == "responses" else given


@pytest.mark.parametrize("api", APIS)
async def test_a_grade_is_normalised_and_meets_the_threshold(api: str) -> None:
    async with judge(grade(4, 5, 3, why="Good, but long.")) as server:
        result = await PromptGrader(prompt_spec(reasoning_effort="low")).grade(spoken(api, server))

    assert (result.passed, result.score, result.kind, result.status) == (True, 0.75, "llm", "ok")
    assert result.evidence == "4/5: Good, but long."
    assert [detail["normalizedScore"] for detail in result.details] == [1.0, 0.5]
    assert server.requests[0].api == api
    assert result.usage is not None and result.usage["inputTokens"] > 0 < result.usage["outputTokens"]


@pytest.mark.parametrize(
    ("config", "given", "score", "passed"),
    [
        ({}, 3, 0.5, True),
        ({}, 2, 0.25, False),
        ({}, 2.6, 0.4, False),
        ({"threshold": 0.25}, 2, 0.25, True),
        ({"threshold": 1}, 4.9, 0.975, False),
        ({"scoring": "scale_1_10"}, 5.5, 0.5, True),
        ({"scoring": "scale_1_10"}, 5, 4 / 9, False),
        ({"scoring": "scale_1_10", "threshold": 0.9}, 10, 1.0, True),
        ({"scoring": "binary"}, 1, 1.0, True),
        ({"scoring": "binary"}, 0, 0.0, False),
        ({"scoring": "binary"}, True, 1.0, True),
        ({"scoring": "scale_1_5"}, "4", 0.75, True),
    ],
)
async def test_scales(config: dict[str, Any], given: Any, score: float, passed: bool) -> None:
    async with judge(grade(given)) as server:
        result = await PromptGrader(prompt_spec(**config)).grade(asked_at(server, trial()))

    assert result.score == pytest.approx(score)
    assert result.passed is passed


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    "wrong",
    [
        Say("I would give it a 4."),
        grade(9),
        grade("good"),
        grade(True),
        grade(None),
        grade(4, 4),  # one criterion of two
        grade(4, 4, 0),
        ToolRequest("submit_grade", {"overall_score": 4}),
        ToolRequest("submit_something", {"overall_score": 4}),
    ],
)
async def test_an_answer_that_is_none_is_asked_for_again_in_the_same_conversation(
    api: str, wrong: Any
) -> None:
    async with judge(wrong, grade(5)) as server:
        result = await PromptGrader(prompt_spec()).grade(spoken(api, server))

    assert result.score == 1.0
    key = "input" if api == "responses" else "messages"
    first, second = (request.body[key] for request in server.requests)
    assert second[: len(first)] == first and len(second) > len(first)
    assert "exactly once" in str(second[-1])
    assert result.usage is not None and result.usage["requests"] == 2


async def test_after_two_reminders_there_is_no_verdict_and_no_fail() -> None:
    async with judge(Say("no"), grade(9), Say("never"), grade(5)) as server:
        with pytest.raises(GraderError, match="no verdict after 2 reminders") as caught:
            await PromptGrader(prompt_spec()).grade(asked_at(server, trial()))

    assert caught.value.cause == "judge_no_verdict"
    assert len(server.requests) == 3


async def test_prompt_rubric_task_and_answer_reach_the_judge() -> None:
    async with judge(grade(5)) as server:
        spec = prompt_spec(prompt="Count the words.", model="judge-2", reasoning_effort="high")
        await PromptGrader(spec).grade(asked_at(server, trial("Hello there.")))

    body = server.requests[0].body
    asked = body["messages"][-1]["content"]
    for part in ("Say hello.", "Count the words.", "1. It is polite.", "2. It is short.", "Hello there."):
        assert part in asked
    assert (body["model"], body["reasoning_effort"]) == ("judge-2", "high")
    assert [tool["function"]["name"] for tool in body["tools"]] == ["submit_grade"]


async def test_a_thinking_model_is_not_forced_to_its_tool() -> None:
    async with judge(grade(5)) as server:
        given = asked_at(server, trial(), provider="anthropic", reasoning_effort="low")
        await PromptGrader(prompt_spec()).grade(given)

    body = server.requests[0].body
    assert body["thinking"]["budget_tokens"] < body["max_tokens"]
    assert "tool_choice" not in body


async def test_only_the_turn_that_is_looked_at_is_told() -> None:
    stimulus = Stimulus("talk", ("First ask.", "Second ask."))
    async with judge(grade(5)) as server:
        spec = GraderSpec("prompt", {"prompt": "Be strict."}, turn=1)
        await PromptGrader(spec).grade(asked_at(server, trial(stimulus=stimulus)))

    asked = server.requests[0].body["messages"][-1]["content"]
    assert "Second ask." in asked and "First ask." not in asked


async def test_tokens_and_cost_are_recorded() -> None:
    answer = grade(5)
    priced = ToolRequest(
        answer.tool, answer.arguments, tokens=TokenCounts(input=1000, output=200, cached=400)
    )
    async with judge(priced) as server:
        given = asked_at(server, trial(), model="gpt-4o")
        usage = (await PromptGrader(prompt_spec()).grade(given)).usage

    assert usage is not None
    assert (usage["inputTokens"], usage["outputTokens"], usage["cachedInputTokens"]) == (1000, 200, 400)
    assert 0 < usage["cost"] < 0.01
    assert usage["costSource"].startswith("prices of")


async def test_a_model_without_a_price_has_no_cost() -> None:
    async with judge(grade(5)) as server:
        usage = (await PromptGrader(prompt_spec()).grade(asked_at(server, trial()))).usage
    assert usage is not None and "cost" not in usage


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"scoring": "scale_1_6"}, "scale_1_5"),
        ({"threshold": 3}, "from 0 to 1"),
        ({"threshold": "half"}, "from 0 to 1"),
        ({"evidence": []}, "`evidence` is empty"),
        ({"evidence": ["dif"]}, "diff"),
        ({"prompt": ["a"]}, "`prompt`"),
        ({"model": ""}, "`model`"),
        ({"reasoning_effort": "very hard"}, "low, medium, high, xhigh"),
        ({"provider": "openal"}, "openai"),
    ],
)
def test_a_config_that_cannot_be_used_is_refused_when_it_is_read(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        PromptGrader(prompt_spec(**config))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("config", "needs"),
    [
        ({}, {"judge", "diff"}),
        ({"evidence": ["trajectory"]}, {"judge"}),
        ({"evidence": ["diff", "repo"]}, {"judge", "diff", "workspace"}),
    ],
)
def test_what_must_be_there(config: dict[str, Any], needs: set[str]) -> None:
    assert PromptGrader(prompt_spec(**config)).needs == needs
    assert PanelGrader(GraderSpec("panel", {"models": ["a"], **config})).needs == needs


async def test_without_prompt_and_rubric_the_judge_goes_by_built_in_criteria() -> None:
    bare = Stimulus("greeting", ("Say hello.",))
    grader = PromptGrader(prompt_spec())
    found = grader.check(bare)
    assert [(one.code, one.severity) for one in found] == [("judge-without-criteria", "warning")]
    assert not PromptGrader(prompt_spec(prompt="Judge.")).check(bare)
    assert len(grader.judging.rubric(bare)) == 3
    async with judge(grade(5, 4, 4, 4)) as server:
        result = await grader.grade(asked_at(server, trial(stimulus=bare)))
        assert "claims nothing that the evidence" in str(server.requests[0].body)
    assert (result.score, len(result.details)) == (1.0, 3)


async def test_without_a_model_the_ways_to_name_one_are_told() -> None:
    given = trial()
    from dataclasses import replace

    with pytest.raises(UsageError) as caught:
        await PromptGrader(prompt_spec()).grade(replace(given, asking=replace(given.asking, model=None)))
    for way in ("--judge-model", "judge_model", "`model`"):
        assert way in str(caught.value)


async def test_an_endpoint_that_stays_down_is_no_fail() -> None:
    async with judge(Fault("overloaded")) as server:
        with pytest.raises(JudgeError, match="Tried 4 times") as caught:
            await PromptGrader(prompt_spec()).grade(asked_at(server, trial()))
    assert (caught.value.cause, caught.value.category) == ("judge_unreachable", "infrastructure")


@pytest.mark.parametrize("kind", ["unauthorized", "unknown_model"])
async def test_a_refusal_is_the_users_and_is_not_tried_again(kind: Any) -> None:
    async with judge(Fault(kind)) as server:
        with pytest.raises(UserError, match="refused") as caught:
            await PromptGrader(prompt_spec()).grade(asked_at(server, trial()))
    assert caught.value.cause == "judge_refused"
    assert len(server.requests) == 1


async def test_a_judge_with_a_small_context_is_shown_less() -> None:
    async with judge(Fault("context_overflow", every=3), grade(5)) as server:
        await PromptGrader(prompt_spec()).grade(asked_at(server, trial("x" * 100_000)))

    sizes = [len(request.body["messages"][-1]["content"]) for request in server.requests]
    assert len(sizes) == 2 and sizes[1] < sizes[0] / 2


async def test_a_judge_that_reads_nothing_is_an_error() -> None:
    async with judge(Fault("context_overflow")) as server:
        with pytest.raises(GraderError) as caught:
            await PromptGrader(prompt_spec()).grade(asked_at(server, trial()))
    assert caught.value.cause == "judge_too_long"

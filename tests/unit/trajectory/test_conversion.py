"""ATIF to events and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from valkyrie.agents.protocol import AgentUsage
from valkyrie.trajectory import AgentInfo, FinalMetrics, StepMetrics, Trajectory, TrajectoryBuilder
from valkyrie.trajectory.conversion import trajectory_of, transcript_of
from valkyrie.trajectory.transcript import Event, Transcript, turn_slice

AGENT = AgentInfo(name="claude-code", version="1.0", model_name="m")


def built(*, final: FinalMetrics | None = None, **calls: Any) -> Trajectory:
    """Two turns: one with a tool, one with words only."""
    builder = TrajectoryBuilder()
    builder.user("Look.", at="2026-01-02T03:04:05Z")
    tools = [("c1", calls.get("tool", "Bash"), calls.get("arguments", {"command": "ls"}))]
    builder.agent(
        "I look.",
        calls=tools,
        reasoning="Hm.",
        metrics=StepMetrics(10, 5, cached_tokens=4),
        at="2026-01-02T03:04:06Z",
    )
    builder.result("c1", "a.txt", failed=calls.get("failed", False))
    builder.agent("There is a.txt.", metrics=StepMetrics(20, 6))
    builder.user("And now?", at="2026-01-02T03:05:05Z")
    builder.agent("Nothing.", metrics=StepMetrics(30, 7), at="2026-01-02T03:05:07Z")
    found = builder.build(AGENT, session_id="s", final=final)
    assert found is not None
    return found


def kinds(transcript: Transcript) -> list[str]:
    return [event.type for event in transcript.events]


def test_every_step_is_told_in_order() -> None:
    told = transcript_of(built())
    first = ["turn_start", "user_message", "reasoning", "assistant_message", "tool_call", "token_usage"]
    second = ["turn_start", "user_message", "assistant_message", "token_usage", "turn_end"]
    assert kinds(told) == [*first, "tool_result", "assistant_message", "token_usage", "turn_end", *second]
    (call,) = told.of_type("tool_call")
    assert call.data == {
        "toolName": "Bash",
        "toolCallId": "c1",
        "arguments": {"command": "ls"},
        "turnId": "0",
    }
    (result,) = told.of_type("tool_result")
    assert (result.data["toolName"], result.data["success"], result.data["result"]) == ("Bash", True, "a.txt")
    assert (told.output, told.model, told.executor, told.session_id) == ("Nothing.", "m", "claude-code", "s")
    assert (told.started_at, told.completed_at) == ("2026-01-02T03:04:05Z", "2026-01-02T03:05:07Z")


def test_measures_come_from_steps_then_from_the_end_then_from_usage() -> None:
    steps = transcript_of(built()).measures
    assert (steps.input_tokens, steps.output_tokens, steps.total_tokens, steps.cache_read_tokens) == (
        60,
        18,
        78,
        4,
    )
    assert (steps.turn_count, steps.tool_call_count, steps.wall_time_ms) == (3, 1, 62_000)
    final = FinalMetrics(total_prompt_tokens=100, total_completion_tokens=20, total_cost_usd=0.5)
    at_end = transcript_of(built(final=final), seconds=2.5).measures
    assert (at_end.total_tokens, at_end.cost, at_end.wall_time_ms, at_end.turn_count) == (120, 0.5, 2500, 3)
    usage = AgentUsage(input_tokens=7, output_tokens=1, cost=0.1, steps=4)
    said = transcript_of(built(final=final), usage=usage).measures
    assert (said.total_tokens, said.cost, said.turn_count) == (8, 0.1, 4)


@pytest.mark.parametrize(
    ("tool", "arguments", "name"),
    [
        ("Skill", {"skill": "tidy"}, "tidy"),
        ("Skill", {"skill": "plugin:tidy", "args": "x"}, "tidy"),
        ("Skill", {"command": "unheard-of"}, "unheard-of"),
        ("activate_skill", {"name": "tidy"}, "tidy"),
        ("Read", {"file_path": "/workspace/.claude/skills/tidy/SKILL.md"}, "tidy"),
        ("shell", {"command": ["bash", "-lc", "cat .agents/skills/tidy/SKILL.md | head"]}, "tidy"),
        ("view", {"path": "C:\\w\\.github\\skills\\tidy\\SKILL.md"}, "tidy"),
        ("Read", {"file_path": "/workspace/.claude/skills/other/SKILL.md"}, None),
        ("Write", {"file_path": "/workspace/.claude/skills/tidy/SKILL.md"}, None),
        ("Bash", {"command": "ls .claude/skills/tidy"}, None),
    ],
)
def test_skills_are_seen_in_what_is_called(tool: str, arguments: dict[str, Any], name: str | None) -> None:
    told = transcript_of(built(tool=tool, arguments=arguments), skills=["tidy"])
    assert [event.data["name"] for event in told.of_type("skill_activation")] == ([name] if name else [])
    assert told.measures.skill_activation_count == bool(name)
    assert told.skills_loaded == ("tidy",)


def test_a_skill_that_could_not_be_loaded_is_none() -> None:
    told = transcript_of(built(tool="Skill", arguments={"skill": "tidy"}, failed=True), skills=["tidy"])
    assert told.measures.skill_activation_count == 0
    assert next(told.of_type("tool_result")).data["success"] is False


def test_reading_on_in_a_skill_is_no_second_time() -> None:
    builder = TrajectoryBuilder()
    path = {"path": "skills/tidy/SKILL.md"}
    for number in range(3):
        builder.agent("", calls=[(f"c{number}", "read", path)])
    trajectory = builder.build(AGENT)
    assert trajectory is not None
    assert transcript_of(trajectory, skills=["tidy"]).measures.skill_activation_count == 1


def test_why_it_gave_up_is_an_error() -> None:
    trajectory = replace(built(), extra={"error": "the model is gone"})
    told = transcript_of(trajectory, end_reason="killed")
    assert told.events[-1] == Event("error", {"message": "the model is gone"})
    assert (told.measures.error_count, told.end_reason) == (1, "killed")


def test_only_numbered_messages_begin_turns_where_there_are_some() -> None:
    builder = TrajectoryBuilder()
    builder.user("Do it.", turn=0)
    builder.agent("Hm.")
    builder.user("That was no command; try again.")
    builder.agent("Done.")
    trajectory = builder.build(AGENT)
    assert trajectory is not None
    told = transcript_of(trajectory)
    assert len(list(told.of_type("turn_start"))) == 1
    only = turn_slice(told, 0)
    assert only is not None and only.output == "Done."


def test_a_turn_is_cut_out() -> None:
    told = transcript_of(built())
    first, second = turn_slice(told, 0), turn_slice(told, 1)
    assert first is not None and second is not None
    assert (first.output, second.output) == ("There is a.txt.", "Nothing.")
    assert (first.measures.tool_call_count, second.measures.tool_call_count) == (1, 0)
    assert (first.measures.total_tokens, second.measures.total_tokens) == (41, 37)
    assert [event.data["content"] for event in second.of_type("user_message")] == ["And now?"]
    assert turn_slice(told, 2) is None
    assert turn_slice(told, -1) is None
    assert len(first.events) + len(second.events) == len(told.events)


def test_foreign_turns_go_by_what_people_said() -> None:
    events = (
        Event("user_message", {"content": "a"}),
        Event("turn_start", {"turnId": "x1"}),
        Event("user_message", {"content": "a skill's text", "source": "skill-tidy"}),
        Event("assistant_message", {"content": "A"}),
        Event("user_message", {"content": "b"}),
        Event("turn_start", {"turnId": "x2"}),
        Event("assistant_message", {"content": "B"}),
    )
    told = Transcript("B", events)
    slices = [turn_slice(told, at) for at in range(3)]
    assert [one.output if one else None for one in slices] == ["A", "B", None]


def test_there_and_back_again() -> None:
    told = transcript_of(built(), skills=["tidy"])
    again = transcript_of(trajectory_of(told), skills=["tidy"])
    assert [(event.type, event.data) for event in again.events] == [
        (event.type, event.data) for event in told.events
    ]
    assert again.measures == replace(told.measures)
    assert again.output == told.output


def test_any_transcript_makes_a_trajectory() -> None:
    strange = (Event("custom", {"a": 1}), Event("tool_result", {"toolCallId": "nobody"}), Event("error", {}))
    for told in (Transcript(""), Transcript("x"), Transcript("x", strange)):
        Trajectory.from_json(trajectory_of(told).to_json())

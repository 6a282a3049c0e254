"""Trajectories: what is written can be read, what is wrong is named, what an agent wrote cannot break it."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valkyrie.trajectory import (
    SCHEMA_VERSION,
    AgentInfo,
    StepMetrics,
    Trajectory,
    TrajectoryBuilder,
    TrajectoryError,
)
from valkyrie.trajectory.conversion import MOST_STEPS, MOST_TEXT

WHOLE: dict[str, Any] = {
    "schema_version": "ATIF-v1.8",
    "session_id": "s-1",
    "trajectory_id": "t-1",
    "agent": {
        "name": "some-agent",
        "version": "1.0",
        "model_name": "some-model",
        "tool_definitions": [{"name": "bash"}],
        "extra": {"a": 1},
    },
    "steps": [
        {"step_id": 1, "source": "system", "message": "Be good.", "is_copied_context": True},
        {"step_id": 2, "timestamp": "2026-01-02T03:04:05Z", "source": "user", "message": "Do it."},
        {
            "step_id": 3,
            "timestamp": "2026-01-02T03:04:05.123+00:00",
            "source": "agent",
            "message": [
                {"type": "text", "text": "I see."},
                {"type": "image", "source": {"media_type": "image/png", "path": "images/1.png"}},
            ],
            "model_name": "some-model",
            "reasoning_effort": "high",
            "reasoning_content": "Hm.",
            "llm_call_count": 1,
            "tool_calls": [
                {"tool_call_id": "c1", "function_name": "bash", "arguments": {"command": "ls"}},
                {"tool_call_id": "c2", "function_name": "task", "arguments": {}},
            ],
            "observation": {
                "results": [
                    {"source_call_id": "c1", "content": "a.txt"},
                    {"source_call_id": "c2", "subagent_trajectory_ref": [{"trajectory_id": "t-2"}]},
                    {"content": "the clock ticked"},
                ]
            },
            "metrics": {
                "prompt_tokens": 10,
                "completion_tokens": 2,
                "cached_tokens": 4,
                "cost_usd": 0.01,
                "prompt_token_ids": [1, 2],
                "logprobs": [-0.5],
            },
        },
    ],
    "final_metrics": {"total_prompt_tokens": 10, "total_cost_usd": 0.01, "total_steps": 3},
    "subagent_trajectories": [
        {
            "schema_version": "ATIF-v1.8",
            "trajectory_id": "t-2",
            "agent": {"name": "helper", "version": "1"},
            "steps": [{"step_id": 1, "source": "agent", "message": "Helped."}],
        }
    ],
}


def test_what_is_read_is_written_again() -> None:
    assert Trajectory.from_json(WHOLE).to_json() == WHOLE
    assert Trajectory.from_json(json.dumps(WHOLE)) == Trajectory.from_json(WHOLE)


@pytest.mark.parametrize("minor", range(9))
def test_every_version_is_read_and_the_newest_written(minor: int) -> None:
    older = deepcopy(WHOLE) | {"schema_version": f"ATIF-v1.{minor}"}
    older["subagent_trajectories"][0]["schema_version"] = f"ATIF-v1.{minor}"
    assert Trajectory.from_json(older).to_json() == WHOLE


def at(data: Any, *path: str | int) -> Any:
    for key in path:
        data = data[key]
    return data


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("schema_version",), "ATIF-v2.0", "trajectory.schema_version: one of ATIF-v1.0"),
        (("sesion_id",), "x", "no field is called 'sesion_id'. Did you mean 'session_id'?"),
        (("agent", "version"), None, "trajectory.agent: version is missing"),
        (("agent", "name"), "", "trajectory.agent.name: may not be empty"),
        (("steps",), [], "trajectory.steps: at least one step"),
        (("steps",), {}, "trajectory.steps: a list is expected, not an object"),
        (("steps", 1, "step_id"), 3, "trajectory.steps[1].step_id: 2 is expected, not 3"),
        (
            ("steps", 1, "source"),
            "robot",
            "steps[1].source: one of system, user, agent is expected",
        ),
        (("steps", 1, "timestamp"), "yesterday", "steps[1].timestamp: 'yesterday' is no ISO 8601 time"),
        (("steps", 1, "metrics"), {"prompt_tokens": 1}, "steps[1].metrics: only steps of the agent"),
        (("steps", 1, "message"), 5, "steps[1].message: a list is expected, not a number"),
        (("steps", 2, "message", 0, "text"), None, "steps[2].message[0]: a part of type text has text"),
        (("steps", 2, "tool_calls", 1, "tool_call_id"), "c1", "steps[2].tool_calls: two have the same"),
        (("steps", 2, "tool_calls", 0, "arguments"), "ls", "tool_calls[0].arguments: an object is expected"),
        (
            ("steps", 2, "observation", "results", 0, "source_call_id"),
            "c9",
            "steps[2].observation.results[0].source_call_id: no call of this step is called 'c9'",
        ),
        (("steps", 2, "metrics", "prompt_tokens"), -1, "metrics.prompt_tokens: a whole number from 0"),
        (("steps", 2, "metrics", "cost_usd"), float("nan"), "metrics.cost_usd: a number is expected"),
        (("steps", 2, "metrics", "cost_usd"), True, "metrics.cost_usd: a number is expected"),
        (
            ("subagent_trajectories", 0, "steps", 0, "step_id"),
            0,
            "trajectory.subagent_trajectories[0].steps[0].step_id: 1 is expected, not 0",
        ),
    ],
)
def test_what_is_wrong_is_named(path: tuple[str | int, ...], value: Any, said: str) -> None:
    wrong = deepcopy(WHOLE)
    at(wrong, *path[:-1])[path[-1]] = value
    with pytest.raises(TrajectoryError) as caught:
        Trajectory.from_json(wrong)
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["", "[", "null", "[]", '"x"', "[" * 100_000])
def test_what_is_no_trajectory_is_refused(text: str) -> None:
    with pytest.raises(TrajectoryError, match="trajectory: "):
        Trajectory.from_json(text)


def test_a_wrong_trajectory_is_not_written() -> None:
    step = Trajectory.from_json(WHOLE).steps[1]
    wrong = Trajectory(SCHEMA_VERSION, AgentInfo("a", "1"), [step])
    with pytest.raises(TrajectoryError, match="1 is expected, not 2"):
        wrong.to_json()


def test_the_builder_puts_results_where_their_calls_are() -> None:
    built = TrajectoryBuilder()
    built.user("Do it.", at="2026-01-02T03:04:05Z")
    built.agent("One.", calls=[("a", "bash", '{"command": "ls"}'), ("b", "bash", "no json")])
    built.agent("Two.", metrics=StepMetrics(prompt_tokens=3), at="not a time")
    built.result("b", ["parts"], failed=True)
    built.result("a", "x.txt")
    built.result("nobody's", "left out")
    trajectory = built.build(AgentInfo("some-agent", "1"))
    assert trajectory is not None
    assert Trajectory.from_json(trajectory.to_json()) == trajectory
    steps = trajectory.to_json()["steps"]
    assert [call["arguments"] for call in steps[1]["tool_calls"]] == [{"command": "ls"}, {"input": "no json"}]
    assert steps[1]["observation"]["results"] == [
        {"source_call_id": "b", "content": '["parts"]', "extra": {"is_error": True}},
        {"source_call_id": "a", "content": "x.txt"},
    ]
    assert "timestamp" not in steps[2]
    assert trajectory.extra == {"left_out": 1}


def test_the_builder_keeps_within_bounds() -> None:
    built = TrajectoryBuilder()
    for _ in range(MOST_STEPS + 5):
        built.agent("x" * 10)
    built.agent("y", calls=[("c", "bash", {})])
    built.result("c", "z" * (MOST_TEXT + 1))
    trajectory = built.build(AgentInfo("a", "1"))
    assert trajectory is not None
    assert len(trajectory.steps) == MOST_STEPS
    assert trajectory.extra == {"left_out": 7}
    long = TrajectoryBuilder()
    long.user("z" * (MOST_TEXT + 7))
    message = long.build(AgentInfo("a", "1")).steps[0].message  # type: ignore[union-attr]
    assert isinstance(message, str) and message.endswith("… (7 more characters)")


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(anything, anything, anything, anything)
def test_nothing_an_agent_wrote_breaks_the_builder(
    call: Any, tool: Any, arguments: Any, content: Any
) -> None:
    built = TrajectoryBuilder()
    built.system(content, at=call)
    built.agent(content, calls=[(call, tool, given), (call, tool, given)], reasoning=tool)
    built.result(call, content)
    trajectory = built.build(AgentInfo("a", "1"))
    assert trajectory is not None
    assert Trajectory.from_json(trajectory.to_json()) == trajectory

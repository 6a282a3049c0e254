"""A transcript as it stands in results.jsonl."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valkyrie.trajectory import TrajectoryError
from valkyrie.trajectory.records import from_record, to_record
from valkyrie.trajectory.transcript import Event, Measures, Transcript

texts = st.text(max_size=8)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
counts = st.integers(0, 10**9)
events = st.builds(
    Event,
    type=st.sampled_from(["tool_call", "assistant_message", "something_new", ""]),
    data=st.dictionaries(texts, plain, max_size=3),
    timestamp=st.none() | texts,
)
measures = st.builds(
    Measures,
    **dict.fromkeys(("input_tokens", "output_tokens", "total_tokens", "cache_read_tokens"), counts),
    **dict.fromkeys(("cache_write_tokens", "turn_count", "tool_call_count", "error_count"), counts),
    skill_activation_count=counts,
    wall_time_ms=st.floats(0, 1e9),
    cost=st.none() | st.floats(0, 1e3),
)
transcripts = st.builds(
    Transcript,
    output=texts,
    events=st.lists(events, max_size=4).map(tuple),
    measures=measures,
    **dict.fromkeys(("model", "executor", "session_id", "started_at", "completed_at"), st.none() | texts),
    skills_loaded=st.lists(texts, max_size=3).map(tuple),
    end_reason=st.sampled_from([None, "timeout", "killed"]),
    extra=st.fixed_dictionaries(
        {},
        optional={
            "workspaceStatus": texts,
            "metrics": st.fixed_dictionaries({"totalNanoAiu": counts}),
            "metadata": st.fixed_dictionaries({"agent": plain}),
        },
    ),
)


@given(transcripts)
def test_nothing_is_lost_on_the_way(told: Transcript) -> None:
    record = to_record(told, id="t1", stimulus={"name": "s"}, work_dir="/workspace")
    assert from_record(json.loads(json.dumps(record))) == told
    assert (record["id"], record["stimulus"], record["workDir"]) == ("t1", {"name": "s"}, "/workspace")


def test_the_shape() -> None:
    told = Transcript(
        "Done.", (Event("system", {"a": 1}),), Measures(3, 4, 7), model="m", end_reason="timeout"
    )
    assert to_record(told, id="i", stimulus="s", work_dir="/w") == {
        "id": "i",
        "stimulus": "s",
        "events": [{"type": "system", "data": {"a": 1}}],
        "metrics": {
            "tokenUsage": {
                "inputTokens": 3,
                "outputTokens": 4,
                "totalTokens": 7,
                "cacheReadTokens": 0,
                "cacheWriteTokens": 0,
            },
            "turnCount": 0,
            "toolCallCount": 0,
            "errorCount": 0,
            "skillActivationCount": 0,
            "wallTimeMs": 0.0,
        },
        "output": "Done.",
        "workDir": "/w",
        "metadata": {
            "startedAt": None,
            "completedAt": None,
            "model": "m",
            "executor": None,
            "sessionID": None,
            "skillsLoaded": [],
        },
        "endReason": "timeout",
    }


def test_a_foreign_record_is_taken_as_it_comes() -> None:
    record = {
        "output": "x",
        "events": [
            {"type": "loop_detected", "data": ["a"], "turn": 1},
            {"type": "tool_call", "timestamp": 5, "data": {"toolName": "bash"}},
        ],
        "metrics": {
            "tokenUsage": {"inputTokens": 10.0, "outputTokens": 5, "callCount": 1},
            "turnCount": "many",
            "toolCallBreakdown": {"bash": 1},
        },
        "metadata": {"skillsLoaded": [{"name": "a", "path": "p"}, "b", 3], "copilotVersion": "1"},
        "endReason": "agent_timeout",
        "artifactDir": "/a",
    }
    told = from_record(record)
    assert told.events[0] == Event("loop_detected", {"turn": 1, "value": ["a"]})
    assert told.events[1].timestamp is None
    assert (told.measures.total_tokens, told.measures.turn_count) == (15, 0)
    assert (told.skills_loaded, told.end_reason) == (("a", "b"), "timeout")
    again = to_record(told, id="i", stimulus="s", work_dir="")
    assert again["artifactDir"] == "/a"
    assert again["metrics"]["toolCallBreakdown"] == {"bash": 1}
    assert again["metrics"]["tokenUsage"]["callCount"] == 1
    assert again["metadata"]["copilotVersion"] == "1"


def test_without_metrics_the_events_are_counted() -> None:
    record = {"events": [{"type": "tool_call"}, {"type": "assistant_message", "data": {"content": "a"}}]}
    told = from_record(record)
    assert (told.measures.tool_call_count, told.measures.turn_count) == (1, 1)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({}, "events or an output"),
        ([], "an object"),
        ({"events": [{"data": {}}]}, r"events\[0\]: an object with a type"),
        ({"events": [3], "output": ""}, r"events\[0\]"),
    ],
)
def test_what_is_no_record_is_refused(record: Any, message: str) -> None:
    with pytest.raises(TrajectoryError, match=message):
        from_record(record)

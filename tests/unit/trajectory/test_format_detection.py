"""What comes on stdin is recognised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from valkyrie.agents.catalog.claude_code import ClaudeCode
from valkyrie.agents.command import AgentCommandResult
from valkyrie.agents.protocol import AgentOptions
from valkyrie.trajectory import TrajectoryError
from valkyrie.trajectory.agent_logs import ForeignTranscript, read_foreign
from valkyrie.trajectory.conversion import transcript_of
from valkyrie.trajectory.records import from_record, to_record
from valkyrie.trajectory.transcript import Event, Transcript

TOLD = Transcript("Done.", (Event("assistant_message", {"content": "Done."}),), model="m")
RECORD = to_record(TOLD, id="t", stimulus={"name": "greet"}, work_dir="/w")
TRIAL = {
    "type": "trial-result",
    "stimulus": "greet",
    "status": "success",
    "trialIndex": 0,
    "trajectory": RECORD,
}
FAILED = {
    "type": "trial-result",
    "stimulus": "fail",
    "status": "error",
    "error": "no key",
    "trajectory": None,
}
ATIF = {
    "schema_version": "ATIF-v1.4",
    "session_id": "s",
    "agent": {"name": "mine", "version": "1"},
    "steps": [
        {"step_id": 1, "source": "user", "message": "Hello?"},
        {"step_id": 2, "source": "agent", "message": "Hello."},
    ],
}


def lines(*values: Any) -> str:
    return "".join((value if isinstance(value, str) else json.dumps(value)) + "\n" for value in values)


def event(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "data": data, "timestamp": "2026-01-02T03:04:05Z"}


def outputs(found: list[ForeignTranscript]) -> list[tuple[str | None, str]]:
    return [(one.stimulus, one.transcript.output) for one in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (lines(TRIAL, "", TRIAL), [("greet", "Done."), ("greet", "Done.")]),
        (lines({"type": "comparison"}, TRIAL, {"type": "run-summary"}), [("greet", "Done.")]),
        (json.dumps(TRIAL, indent=2), [("greet", "Done.")]),
        (json.dumps([{"stimulus": {"name": "old"}, "trajectory": RECORD}]), [("old", "Done.")]),
        (lines({"trajectory": RECORD, "gradeResult": {}}), [("greet", "Done.")]),
        (lines({"stimulus": "x", "trajectory": ATIF}), [("x", "Hello.")]),
        (json.dumps(RECORD), [("greet", "Done.")]),
        (json.dumps(ATIF, indent=1), [(None, "Hello.")]),
        (json.dumps([ATIF, {**ATIF, "extra": {"stimulus": "n"}}]), [(None, "Hello."), ("n", "Hello.")]),
        (lines(ATIF, ATIF), [(None, "Hello."), (None, "Hello.")]),
    ],
)
def test_records_are_recognised(text: str, expected: list[tuple[str | None, str]]) -> None:
    assert outputs(read_foreign(text)) == expected


def test_a_trial_without_a_trajectory_is_its_error() -> None:
    (found,) = read_foreign(lines(FAILED))
    assert (found.stimulus, found.record) == ("fail", FAILED)
    assert found.transcript.events == (Event("error", {"message": "no key"}),)


@pytest.mark.parametrize("version", [f"ATIF-v1.{minor}" for minor in range(9)])
def test_every_version_of_atif(version: str) -> None:
    assert outputs(read_foreign(json.dumps({**ATIF, "schema_version": version}))) == [(None, "Hello.")]


def test_copilots_events() -> None:
    call = {"toolCallId": "c1", "name": "skill", "arguments": {"skill": "tidy"}}
    text = lines(
        "some noise on stdout",
        event("session.start", sessionId="s-1", selectedModel="gpt-4.1", copilotVersion="1.0"),
        event("user.message", content="Tidy up."),
        event("user.message", content="<skill-context>", source="skill-tidy"),
        event("session.usage_record", usage={"inputTokens": 10, "outputTokens": 2, "cacheReadTokens": 4}),
        event("assistant.message", content="", toolRequests=[call], model="gpt-4.1"),
        event("tool.execution_complete", toolCallId="c1", success=True, result={"content": "loaded"}),
        event("skill.invoked", name="tidy", path="/w/.github/skills/tidy/SKILL.md"),
        event("skill.invoked", name="other", path="/w/other/SKILL.md"),
        event("assistant.message", content="Done.", toolRequests=[]),
        event("session.error", message="too late", statusCode=500),
    )
    ((found),) = read_foreign(text)
    told = found.transcript
    assert (found.stimulus, found.record) == (None, None)
    assert (told.output, told.model, told.session_id, told.executor) == (
        "Done.",
        "gpt-4.1",
        "s-1",
        "copilot-cli",
    )
    assert [one.data["content"] for one in told.of_type("user_message")] == ["Tidy up."]
    assert [one.data["name"] for one in told.of_type("skill_activation")] == ["tidy", "other"]
    assert [one.data["result"] for one in told.of_type("tool_result")] == ["loaded"]
    assert [one.data["message"] for one in told.of_type("error")] == ["too late"]
    assert (told.measures.input_tokens, told.measures.total_tokens, told.measures.tool_call_count) == (
        10,
        12,
        1,
    )


def test_claudes_answer_alone() -> None:
    ended = {"type": "result", "subtype": "success", "session_id": "s-1", "is_error": False}
    (found,) = read_foreign(json.dumps({**ended, "result": "It is 42."}))
    assert found.transcript.output == "It is 42."
    assert [event.type for event in found.transcript.events] == ["assistant_message", "turn_end"]


def test_claudes_stream() -> None:
    usage = {"input_tokens": 7, "output_tokens": 2, "cache_read_input_tokens": 3}
    use = {"type": "tool_use", "id": "c1", "name": "Skill", "input": {"skill": "tidy"}}
    text = lines(
        {"type": "system", "subtype": "init", "session_id": "s-1", "claude_code_version": "2.1"},
        {"type": "user", "session_id": "s-1", "message": {"role": "user", "content": "Tidy up."}},
        {"type": "assistant", "message": {"id": "m1", "model": "m", "content": [use], "usage": usage}},
        {
            "type": "user",
            "message": {"content": [{"type": "tool_result", "tool_use_id": "c1", "content": "ok"}]},
        },
        {
            "type": "user",
            "isSynthetic": True,
            "message": {"content": [{"type": "text", "text": "The skill."}]},
        },
        {"type": "assistant", "message": {"id": "m2", "content": [{"type": "text", "text": "Done."}]}},
        {
            "type": "result",
            "subtype": "success",
            "is_error": False,
            "total_cost_usd": 0.5,
            "session_id": "s-1",
        },
    )
    (found,) = read_foreign(text)
    told = found.transcript
    assert (told.output, told.model, told.session_id, told.measures.cost) == ("Done.", "m", "s-1", 0.5)
    assert [one.data["content"] for one in told.of_type("user_message")] == ["Tidy up."]
    assert [one.data["name"] for one in told.of_type("skill_activation")] == ["tidy"]
    assert (told.measures.input_tokens, told.measures.cache_read_tokens) == (10, 3)


def test_claudes_stream_is_graded_as_eval_reads_it(tmp_path: Path) -> None:
    usage = {"input_tokens": 7, "output_tokens": 2, "cache_read_input_tokens": 3}
    use = {"type": "tool_use", "id": "c1", "name": "Task", "input": {}}
    inner = {"id": "sub", "model": "m", "content": [{"type": "text", "text": "looking"}], "usage": usage}
    text = lines(
        {"type": "system", "subtype": "init", "session_id": "s-1", "claude_code_version": "2.1.197"},
        {"type": "assistant", "message": {"id": "m1", "model": "m", "content": [use], "usage": usage}},
        {"type": "assistant", "parent_tool_use_id": "c1", "message": inner},
        {
            "type": "assistant",
            "message": {"id": "m2", "model": "m", "content": [{"type": "text", "text": "Done."}]},
        },
        {"type": "result", "subtype": "success", "is_error": False, "duration_ms": 4200, "session_id": "s-1"},
    )
    log = tmp_path / "claude-code.jsonl"
    log.write_text(text)
    read = ClaudeCode(AgentOptions()).read(AgentCommandResult(log, 0, instruction="Do it."))
    assert read.trajectory is not None
    by_eval = transcript_of(read.trajectory, usage=read.usage, seconds=4.2)
    (found,) = read_foreign(text)
    told = found.transcript
    assert told.measures == by_eval.measures
    assert (told.measures.turn_count, told.measures.wall_time_ms) == (3, 4200)
    assert [one.type for one in told.events] == [one.type for one in by_eval.events]
    assert told.output == by_eval.output == "Done."


def test_a_session_that_failed_is_an_error() -> None:
    text = lines({"type": "result", "subtype": "x", "session_id": "s", "is_error": True, "result": "no key"})
    (found,) = read_foreign(text)
    assert [one.data["message"] for one in found.transcript.of_type("error")] == ["no key"]


def test_skills_that_were_offered_are_seen_in_what_was_read() -> None:
    read = {"toolCallId": "c", "name": "view", "arguments": {"path": "skills/tidy/SKILL.md"}}
    text = lines(event("assistant.message", content="", toolRequests=[read]))
    (found,) = read_foreign(text, skills=["tidy"])
    assert found.transcript.measures.skill_activation_count == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "nothing to read. Expected: trial results"),
        (" \n\n", "nothing to read"),
        ("hello", "line 1: no JSON. Expected: trial results"),
        (lines(TRIAL, "{oops"), "line 2: no JSON"),
        (lines(TRIAL, {"a": 1}), "line 2: this is none of what can be read"),
        (lines({"type": "metric", "a": 1}), r"its type is 'metric'"),
        (lines(TRIAL, [1]), "line 2: an object is expected"),
        ("3", "line 1: an object is expected"),
        ("[]", "no trial was found"),
        (lines({"type": "comparison"}), "no trial was found"),
        (lines({**TRIAL, "trajectory": 3}), "line 1: trajectory: an object is expected"),
        (lines(TRIAL, {**ATIF, "steps": []}), "line 2: trajectory.steps: at least one step"),
        (lines({**ATIF, "schema_version": "ATIF-v9"}), "line 1: trajectory.schema_version"),
        ("[" * 100_000, "line 1: no JSON"),
    ],
)
def test_what_is_none_of_it_is_told(text: str, message: str) -> None:
    with pytest.raises(TrajectoryError, match=message):
        read_foreign(text)


def test_records_count_calls_models_and_skills() -> None:
    events = (
        Event("token_usage", {"inputTokens": 5, "outputTokens": 1, "model": "m"}),
        Event("token_usage", {"inputTokens": 7, "outputTokens": 2, "model": "m"}),
        Event("skill_activation", {"name": "tidy", "path": ""}),
        Event("skill_activation", {"name": "tidy", "path": ""}),
    )
    record = to_record(Transcript("done", events), id="i", stimulus="s", work_dir="")
    usage = record["metrics"]["tokenUsage"]
    assert (usage["callCount"], usage["byModel"]) == (2, {"m": {"inputTokens": 12, "outputTokens": 3}})
    assert record["metrics"]["skillActivationBreakdown"] == {"tidy": 2}
    assert not from_record(record).extra
    foreign = {"output": "x", "events": [], "metrics": {"tokenUsage": {"callCount": 9}}}
    assert (
        to_record(from_record(foreign), id="i", stimulus="s", work_dir="")["metrics"]["tokenUsage"][
            "callCount"
        ]
        == 9
    )

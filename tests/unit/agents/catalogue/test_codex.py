"""Codex: what is run, and what its events say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from sandboxes.protocol import Sandbox
from valkyrie.agents.catalog import CATALOG
from valkyrie.agents.catalog.codex import SESSION, Codex
from valkyrie.agents.command import AgentCommandResult, LogSummary
from valkyrie.agents.protocol import AgentOptions, AgentTrial
from valkyrie.domain import TaskSpec
from valkyrie.errors import UsageError

STARTED = {"type": "thread.started", "thread_id": "s-1"}
NOTICE = {
    "type": "item.completed",
    "item": {"id": "i0", "type": "error", "message": "Metadata not found"},
}
COMPLETED = {
    "type": "turn.completed",
    "usage": {
        "input_tokens": 100,
        "cached_input_tokens": 60,
        "output_tokens": 9,
        "reasoning_output_tokens": 4,
    },
}


def item(number: int, kind: str, **more: Any) -> dict[str, Any]:
    return {"type": "item.completed", "item": {"id": f"i{number}", "type": kind, **more}}


def turn_failed(said: str) -> list[dict[str, Any]]:
    return [STARTED, {"type": "error", "message": said}, {"type": "turn.failed", "error": {"message": said}}]


def counted(prompt: int, output: int) -> dict[str, Any]:
    usage = {"input_tokens": prompt, "cached_input_tokens": 1, "output_tokens": output}
    return {"type": "event_msg", "payload": {"type": "token_count", "info": {"total_token_usage": usage}}}


def read(folder: Path, *events: Any, exit_code: int = 0, stderr: str = "", session: Any = ()) -> LogSummary:
    log = folder / "codex.jsonl"
    log.write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / SESSION).write_text("".join(json.dumps(line) + "\n" for line in session))
    return Codex(AgentOptions(model="openai/gpt-5")).read(
        AgentCommandResult(log, exit_code, stderr, "Do it.", folder)
    )


def test_a_whole_run(tmp_path: Path) -> None:
    reading = read(
        tmp_path,
        STARTED,
        NOTICE,
        {"type": "turn.started"},
        item(1, "reasoning", text="Hm."),
        item(2, "agent_message", text="I write it."),
        {"type": "item.started", "item": {"id": "i3", "type": "command_execution", "command": "ls"}},
        item(3, "command_execution", command="ls", aggregated_output="x", exit_code=1, status="failed"),
        item(4, "file_change", changes=[{"path": "/app/x", "kind": "add"}], status="completed"),
        item(5, "mcp_tool_call", server="s", tool="look", arguments={"q": 1}, result={"content": []}),
        item(6, "agent_message", text="Done."),
        COMPLETED,
        session=[counted(50, 4), counted(100, 9)],
    )
    assert reading.trouble is None
    used = reading.usage
    assert used is not None
    assert (used.input_tokens, used.cached_tokens, used.output_tokens, used.steps) == (100, 60, 9, 2)
    assert (used.cost, used.model) == (None, "gpt-5")
    assert reading.trajectory is not None
    data = reading.trajectory.to_json()
    assert data["session_id"] == "s-1"
    steps = data["steps"]
    assert [step["message"] for step in steps] == ["Do it.", "I write it.", "", "", "Done."]
    assert steps[1]["reasoning_content"] == "Hm."
    names = [call["function_name"] for step in steps for call in step.get("tool_calls", [])]
    assert names == ["command_execution", "file_change", "look"]
    assert steps[1]["tool_calls"][0]["arguments"] == {"command": "ls"}
    assert steps[1]["observation"]["results"][0]["content"] == "x"
    assert steps[3]["tool_calls"][0]["arguments"] == {"q": 1}
    assert data["final_metrics"]["total_prompt_tokens"] == 100


def test_a_run_cut_short_is_counted_by_its_session(tmp_path: Path) -> None:
    running = {
        "type": "item.started",
        "item": {"id": "i1", "type": "command_execution", "command": "sleep 9"},
    }
    session = [counted(50, 4), {"type": "event_msg", "payload": None}, counted(120, 8)]
    reading = read(tmp_path, STARTED, running, exit_code=124, session=session)
    assert reading.usage is not None
    assert (reading.usage.input_tokens, reading.usage.output_tokens, reading.usage.steps) == (120, 8, 2)
    assert reading.trajectory is not None
    (call,) = reading.trajectory.steps[1].tool_calls or ()
    assert call.arguments == {"command": "sleep 9"}


OVERFLOW = json.dumps({"error": {"message": "Too much.", "code": "context_length_exceeded"}})


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("exceeded retry limit, last status: 429 Too Many Requests", "model_rate_limited"),
        (
            "You exceeded your current quota; check your plan and billing.",
            "model_unauthorized",
        ),
        ("unexpected status 401 Unauthorized: Incorrect API key provided., url: x", "model_unauthorized"),
        ("The model `x` does not exist or you do not have access to it.", "model_unknown"),
        (OVERFLOW, "context_overflow"),
        ("Codex ran out of room in the model's context window.", "context_overflow"),
        ("stream disconnected before completion: Transport error", "model_unreachable"),
        ("We're currently experiencing high demand, which may cause temporary errors.", "model_unreachable"),
        ("unexpected status 503 Service Unavailable: overloaded", "model_unreachable"),
        ("Incomplete response returned, reason: content_filter", "model_refused"),
        ("something nobody foresaw", "agent_gave_up"),
    ],
)
def test_troubles_are_told_apart(tmp_path: Path, said: str, cause: str) -> None:
    trouble = read(tmp_path, *turn_failed(said), exit_code=1).trouble
    assert trouble is not None
    assert trouble.cause == cause
    assert trouble.message


def test_what_the_server_asked_for_is_read_from_the_words(tmp_path: Path) -> None:
    said = "Rate limit reached for gpt-5. Please try again in 1.5s."
    trouble = read(tmp_path, *turn_failed(said), exit_code=1).trouble
    assert trouble is not None
    assert (trouble.cause, trouble.retry_after) == ("model_rate_limited", 1.5)


def test_a_turn_without_a_word_or_a_deed_is_a_refusal(tmp_path: Path) -> None:
    trouble = read(tmp_path, STARTED, NOTICE, COMPLETED).trouble
    assert trouble is not None and trouble.cause == "model_refused"
    assert read(tmp_path, STARTED, item(1, "agent_message", text="x"), COMPLETED).trouble is None


def test_a_retry_that_went_well_is_no_trouble(tmp_path: Path) -> None:
    retried = {"type": "error", "message": "Reconnecting... 1/5 (stream disconnected)"}
    assert read(tmp_path, STARTED, retried, item(1, "agent_message", text="x"), COMPLETED).trouble is None


def test_without_events_its_last_words_count(tmp_path: Path) -> None:
    trouble = read(tmp_path, exit_code=1, stderr="Error: Not logged in. Run codex login\n").trouble
    assert trouble is not None and trouble.cause == "model_unauthorized"


def trial(model_url: str | None, **secrets: str) -> AgentTrial:
    task = TaskSpec(id="t", digest="d", instruction="x")
    return AgentTrial(task, cast(Sandbox, None), secrets, lambda _stream, _text: None, model_url=model_url)


def test_what_is_run() -> None:
    url = "http://127.0.0.1:8765/c/x"
    agent = Codex(
        AgentOptions("gpt-5", {"effort": "high", "max_retries": "1"}, model_url="http://127.0.0.1:1")
    )
    headless = agent.headless(trial(url))
    words = " ".join(headless.argv)
    assert "--model gpt-5" in words and headless.argv[-1] == "-"
    assert f'model_providers.valkyrie.base_url="{url}/v1"' in words
    assert 'model_reasoning_effort="high"' in words
    assert "stream_max_retries=1" in words and "request_max_retries=1" in words
    assert agent.layer.npm == ("@openai/codex@0.166.0-linux-{cpu}",)


def test_at_the_vendors_place_the_key_is_given() -> None:
    headless = Codex(AgentOptions()).headless(trial(None, OPENAI_API_KEY="key"))
    assert (headless.env["CODEX_API_KEY"], headless.env["OPENAI_API_KEY"]) == ("key", "key")
    assert "model_provider" not in " ".join(headless.argv)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"effort": 'high"; x'}, "one word is expected"),
        ({"max_retries": "many"}, "a whole number"),
        ({"max_retries": "1"}, "only for a model served at --model-url"),
    ],
)
def test_wrong_parameters_are_refused(kwargs: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Codex(AgentOptions(kwargs=kwargs))


def test_the_catalogue_says_the_same() -> None:
    assert CATALOG["codex"].version == Codex.entry.version
    assert [group.names for group in CATALOG["codex"].keys] == [("OPENAI_API_KEY",)]

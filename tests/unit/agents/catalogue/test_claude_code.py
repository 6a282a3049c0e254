"""Claude Code: what is run, and what its stream of events says."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, cast

import pytest

from sandboxes.protocol import Sandbox
from valkyrie.agents.catalog import CATALOG
from valkyrie.agents.catalog.claude_code import KEYS, ClaudeCode
from valkyrie.agents.command import AgentCommandResult, LogFile, LogSummary
from valkyrie.agents.protocol import AgentOptions, AgentTrial
from valkyrie.domain import TaskSpec

MODEL = "claude-sonnet-4-5"


def answer(number: int, *blocks: dict[str, Any], parent: str | None = None, **usage: int) -> dict[str, Any]:
    message = {"id": f"msg_{number}", "role": "assistant", "model": MODEL, "content": blocks, "usage": usage}
    return {"type": "assistant", "message": message, "parent_tool_use_id": parent, "session_id": "s-1"}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def call(name: str, command: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "Bash", "input": {"command": command}}


def brought(name: str, content: Any, *, failed: bool = False) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": name, "content": content, "is_error": failed}
    return {"type": "user", "message": {"role": "user", "content": [block]}, "parent_tool_use_id": None}


def result(**more: Any) -> dict[str, Any]:
    return {"type": "result", "subtype": "success", "is_error": False, "result": "Done.", **more}


def failed(said: str, **more: Any) -> dict[str, Any]:
    return result(is_error=True, result=said, total_cost_usd=0, modelUsage={}, **more)


def synthetic(said: str, error: str) -> dict[str, Any]:
    return {"type": "assistant", "error": error, "message": {"model": "<synthetic>", "content": [text(said)]}}


def read(folder: Path, *events: Any, exit_code: int = 0, stderr: str = "", **options: Any) -> LogSummary:
    log = folder / "claude-code.jsonl"
    log.write_text("".join(json.dumps(event) + "\n" for event in events))
    return ClaudeCode(AgentOptions(**options)).read(
        AgentCommandResult(log, exit_code, stderr, "Do it.", folder)
    )


def test_a_whole_run(tmp_path: Path) -> None:
    usage = {"input_tokens": 5, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 5}
    per_model = {
        MODEL: {
            "inputTokens": 10,
            "cacheReadInputTokens": 180,
            "cacheCreationInputTokens": 10,
            "outputTokens": 40,
        },
        "claude-haiku-4-5": {"inputTokens": 3, "outputTokens": 1},
    }
    reading = read(
        tmp_path,
        {"type": "system", "subtype": "init", "session_id": "s-1", "model": MODEL},
        answer(1, {"type": "thinking", "thinking": "Hm."}, output_tokens=1, **usage),
        answer(1, text("I write it."), output_tokens=1, **usage),
        answer(1, call("c1", "echo hi > x"), call("c2", "false"), output_tokens=20, **usage),
        brought("c1", [text("one"), text("two")]),
        brought("c2", "Exit code 1", failed=True),
        answer(9, text("a helper's words"), parent="c1", output_tokens=3, input_tokens=1),
        answer(2, text("Done."), output_tokens=20, **usage),
        result(total_cost_usd=0.25, modelUsage=per_model),
    )
    assert reading.trouble is None
    used = reading.usage
    assert used is not None
    assert (used.input_tokens, used.cached_tokens, used.output_tokens) == (203, 180, 41)
    assert (used.cost, used.cost_source, used.model, used.steps) == (0.25, "agent", MODEL, 3)
    assert reading.trajectory is not None
    data = reading.trajectory.to_json()
    assert (data["session_id"], data["agent"]["model_name"]) == ("s-1", MODEL)
    assert [step["message"] for step in data["steps"]] == ["Do it.", "", "I write it.", "", "Done."]
    assert data["steps"][1]["reasoning_content"] == "Hm."
    assert [call["arguments"] for call in data["steps"][3]["tool_calls"]] == [
        {"command": "echo hi > x"},
        {"command": "false"},
    ]
    assert data["steps"][3]["observation"]["results"] == [
        {"source_call_id": "c1", "content": "one\ntwo"},
        {"source_call_id": "c2", "content": "Exit code 1", "extra": {"is_error": True}},
    ]
    assert data["final_metrics"]["total_cost_usd"] == 0.25
    # What an answer used is counted once, however many messages it comes in.
    assert [step["metrics"]["prompt_tokens"] for step in data["steps"] if "metrics" in step] == [100, 100]


def test_a_run_cut_short_has_what_its_answers_used(tmp_path: Path) -> None:
    events = [
        answer(n, text("x"), input_tokens=10, cache_read_input_tokens=5, output_tokens=2) for n in (1, 2)
    ]
    reading = read(tmp_path, *events, exit_code=124)
    assert reading.usage is not None
    assert (reading.usage.input_tokens, reading.usage.cached_tokens, reading.usage.output_tokens) == (
        30,
        10,
        4,
    )
    assert reading.usage.cost is None


RETRY = {"type": "system", "subtype": "api_retry", "retry_delay_ms": 7000, "error_status": 429}


@pytest.mark.parametrize(
    ("events", "cause", "retry_after"),
    [
        (
            [failed("It violates our policy", stop_reason="refusal")],
            "model_refused",
            None,
        ),
        ([failed("Prompt is too long", api_error_status=400)], "context_overflow", None),
        ([failed("It is too much", terminal_reason="prompt_too_long")], "context_overflow", None),
        (
            [RETRY, failed("Request rejected", api_error_status=429)],
            "model_rate_limited",
            7.0,
        ),
        ([failed("Request rejected (429)", api_error_status=429)], "model_rate_limited", None),
        (
            [failed("Invalid API key · Fix it", api_error_status=401)],
            "model_unauthorized",
            None,
        ),
        ([failed("Credit balance is too low", api_error_status=400)], "model_unauthorized", None),
        ([failed("It may not exist", api_error_status=404)], "model_unknown", None),
        ([failed("API Error: 529 Overloaded.", api_error_status=529)], "model_unreachable", None),
        ([failed("Connection to the API was lost (ECONNRESET).")], "model_unreachable", None),
        ([synthetic("Odd words", "server_error"), failed("Odd words")], "model_unreachable", None),
        ([result(is_error=True, subtype="error_max_turns", result=None)], "agent_gave_up", None),
    ],
)
def test_troubles_are_told_apart(
    tmp_path: Path, events: list[Any], cause: str, retry_after: float | None
) -> None:
    trouble = read(tmp_path, *events, exit_code=1).trouble
    assert trouble is not None
    assert (trouble.cause, trouble.retry_after) == (cause, retry_after)
    assert trouble.message


def test_without_a_result_its_last_words_count(tmp_path: Path) -> None:
    trouble = read(tmp_path, exit_code=1, stderr="Error: fetch failed\n").trouble
    assert trouble is not None and trouble.cause == "model_unreachable"
    trouble = read(tmp_path, synthetic("API Error: 500 Internal server error", "x"), exit_code=1).trouble
    assert trouble is not None and trouble.cause == "model_unreachable"
    assert read(tmp_path, answer(1, text("x"))).trouble is None


def trial(model_url: str | None, **secrets: str) -> AgentTrial:
    task = TaskSpec(id="t", digest="d", instruction="x", env={"LANG": "de", "OWN": "1"})
    return AgentTrial(task, cast(Sandbox, None), secrets, lambda _stream, _text: None, model_url=model_url)


def test_what_is_run() -> None:
    options = AgentOptions(f"anthropic/{MODEL}", {"max_turns": "9", "max_retries": "0", "effort": "high"})
    agent = ClaudeCode(options)
    headless = agent.headless(trial("http://127.0.0.1:8765/c/x/v1"))
    words = " ".join(headless.argv)
    assert f"--model {MODEL} --max-turns 9 --effort high" in words
    env = headless.env
    assert (env["ANTHROPIC_BASE_URL"], env["CLAUDE_CODE_MAX_RETRIES"]) == ("http://127.0.0.1:8765/c/x", "0")
    assert (env["LANG"], env["OWN"], env["ANTHROPIC_DEFAULT_HAIKU_MODEL"]) == ("de", "1", MODEL)
    assert env["ANTHROPIC_API_KEY"]
    assert agent.layer.npm == ("@anthropic-ai/claude-code-linux-{cpu}{musl}@2.1.197",)


def test_at_the_vendors_place_nothing_is_made_up() -> None:
    headless = ClaudeCode(AgentOptions()).headless(trial(None, CLAUDE_CODE_OAUTH_TOKEN="token"))
    assert headless.env["CLAUDE_CODE_OAUTH_TOKEN"] == "token"
    made_up = {"ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "CLAUDE_CODE_MAX_RETRIES"}
    assert not made_up & set(headless.env)
    assert "--model" not in headless.argv


def test_the_catalogue_says_the_same() -> None:
    entry = CATALOG["claude-code"]
    assert entry.version == ClaudeCode.entry.version
    assert [group.names for group in entry.keys] == [KEYS]


def test_steps_carry_the_time_their_line_arrived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    lines = [json.dumps(one) for one in (answer(1, call("Bash", "ls")), answer(2, text("Done.")))]
    with LogFile(tmp_path / "log.jsonl", lambda _stream, _text: None) as log:
        for piece in (lines[0][:20], lines[0][20:] + "\n", lines[1] + "\n"):
            now += 10
            log.write("stdout", piece)
    ran = AgentCommandResult(log.path, 0, instruction="Do it.", began=1_800_000_000.0, arrived=log.arrived)
    found = ClaudeCode(AgentOptions()).read(ran).trajectory
    assert found is not None
    assert [step.timestamp for step in found.steps] == [
        "2027-01-15T08:00:00.000Z",
        "2027-01-15T08:00:20.000Z",
        "2027-01-15T08:00:30.000Z",
    ]

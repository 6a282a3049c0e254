"""opencode: what is run, and what its events say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agents.catalogue.agent_logs import URL, command, made, reading, steps, used
from valkyrie.agents.catalog.opencode import OpenCode
from valkyrie.errors import UsageError

CLAUDE = "anthropic/claude-sonnet-4-5"


def event(kind: str, **part: Any) -> dict[str, Any]:
    return {"type": kind, "timestamp": 1, "sessionID": "ses_1", "part": part}


def finish(reason: str = "stop", cost: float = 0.5) -> dict[str, Any]:
    tokens = {"input": 80, "output": 9, "reasoning": 1, "cache": {"read": 20, "write": 0}}
    return event("step_finish", reason=reason, tokens=tokens, cost=cost)


def tool(call: str, **state: Any) -> dict[str, Any]:
    return event("tool_use", tool="bash", callID=call, state=state)


def failed(status: int, message: str, **more: Any) -> dict[str, Any]:
    error = {"name": "APIError", "data": {"statusCode": status, "message": message, **more}}
    return {"type": "error", "sessionID": "ses_1", "error": error}


WHOLE = (
    event("step_start"),
    event("reasoning", text="Hm."),
    event("text", text="I write it."),
    tool("c1", status="completed", input={"command": "ls"}, output="x\n"),
    tool("c2", status="error", input={"command": "no"}, error="not found"),
    finish("tool-calls"),
    event("step_start"),
    event("text", text="Done."),
    finish(),
)


def test_a_whole_run(tmp_path: Path) -> None:
    found = reading(made(OpenCode, CLAUDE), tmp_path, *WHOLE)
    assert found.trouble is None
    assert used(found) == (200, 40, 20, 2)
    assert found.usage is not None
    assert (found.usage.cost, found.usage.cost_source) == (1.0, "agent")
    assert found.usage.model == "claude-sonnet-4-5"
    task, first, last = steps(found)
    assert (task["source"], task["message"], last["message"]) == ("user", "Do it.", "Done.")
    assert (first["reasoning_content"], [call["tool_call_id"] for call in first["tool_calls"]]) == (
        "Hm.",
        ["c1", "c2"],
    )
    results = first["observation"]["results"]
    assert [result["content"] for result in results] == ["x\n", "not found"]
    assert results[1]["extra"] == {"is_error": True}


def test_an_attempt_that_was_cut_short_has_what_it_did_so_far(tmp_path: Path) -> None:
    found = reading(made(OpenCode, CLAUDE), tmp_path, *WHOLE[:7], WHOLE[7], exit_code=124)
    assert used(found) == (100, 20, 10, 1)
    assert [step["message"] for step in steps(found)] == ["Do it.", "I write it.", "Done."]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (failed(401, "invalid x-api-key"), "model_unauthorized"),
        (failed(404, "model: nope"), "model_unknown"),
        (failed(400, "prompt is too long: 3 tokens > 2 maximum"), "context_overflow"),
        (failed(529, "Overloaded"), "model_unreachable"),
        ({"type": "error", "error": {"name": "ContentFilterError", "data": {}}}, "model_refused"),
    ],
)
def test_troubles(tmp_path: Path, error: dict[str, Any], cause: str) -> None:
    found = reading(made(OpenCode, CLAUDE), tmp_path, *WHOLE[:6], error, exit_code=1)
    assert found.trouble is not None
    assert found.trouble.cause == cause


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("7", 7.0),
        ("1.5", 1.5),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("²", None),
        ("soon", None),
        (7, None),
    ],
)
def test_it_says_how_long_to_wait(tmp_path: Path, said: object, seconds: float | None) -> None:
    error = failed(429, "slow down", responseHeaders={"retry-after": said})
    found = reading(made(OpenCode, CLAUDE), tmp_path, error, exit_code=1)
    assert found.trouble is not None
    assert (found.trouble.cause, found.trouble.retry_after) == ("model_rate_limited", seconds)


def test_an_error_it_got_over_is_none(tmp_path: Path) -> None:
    assert reading(made(OpenCode, CLAUDE), tmp_path, failed(500, "oops"), *WHOLE).trouble is None


@pytest.mark.parametrize(
    ("model", "vendor", "url"),
    [
        (CLAUDE, "anthropic", f"{URL}/v1"),
        ("gpt-5", "openai", f"{URL}/v1"),
        ("gemini-2.5-pro", "google", f"{URL}/v1beta"),
        ("my-model", "custom", f"{URL}/v1"),
        ("mine/my-model", "mine", f"{URL}/v1"),
    ],
)
def test_a_model_of_ones_own(model: str, vendor: str, url: str) -> None:
    headless = command(made(OpenCode, model), model_url=URL)
    settings = json.loads(headless.files["opencode.json"])
    assert settings["provider"][vendor]["options"]["baseURL"] == url
    assert headless.argv[headless.argv.index("--model") + 1].startswith(f"{vendor}/")


def test_without_an_address_the_vendor_serves_it() -> None:
    headless = command(made(OpenCode, "google/gemini-2.5-pro"), secrets={"GOOGLE_API_KEY": "k"})
    assert headless.env["GOOGLE_GENERATIVE_AI_API_KEY"] == "k"
    assert "options" not in json.loads(headless.files["opencode.json"])["provider"]["google"]


def test_a_model_of_nobody_is_refused() -> None:
    with pytest.raises(UsageError, match="vendor/model"):
        command(made(OpenCode, "my-model"))


def test_without_a_model_it_is_refused() -> None:
    with pytest.raises(UsageError, match="needs a model"):
        made(OpenCode, None)

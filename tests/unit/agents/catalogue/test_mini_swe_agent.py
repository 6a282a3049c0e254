"""mini-swe-agent: what is run, and what its own trajectory says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agents.catalogue.agent_logs import URL, command, made, reading, steps, used
from valkyrie.agents.catalog.mini_swe_agent import MiniSweAgent
from valkyrie.agents.command import LogSummary

MODEL = "anthropic/claude-sonnet-4-5"


def response(finish: str = "tool_calls") -> dict[str, Any]:
    usage = {"prompt_tokens": 50, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 20}}
    return {"model": "claude-sonnet-4-5", "usage": usage, "choices": [{"finish_reason": finish}]}


def asks(call: str) -> dict[str, Any]:
    function = {"name": "bash", "arguments": '{"command": "ls"}'}
    return {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [{"id": call, "function": function}],
        "extra": {"response": response(), "cost": 0.25},
    }


def ended(status: str, said: str = "") -> dict[str, Any]:
    return {"role": "exit", "content": said, "extra": {"exit_status": status, "exception_str": said}}


START = ({"role": "system", "content": "You are."}, {"role": "user", "content": "Please solve: Do it."})


def read(folder: Path, *messages: Any, exit_code: int = 0) -> LogSummary:
    (folder / "mini.traj.json").write_text(json.dumps({"messages": [*START, *messages]}))
    return reading(made(MiniSweAgent, MODEL), folder, "plain text", exit_code=exit_code)


def test_a_whole_run(tmp_path: Path) -> None:
    result = {"role": "tool", "tool_call_id": "c1", "content": "x", "extra": {"returncode": 1}}
    found = read(tmp_path, asks("c1"), result, asks("c2"), ended("Submitted"))
    assert found.trouble is None
    assert used(found) == (100, 40, 10, 2)
    assert found.usage is not None
    assert (found.usage.cost, found.usage.model) == (0.5, "claude-sonnet-4-5")
    assert [step["source"] for step in steps(found)] == ["system", "user", "agent", "agent"]
    first = steps(found)[2]
    assert first["tool_calls"][0]["arguments"] == {"command": "ls"}
    assert first["observation"]["results"][0]["extra"] == {"is_error": True}


def test_an_answer_it_could_not_use_was_paid_for(tmp_path: Path) -> None:
    complaint = {
        "role": "user",
        "content": "No tool call.",
        "extra": {"response": response("stop"), "cost": 1},
    }
    found = read(tmp_path, complaint, ended("RepeatedFormatError"))
    assert used(found) == (50, 20, 5, 1)
    assert found.trouble is not None
    assert found.trouble.cause == "agent_gave_up"


def test_a_refusal_is_told_from_an_answer_without_a_call(tmp_path: Path) -> None:
    complaint = {"role": "user", "content": "No call.", "extra": {"response": response("content_filter")}}
    found = read(tmp_path, complaint, ended("RepeatedFormatError"))
    assert found.trouble is not None
    assert found.trouble.cause == "model_refused"


@pytest.mark.parametrize(
    ("status", "said", "cause"),
    [
        ("AuthenticationError", "litellm.AuthenticationError: Incorrect API key", "model_unauthorized"),
        ("ContextWindowExceededError", "prompt is too long: 9 > 8", "context_overflow"),
        ("RateLimitError", "litellm.RateLimitError: slow down", "model_rate_limited"),
        ("InternalServerError", "litellm.InternalServerError: Overloaded", "model_unreachable"),
        ("NotFoundError", "litellm.NotFoundError: model: nope, not_found_error", "model_unknown"),
        ("LimitsExceeded", "LimitsExceeded", "agent_gave_up"),
    ],
)
def test_troubles(tmp_path: Path, status: str, said: str, cause: str) -> None:
    found = read(tmp_path, asks("c1"), ended(status, said), exit_code=1)
    assert found.trouble is not None
    assert found.trouble.cause == cause


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '{"messages": 7}', '{"messages": [null, {"role": 3}]}'])
def test_a_file_of_nonsense_is_no_usage(tmp_path: Path, text: str) -> None:
    (tmp_path / "mini.traj.json").write_text(text)
    assert reading(made(MiniSweAgent, MODEL), tmp_path).usage is None


@pytest.mark.parametrize(
    ("model", "named", "url"),
    [
        (MODEL, MODEL, URL),
        ("gpt-5", "openai/gpt-5", f"{URL}/v1"),
        ("google/gemini-2.5-pro", "openai/gemini-2.5-pro", f"{URL}/v1"),
        ("my-model", "openai/my-model", f"{URL}/v1"),
    ],
)
def test_a_model_of_ones_own(model: str, named: str, url: str) -> None:
    argv = command(made(MiniSweAgent, model), model_url=URL).argv
    assert argv[argv.index("--model") + 1] == named
    assert f"model.model_kwargs.api_base={url}" in argv


def test_a_google_key_is_a_gemini_key() -> None:
    headless = command(made(MiniSweAgent, "gemini-2.5-pro"), secrets={"GOOGLE_API_KEY": "k"})
    assert headless.env["GEMINI_API_KEY"] == "k"
    assert headless.argv[headless.argv.index("--model") + 1] == "gemini/gemini-2.5-pro"


def test_a_step_that_was_printed_counts_whatever_became_of_the_file(tmp_path: Path) -> None:
    printed = "User:\nDo it.\n\nmini-swe-agent (step 1, $0.00):\nI rewrite my file.\n"
    agent = made(MiniSweAgent, MODEL)
    gone = reading(agent, tmp_path, printed, exit_code=143, stderr="429: rate limit exceeded")
    assert gone.trouble is not None
    assert gone.trouble.cause == "model_rate_limited"
    (tmp_path / "mini.traj.json").write_text(json.dumps({"messages": [ended("RateLimitError", "429")]}))
    replaced = reading(agent, tmp_path, printed, exit_code=1)
    assert [found.usage and found.usage.steps for found in (gone, replaced)] == [1, 1]

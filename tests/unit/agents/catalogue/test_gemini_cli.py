"""Gemini CLI: what is run, and what its events say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agents.catalogue.agent_logs import URL, command, made, reading, steps, used
from valkyrie.agents.catalog.gemini_cli import GeminiCli

INIT = {"type": "init", "session_id": "s-1", "model": "gemini-2.5-pro"}
STATS = {"input_tokens": 100, "output_tokens": 10, "cached": 40}
END = {"type": "result", "status": "success", "stats": STATS}


def says(words: str) -> dict[str, Any]:
    when = "2026-01-02T03:04:05Z"
    return {"type": "message", "timestamp": when, "role": "assistant", "content": words, "delta": True}


def test_a_whole_run(tmp_path: Path) -> None:
    found = reading(
        made(GeminiCli, "google/gemini-2.5-pro"),
        tmp_path,
        INIT,
        {"type": "message", "role": "user", "content": "Do it."},
        says("I wri"),
        says("te it."),
        {
            "type": "tool_use",
            "tool_name": "run_shell_command",
            "tool_id": "c1",
            "parameters": {"command": "ls"},
        },
        {"type": "tool_result", "tool_id": "c1", "status": "error", "output": "", "error": {"message": "no"}},
        says("Done."),
        END,
    )
    assert found.trouble is None
    assert used(found) == (100, 40, 10, 2)
    assert found.usage is not None
    assert (found.usage.cost, found.usage.model) == (None, "gemini-2.5-pro")
    task, first, last = steps(found)
    assert task["message"] == "Do it."
    assert (first["message"], first["timestamp"], last["message"]) == (
        "I write it.",
        "2026-01-02T03:04:05Z",
        "Done.",
    )
    (result,) = first["observation"]["results"]
    assert (result["content"], result["extra"]) == ("no", {"is_error": True})


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ('[API Error: {"error":{"code":401,"message":"API key not valid."}}]', "model_unauthorized"),
        ('[API Error: {"error":{"code":400,"message":"The input token count (9) exceeds the maximum"}}]',
         "context_overflow"),
        ("[API Error: models/nope is not found for API version v1beta.]", "model_unknown"),
        ("[API Error: terminated]", "model_unreachable"),
        ('[API Error: {"error":{"code":429,"message":"Resource exhausted"}}]', "model_rate_limited"),
    ],
)  # fmt: skip
def test_troubles(tmp_path: Path, message: str, cause: str) -> None:
    end = {"type": "result", "status": "error", "error": {"message": message}, "stats": STATS}
    found = reading(made(GeminiCli, None), tmp_path, INIT, says("Hm."), end, exit_code=144)
    assert found.trouble is not None
    assert found.trouble.cause == cause
    assert used(found) == (100, 40, 10, 1)


def test_without_an_end_there_is_no_usage_but_a_trajectory(tmp_path: Path) -> None:
    found = reading(made(GeminiCli, None), tmp_path, INIT, says("Hm."), exit_code=124)
    assert found.usage is None
    assert len(steps(found)) == 2


def test_a_google_key_is_a_gemini_key() -> None:
    headless = command(made(GeminiCli, None), secrets={"GOOGLE_API_KEY": "k"})
    assert headless.env["GEMINI_API_KEY"] == "k"
    assert "GOOGLE_API_KEY" not in headless.env
    assert "--model" not in headless.argv


def test_a_model_of_ones_own() -> None:
    headless = command(made(GeminiCli, "google/gemini-2.5-pro"), model_url=URL)
    assert headless.env["GOOGLE_GEMINI_BASE_URL"] == URL
    assert headless.env["GEMINI_API_KEY"]
    assert headless.argv[headless.argv.index("--model") + 1] == "gemini-2.5-pro"
    settings = json.loads(headless.files[".gemini/settings.json"])
    assert settings["security"]["auth"]["selectedType"] == "gemini-api-key"

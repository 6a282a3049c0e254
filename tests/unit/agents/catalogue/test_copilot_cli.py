"""GitHub Copilot CLI: what is run, and what its events say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agents.catalogue.agent_logs import URL, command, made, reading, steps, used
from valkyrie.agents.catalog.copilot_cli import CopilotCli
from valkyrie.errors import UsageError


def event(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "data": data, "timestamp": "2026-01-02T03:04:05Z"}


def record(folder: Path, *usages: tuple[int, int, int]) -> None:
    lines = [
        event(
            "session.usage_record",
            usage={"model": "gpt-4.1", "inputTokens": a, "outputTokens": b, "cacheReadTokens": c},
        )
        for a, b, c in usages
    ]
    (folder / "copilot-session.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


ASKS = event(
    "assistant.message",
    content="I write it.",
    model="gpt-4.1",
    toolRequests=[{"toolCallId": "c1", "name": "bash", "arguments": {"command": "ls"}}],
)
BRINGS = event("tool.execution_complete", toolCallId="c1", success=True, result={"content": "x"})
DONE = event("assistant.message", content="Done.", model="gpt-4.1", toolRequests=[])


def test_a_whole_run(tmp_path: Path) -> None:
    record(tmp_path, (60, 7, 40), (40, 3, 0))
    found = reading(made(CopilotCli, "gpt-4.1"), tmp_path, ASKS, BRINGS, DONE)
    assert found.trouble is None
    assert used(found) == (100, 40, 10, 2)
    _, first, last = steps(found)
    assert first["metrics"] == {"prompt_tokens": 60, "completion_tokens": 7, "cached_tokens": 40}
    assert first["observation"]["results"][0]["content"] == "x"
    assert last["message"] == "Done."


def test_without_its_record_there_is_a_trajectory_all_the_same(tmp_path: Path) -> None:
    found = reading(made(CopilotCli, "gpt-4.1"), tmp_path, ASKS, BRINGS)
    assert found.usage is None
    assert len(steps(found)) == 2


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (
            {"errorType": "authentication", "message": "HTTP 401", "statusCode": 401},
            "model_unauthorized",
        ),
        ({"errorType": "query", "message": "Model 'x' not found", "statusCode": 404}, "model_unknown"),
        ({"errorType": "query", "message": "Last error: 500 oops", "statusCode": 500}, "model_unreachable"),
        ({"errorType": "query", "message": "Last error: unexpected EOF during chunk"}, "model_unreachable"),
        (
            {"errorType": "context_limit", "message": "exceeds the context window", "statusCode": 400},
            "context_overflow",
        ),
    ],
)
def test_troubles(tmp_path: Path, error: dict[str, Any], cause: str) -> None:
    found = reading(made(CopilotCli, "gpt-4.1"), tmp_path, event("session.error", **error), exit_code=1)
    assert found.trouble is not None
    assert found.trouble.cause == cause


@pytest.mark.parametrize(
    ("model", "kind", "wire", "url"),
    [
        ("anthropic/claude-sonnet-4.5", "anthropic", "completions", URL),
        ("gpt-5.1", "openai", "responses", f"{URL}/v1"),
        ("my-model", "openai", "completions", f"{URL}/v1"),
    ],
)
def test_a_model_of_ones_own(model: str, kind: str, wire: str, url: str) -> None:
    env = command(made(CopilotCli, model), model_url=URL).env
    assert (env["COPILOT_PROVIDER_TYPE"], env["COPILOT_PROVIDER_WIRE_API"]) == (kind, wire)
    assert (env["COPILOT_PROVIDER_BASE_URL"], env["COPILOT_OFFLINE"]) == (url, "true")


def test_a_model_of_ones_own_has_a_name() -> None:
    with pytest.raises(UsageError, match="needs a model"):
        command(made(CopilotCli, None), model_url=URL)


def test_githubs_own_model_needs_no_name() -> None:
    headless = command(made(CopilotCli, None), secrets={"GH_TOKEN": "t"})
    assert headless.env["GH_TOKEN"] == "t"
    assert "COPILOT_OFFLINE" not in headless.env
    assert "--model" not in headless.argv

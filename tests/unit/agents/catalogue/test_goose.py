"""goose: what is run, and what its events say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.agents.catalogue.agent_logs import URL, command, made, reading, steps, used
from valkyrie.agents.catalog.goose import Goose

COMPLETE = {
    "type": "complete",
    "input_tokens": 100,
    "output_tokens": 10,
    "cache_read_input_tokens": 40,
    "cost_usd": 0.25,
}
BANNER = "    __( O)>  goose is ready"


def said(key: str, *content: Any, role: str = "assistant", model: bool = True) -> dict[str, Any]:
    metadata = {"inference": {"provider": "openai", "requestedModel": "gpt-5"}} if model else {}
    message = {"id": key, "role": role, "content": list(content), "metadata": metadata}
    return {"type": "message", "message": message}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def asks(call: str) -> dict[str, Any]:
    value = {"name": "shell", "arguments": {"command": "ls"}}
    return {"type": "toolRequest", "id": call, "toolCall": {"status": "success", "value": value}}


def brings(call: str, words: str, *, error: bool = False) -> dict[str, Any]:
    value = {"content": [text(words)], "isError": error}
    return {"type": "toolResponse", "id": call, "toolResult": {"status": "success", "value": value}}


def test_a_whole_run(tmp_path: Path) -> None:
    found = reading(
        made(Goose, "gpt-5"),
        tmp_path,
        BANNER,
        said("a", text("I wri")),
        said("a", text("te it.")),
        said("a", asks("c1")),
        said("u", brings("c1", "x", error=True), role="user", model=False),
        said("b", text("Done.")),
        COMPLETE,
    )
    assert found.trouble is None
    assert used(found) == (100, 40, 10, 2)
    assert found.usage is not None
    assert (found.usage.cost, found.usage.cost_source, found.usage.model) == (0.25, "agent", "gpt-5")
    _, first, last = steps(found)
    assert (first["message"], last["message"]) == ("I write it.", "Done.")
    (result,) = first["observation"]["results"]
    assert (result["content"], result["extra"]) == ("x", {"is_error": True})


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("Ran into this error: Rate limit exceeded: Rate limit reached for requests.", "model_rate_limited"),
        ("Ran into this error: Server error (500 Internal Server Error) at http://x", "model_unreachable"),
        ("Network error: Stream decode error: error decoding response body", "model_unreachable"),
        ("Ran into this error: Request failed: Resource not found (404): The model x", "model_unknown"),
        (
            "Unable to continue: Context limit still exceeded after compaction. …context window",
            "context_overflow",
        ),
    ],
)
def test_what_goose_itself_says_is_a_trouble(tmp_path: Path, words: str, cause: str) -> None:
    found = reading(made(Goose, "gpt-5"), tmp_path, said("e", text(words), model=False), COMPLETE)
    assert found.trouble is not None
    assert found.trouble.cause == cause


def test_the_same_words_of_the_model_are_none(tmp_path: Path) -> None:
    words = text("Ran into this error: Rate limit exceeded")
    assert reading(made(Goose, "gpt-5"), tmp_path, said("a", words), COMPLETE).trouble is None


def test_an_end_in_error_is_a_trouble(tmp_path: Path) -> None:
    error = {"type": "error", "error": "Authentication failed. Status: 401 Unauthorized."}
    found = reading(made(Goose, "gpt-5"), tmp_path, said("a", text("hi")), error, exit_code=1)
    assert found.trouble is not None
    assert found.trouble.cause == "model_unauthorized"
    assert found.usage is None


@pytest.mark.parametrize(
    ("model", "provider", "host"),
    [
        ("anthropic/claude-sonnet-4-5", "anthropic", "ANTHROPIC_HOST"),
        ("gpt-5", "openai", "OPENAI_HOST"),
        ("gemini-2.5-pro", "google", "GOOGLE_HOST"),
        ("my-model", "openai", "OPENAI_HOST"),
    ],
)
def test_a_model_of_ones_own(model: str, provider: str, host: str) -> None:
    headless = command(made(Goose, model, max_turns="9"), model_url=f"{URL}/v1")
    assert headless.env["GOOSE_PROVIDER"] == provider
    assert headless.env[host] == URL
    assert list(headless.argv[-2:]) == ["--max-turns", "9"]

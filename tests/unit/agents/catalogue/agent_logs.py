"""Logs written by a test as an agent's program writes them, and how they are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from sandboxes.protocol import Sandbox
from valkyrie.agents.command import AgentCommandResult, Headless, LogSummary
from valkyrie.agents.installed import InstalledAgent
from valkyrie.agents.protocol import AgentOptions, AgentTrial
from valkyrie.domain import TaskSpec

URL = "http://127.0.0.1:8765"


def reading(
    agent: InstalledAgent, folder: Path, *events: Any, exit_code: int = 0, stderr: str = ""
) -> LogSummary:
    """What the agent reads in these events, one a line; a text is a line as it is."""
    log = folder / "log.jsonl"
    log.write_text(
        "".join((event if isinstance(event, str) else json.dumps(event)) + "\n" for event in events)
    )
    return agent.read(AgentCommandResult(log, exit_code, stderr, "Do it.", folder))


def steps(found: LogSummary) -> list[dict[str, Any]]:
    """The trajectory's steps as they are written; checked on the way."""
    assert found.trajectory is not None
    written: list[dict[str, Any]] = found.trajectory.to_json()["steps"]
    return written


def used(found: LogSummary) -> tuple[int, int, int, int]:
    """Tokens in, of them cached, out, and steps."""
    assert found.usage is not None
    usage = found.usage
    return usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.steps


def command(
    agent: InstalledAgent, *, model_url: str | None = None, secrets: Mapping[str, str] | None = None
) -> Headless:
    """What is run for a task; no sandbox is asked anything."""
    task = TaskSpec("t", "d", "Do it.")
    trial = AgentTrial(task, cast(Sandbox, None), secrets or {}, lambda _s, _t: None, model_url=model_url)
    return agent.headless(trial)


def made(cls: type[InstalledAgent], model: str | None, **kwargs: str) -> Any:
    """An agent of that class."""
    return cls(AgentOptions(model, kwargs))

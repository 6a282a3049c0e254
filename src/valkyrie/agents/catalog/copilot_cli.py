"""GitHub Copilot CLI."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from valkyrie.agents.catalog import CatalogAgent, KeyGroup
from valkyrie.agents.command import (
    HOME,
    AgentCommandResult,
    Counted,
    Headless,
    LogSummary,
    at,
    bring_out,
    json_lines,
    tokens,
    trouble,
    word,
)
from valkyrie.agents.installed import PLACEHOLDER_KEY, InstalledAgent, environment, unversioned, versioned
from valkyrie.agents.protocol import AgentCapabilities, AgentTrial, LayerSpec, Trouble, as_json, mcp_servers
from valkyrie.errors import UsageError
from valkyrie.trajectory import StepMetrics, TrajectoryBuilder
from valkyrie.trajectory.agent_logs import CopilotLog

_SESSION = "7a1b6c5e-0000-4000-8000-000000000001"
"""Each trial has a sandbox of its own, so one name for the session will do."""
_RECORD = "copilot-session.jsonl"


ENTRY = CatalogAgent(
    "GitHub Copilot CLI",
    f"{__name__}:CopilotCli",
    version="1.0.102",
    keys=(KeyGroup(("COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN")),),
    effort="reasoning_effort",
    tried="solves tasks with a model of one's own (--model-url); GitHub's own models were not tried; "
    "converses, takes up skills, uses MCP servers",
    tools="apply_patch ask_user bash create edit exit_plan_mode fetch_copilot_cli_documentation glob grep "
    "list_agents list_bash list_powershell powershell read_agent read_bash read_powershell report_intent "
    "rg show_file skill sql stop_bash stop_powershell store_memory str_replace str_replace_editor task "
    "task_complete update_todo view web_fetch web_search write_bash write_powershell",
)


class CopilotCli(InstalledAgent):
    """Runs `copilot --output-format json`."""

    name = "copilot-cli"
    entry = ENTRY
    capabilities = AgentCapabilities(
        converses=True, takes_mcp=True, takes_skills=True, skills_at=".github/skills"
    )
    program = "node_modules/@github/copilot-linux*/copilot"
    parameters: ClassVar[Mapping[str, str]] = {
        "reasoning_effort": "none, minimal, low, medium, high or xhigh"
    }
    vendors = ("anthropic", "openai", "google", "github")
    record = _RECORD
    hosts = ("api.github.com", "*.githubcopilot.com", "github.com")

    def packages(self) -> LayerSpec:
        package = f"@github/copilot-{{linux}}-{{cpu}}@{self.version}"
        return LayerSpec(self.name, self.version, npm=(package,))

    def headless(self, trial: AgentTrial) -> Headless:
        argv = [self.program_word, "--output-format", "json", "--allow-all", "--no-ask-user", "--no-color"]
        argv += ["--no-auto-update", "--disable-builtin-mcps", "--no-remote", "--log-level", "none"]
        argv += ["--session-id", _SESSION]
        if self.model:
            argv += ["--model", self.model]
        if effort := self.parameter("reasoning_effort"):
            argv += ["--reasoning-effort", effort]
        own = {"COPILOT_HOME": f"{HOME}/copilot", "XDG_CACHE_HOME": f"{HOME}/cache"}
        if trial.model_url:
            own |= _served(trial.model_url, self.model)
        files = {}
        if servers := mcp_servers(trial.task):
            files["copilot/mcp-config.json"] = json.dumps(
                as_json(servers, stdio="local", more={"tools": ["*"]})
            )
        return Headless([*argv, "--prompt"], environment(trial, **own), prompt="argument", files=files)

    def resumed(self, headless: Headless, session: str | None) -> Headless:
        """The same command: a session that exists under its id is gone on with."""
        _ = session
        return headless

    async def bring(self, trial: AgentTrial, kept: Path) -> None:
        record = f"{HOME}/copilot/session-state/{_SESSION}/events.jsonl"
        await bring_out(trial.sandbox, record, kept / _RECORD)

    def read(self, ran: AgentCommandResult) -> LogSummary:
        built, counted = TrajectoryBuilder(), Counted()
        ran.begin(built)
        metrics = _used(ran.kept / _RECORD, counted, ran.seen) if ran.kept else []
        log = CopilotLog(built)
        for event in ran.events(built):
            log.take(event, metrics[log.answers] if log.answers < len(metrics) else None)
        error = None if log.error is None else _trouble(log.error)
        if error is None and ran.exit_code != 0:
            error = trouble(ran.stderr[-500:])
        counted.steps = max(counted.steps, log.answers)
        found = counted.reading(built, self, _SESSION)
        return LogSummary(found.trajectory, found.usage, error)


def _served(url: str, model: str | None) -> dict[str, str]:
    """Another provider than GitHub's; nothing else is reached then."""
    if not model:
        raise UsageError("copilot-cli with --model-url needs a model; name one with --model.")
    anthropic = model.startswith("claude")
    return {
        "COPILOT_OFFLINE": "true",
        "COPILOT_PROVIDER_TYPE": "anthropic" if anthropic else "openai",
        "COPILOT_PROVIDER_BASE_URL": unversioned(url) if anthropic else versioned(url),
        "COPILOT_PROVIDER_API_KEY": PLACEHOLDER_KEY,
        "COPILOT_PROVIDER_WIRE_API": "responses" if model.startswith("gpt-5") else "completions",
    }


def _used(record: Path, counted: Counted, seen: int) -> list[StepMetrics | None]:
    """Return what each answer used, from the session's own record: stdout has none of it."""
    if not record.is_file():
        return []
    found = []
    for event in json_lines(record, seen):
        if event.get("type") == "session.usage_record":
            usage = at(event, "data", "usage")
            counted.model = word(at(usage, "model")) or counted.model
            step = counted.step(
                tokens(at(usage, "inputTokens")),
                tokens(at(usage, "outputTokens")),
                tokens(at(usage, "cacheReadTokens")),
            )
            found.append(step)
    return found


def _trouble(data: Any) -> Trouble:
    status = at(data, "statusCode")
    said = f"{word(at(data, 'errorType')) or 'error'}: {word(at(data, 'message'), 1000) or ''}"
    return trouble(said, status if isinstance(status, int) else None)

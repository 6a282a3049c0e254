"""Claude Code, Anthropic's agent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from valkyrie.agents.catalog import CatalogAgent, KeyGroup
from valkyrie.agents.command import HOME, AgentCommandResult, Headless, LogSummary, at, trouble, word
from valkyrie.agents.installed import PLACEHOLDER_KEY, InstalledAgent, environment, unversioned
from valkyrie.agents.protocol import (
    AgentCapabilities,
    AgentTrial,
    AgentUsage,
    LayerSpec,
    Trouble,
    as_json,
    mcp_servers,
)
from valkyrie.trajectory import AgentInfo, FinalMetrics, TrajectoryBuilder
from valkyrie.trajectory.agent_logs import ClaudeLog

KEYS = ("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN")
_MCP = "mcp.json"
_SETTINGS = "settings.json"
_VENDOR = "https://api.anthropic.com"
_LEADING_ELSEWHERE = (
    *("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BEDROCK_BASE_URL", "ANTHROPIC_CUSTOM_HEADERS"),
    *("ANTHROPIC_FOUNDRY_BASE_URL", "ANTHROPIC_UNIX_SOCKET", "ANTHROPIC_VERTEX_BASE_URL"),
    *("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_FOUNDRY", "CLAUDE_CODE_USE_VERTEX"),
    *("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "all_proxy", "https_proxy", "http_proxy"),
    *("NODE_EXTRA_CA_CERTS", "NODE_OPTIONS", "NODE_TLS_REJECT_UNAUTHORIZED"),
)
"""Variables that settings can hold and that say where it sends its key; empty they say nothing."""
_CAUSES: Mapping[str, str] = {
    "rate_limit": "model_rate_limited",
    "authentication_failed": "model_unauthorized",
    "billing_error": "model_unauthorized",
    "model_not_found": "model_unknown",
    "server_error": "model_unreachable",
    "overloaded": "model_unreachable",
}


ENTRY = CatalogAgent(
    "Anthropic's Claude Code",
    f"{__name__}:ClaudeCode",
    version="2.1.197",
    keys=(KeyGroup(("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN")),),
    effort="effort",
    tried="solves tasks; refusals, rate limits, overflow and cuts are told apart; converses, takes up "
    "skills, uses MCP servers",
    tools="Agent AskUserQuestion Bash BashOutput Edit EnterPlanMode ExitPlanMode Glob Grep KillShell LS "
    "ListMcpResourcesTool MultiEdit NotebookEdit NotebookRead Read ReadMcpResourceTool Skill "
    "SlashCommand Task TaskOutput TaskStop TodoRead TodoWrite ToolSearch WebFetch WebSearch Write",
)


class ClaudeCode(InstalledAgent):
    """Runs `claude --print` with all permissions, and reads its stream-json."""

    name = "claude-code"
    entry = ENTRY
    capabilities = AgentCapabilities(
        converses=True, takes_mcp=True, takes_skills=True, skills_at=".claude/skills"
    )
    program = "node_modules/@anthropic-ai/claude-code-linux-*/claude"
    vendors = ("anthropic",)
    hosts = ("api.anthropic.com",)
    parameters: ClassVar[Mapping[str, str]] = {
        "effort": "how hard the model thinks: low, medium, high, …",
        "max_turns": "answers of the model before it is stopped",
        "max_thinking_tokens": "tokens of thought for each answer",
        "max_retries": "times a request is tried again before the agent gives up",
    }

    def packages(self) -> LayerSpec:
        package = f"@anthropic-ai/claude-code-linux-{{cpu}}{{musl}}@{self.version}"
        return LayerSpec(self.name, self.version, npm=(package,))

    def headless(self, trial: AgentTrial) -> Headless:
        argv = [self.program_word, "--print", "--output-format", "stream-json", "--verbose"]
        argv += ["--dangerously-skip-permissions"]
        for flag, value in (
            ("--model", self.model),
            ("--max-turns", self.turn_limit("max_turns", trial.task)),
            ("--effort", self.parameter("effort")),
        ):
            argv += [flag, value] if value else []
        env = environment(trial, **self._environment(trial))
        # These win over .claude/settings.json of the task's folder, which could lead the key elsewhere.
        files = {_SETTINGS: json.dumps({"env": _addresses(env, trial)})}
        argv += ["--settings", f"{HOME}/{_SETTINGS}"]
        if servers := mcp_servers(trial.task):
            files[_MCP] = json.dumps(as_json(servers))
            argv += ["--strict-mcp-config", "--mcp-config", f"{HOME}/{_MCP}"]
        return Headless(argv, env, files=files)

    def resumed(self, headless: Headless, session: str | None) -> Headless:
        return replace(
            headless, argv=[*headless.argv, *(["--resume", session] if session else ["--continue"])]
        )

    def _environment(self, trial: AgentTrial) -> dict[str, str]:
        own = {
            "CLAUDE_CONFIG_DIR": f"{HOME}/claude",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            # It takes its own word for "no permissions are asked" as root only where it is sandboxed.
            "IS_SANDBOX": "1",
        }
        if retries := self.parameter("max_retries"):
            own["CLAUDE_CODE_MAX_RETRIES"] = retries
        if thinking := self.parameter("max_thinking_tokens"):
            own["MAX_THINKING_TOKENS"] = thinking
        if trial.model_url:
            own["ANTHROPIC_BASE_URL"] = unversioned(trial.model_url)
            if not any(trial.secrets.get(key) for key in KEYS):
                own["ANTHROPIC_API_KEY"] = PLACEHOLDER_KEY
            if self.model:
                # Whoever serves the model serves this one; the small ones beside it may not be there.
                own |= {"ANTHROPIC_DEFAULT_HAIKU_MODEL": self.model, "CLAUDE_CODE_SUBAGENT_MODEL": self.model}
        return own

    def read(self, ran: AgentCommandResult) -> LogSummary:
        return _Log(self).read(ran)


def _addresses(env: Mapping[str, str], trial: AgentTrial) -> dict[str, str]:
    """Return where it sends what, as its own environment has it; secrets stay out of the file."""
    found = {"ANTHROPIC_BASE_URL": env.get("ANTHROPIC_BASE_URL") or _VENDOR}
    return found | {name: env.get(name, "") for name in _LEADING_ELSEWHERE if name not in trial.secrets}


class _Log:
    """The log of one turn."""

    def __init__(self, agent: ClaudeCode) -> None:
        self._agent = agent
        self._built = TrajectoryBuilder()
        self._seen = ClaudeLog(self._built)

    def read(self, ran: AgentCommandResult) -> LogSummary:
        ran.begin(self._built)
        for event in ran.events(self._built):
            self._seen.take(event)
        final = self._seen.final()
        usage = self._usage(final)
        info = AgentInfo(name=self._agent.name, version=self._agent.version, model_name=usage.model)
        built = self._built.build(info, session_id=self._seen.session, final=final)
        return LogSummary(built, usage if usage.steps else None, self._trouble(ran))

    def _usage(self, final: FinalMetrics) -> AgentUsage:
        return AgentUsage(
            input_tokens=final.total_prompt_tokens or 0,
            cached_tokens=final.total_cached_tokens or 0,
            output_tokens=final.total_completion_tokens or 0,
            cost=final.total_cost_usd,
            cost_source=None if final.total_cost_usd is None else "agent",
            model=self._seen.model or self._agent.model,
            steps=len(self._seen.spent),
        )

    def _trouble(self, ran: AgentCommandResult) -> Trouble | None:
        result, failure = self._seen.result, self._seen.failure
        if result is None:
            if ran.exit_code == 0:
                return None
            said = word(at(failure, "message", "content", 0, "text"), 500)
            return trouble(said or ran.stderr[-500:], retry_after=self._asked())
        if result.get("is_error") is not True:
            return None
        said = word(result.get("result"), 500) or word(result.get("subtype")) or ""
        if result.get("stop_reason") == "refusal":
            return Trouble("model_refused", said)
        if result.get("terminal_reason") == "prompt_too_long":
            return Trouble("context_overflow", said)
        status = result.get("api_error_status")
        found = trouble(said, status if isinstance(status, int) else None, self._asked())
        if found.cause == "agent_gave_up" and (cause := _CAUSES.get(str(at(failure, "error")))):
            return Trouble(cause, found.message)
        return found

    def _asked(self) -> float | None:
        """Return seconds the model's server asked for, as the last retry says."""
        delay = at(self._seen.retry, "retry_delay_ms")
        if at(self._seen.retry, "error_status") != 429 or not isinstance(delay, int | float):
            return None
        return max(0.0, min(float(delay) / 1000, 86_400.0))

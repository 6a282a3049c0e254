"""Gemini CLI, Google's agent."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from valkyrie.agents.catalog import CatalogAgent, KeyGroup
from valkyrie.agents.command import (
    HOME,
    AgentCommandResult,
    Counted,
    Headless,
    LogSummary,
    at,
    tokens,
    trouble,
    word,
)
from valkyrie.agents.installed import PLACEHOLDER_KEY, InstalledAgent, environment, unversioned
from valkyrie.agents.protocol import AgentCapabilities, AgentTrial, LayerSpec, McpServer, Trouble, mcp_servers
from valkyrie.domain import Json
from valkyrie.trajectory import TrajectoryBuilder

_SETTINGS = {
    "general": {"enableAutoUpdate": False, "disableAutoUpdate": True, "disableUpdateNag": True},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
}


_LEADING_ELSEWHERE = (
    *(
        "CODE_ASSIST_ENDPOINT",
        "GOOGLE_GEMINI_BASE_URL",
        "GOOGLE_VERTEX_BASE_URL",
        "GEMINI_CLI_CUSTOM_HEADERS",
    ),
    *("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "all_proxy", "https_proxy", "http_proxy"),
    *("NODE_EXTRA_CA_CERTS", "NODE_OPTIONS", "NODE_TLS_REJECT_UNAUTHORIZED"),
)
"""Variables that say where it sends its key; empty they say nothing."""


ENTRY = CatalogAgent(
    "Google's Gemini CLI",
    f"{__name__}:GeminiCli",
    version="0.61.0",
    keys=(KeyGroup(("GEMINI_API_KEY", "GOOGLE_API_KEY")),),
    tried="solves tasks; refusals look like answers; what it used is known only if it came to its end; "
    "converses, takes up skills, uses MCP servers",
    tools="activate_skill ask_user delegate_to_agent glob google_web_search grep_search list_directory "
    "read_file read_many_files replace run_shell_command save_memory search_file_content web_fetch "
    "write_file write_todos",
)


class GeminiCli(InstalledAgent):
    """Runs `gemini --output-format stream-json`."""

    name = "gemini-cli"
    entry = ENTRY
    capabilities = AgentCapabilities(
        converses=True, takes_mcp=True, takes_skills=True, skills_at=".gemini/skills"
    )
    program = "bin/gemini"
    vendors = ("google", "gemini")
    hosts = ("generativelanguage.googleapis.com",)

    def packages(self) -> LayerSpec:
        package = f"@google/gemini-cli@{self.version}"
        return LayerSpec(self.name, self.version, npm=(package,), node=True)

    def headless(self, trial: AgentTrial) -> Headless:
        argv = [self.program_word, "--output-format", "stream-json", "--yolo", "--skip-trust"]
        if self.model:
            argv += ["--model", self.model]
        own = {"GEMINI_CLI_HOME": HOME, "GEMINI_CLI_NO_RELAUNCH": "true"}
        # With this name alone the program takes the key for one of another service.
        key = trial.secrets.get("GEMINI_API_KEY") or trial.secrets.get("GOOGLE_API_KEY")
        if key or trial.model_url:
            own["GEMINI_API_KEY"] = key or PLACEHOLDER_KEY
        if trial.model_url:
            own["GOOGLE_GEMINI_BASE_URL"] = unversioned(trial.model_url)
        env = environment(trial, **own)
        env.pop("GOOGLE_API_KEY", None)
        # It reads .env of the task's folder for whatever is not set, be it to nothing.
        env = {**dict.fromkeys(_LEADING_ELSEWHERE, ""), **env}
        settings: Json = dict(_SETTINGS)
        if servers := mcp_servers(trial.task):
            settings["mcpServers"] = {server.name: _server(server) for server in servers}
        return Headless(argv, env, files={".gemini/settings.json": json.dumps(settings)})

    def resumed(self, headless: Headless, session: str | None) -> Headless:
        """The last session is the only one in this home."""
        _ = session
        return replace(headless, argv=[*headless.argv, "--resume", "latest"])

    def read(self, ran: AgentCommandResult) -> LogSummary:
        return _Log(self).read(ran)


def _server(server: McpServer) -> Json:
    more = {"trust": True} | ({"timeout": int(server.timeout * 1000)} if server.timeout else {})
    if server.url:
        key = "url" if server.kind == "sse" else "httpUrl"
        return {key: server.url, "headers": dict(server.headers), **more}
    program, *args = server.argv
    return {"command": program, "args": args, "env": dict(server.env), **more}


class _Log:
    """Events: init, message (pieces), tool_use, tool_result, error, result."""

    def __init__(self, agent: GeminiCli) -> None:
        self._agent = agent
        self._built = TrajectoryBuilder()
        self._counted = Counted()
        self._error: Trouble | None = None
        self._session: str | None = None
        self._texts: list[str] = []
        self._calls: list[tuple[Any, Any, Any]] = []
        self._since: Any = None

    def read(self, ran: AgentCommandResult) -> LogSummary:
        ran.begin(self._built)
        for event in ran.events(self._built):
            self._take(str(event.get("type")), event)
        self._close()
        if self._error is None and ran.exit_code != 0:
            self._error = trouble(ran.stderr[-500:])
        found = self._counted.reading(self._built, self._agent, self._session)
        return LogSummary(found.trajectory, found.usage, self._error)

    def _take(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "init":
            self._session = word(event.get("session_id"))
            self._counted.model = word(event.get("model"))
        elif kind == "message" and event.get("role") == "assistant":
            if self._calls:  # calls end an answer; this is the next one
                self._close()
            self._since = self._since or event.get("timestamp")
            self._texts.append(str(event.get("content") or ""))
        elif kind == "tool_use":
            self._since = self._since or event.get("timestamp")
            self._calls.append((event.get("tool_id"), event.get("tool_name"), event.get("parameters")))
        elif kind == "tool_result":
            self._close()
            failed = event.get("status") == "error"
            content = event.get("output") or at(event, "error", "message")
            self._built.result(event.get("tool_id"), content, failed=failed)
        elif kind == "error" and event.get("severity") != "warning":
            self._error = trouble(word(event.get("message"), 1000) or "")
        elif kind == "result":
            self._result(event)

    def _result(self, event: dict[str, Any]) -> None:
        stats = event.get("stats")
        self._counted.input = tokens(at(stats, "input_tokens"))
        self._counted.output = tokens(at(stats, "output_tokens"))
        self._counted.cached = tokens(at(stats, "cached"))
        if event.get("status") == "error":
            self._error = trouble(word(at(event, "error", "message"), 1000) or "")
        else:
            self._error = None

    def _close(self) -> None:
        if self._texts or self._calls:
            self._counted.steps += 1
            self._built.agent(
                "".join(self._texts), calls=self._calls, model=self._counted.model, at=self._since
            )
        self._texts, self._calls, self._since = [], [], None

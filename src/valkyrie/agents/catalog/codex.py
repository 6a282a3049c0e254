"""Codex, OpenAI's agent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from valkyrie.agents.catalog import CatalogAgent, KeyGroup
from valkyrie.agents.command import (
    HOME,
    AgentCommandResult,
    Headless,
    LogSummary,
    at,
    bring_out,
    json_lines,
    tokens,
    trouble,
    word,
)
from valkyrie.agents.installed import PLACEHOLDER_KEY, InstalledAgent, environment, versioned
from valkyrie.agents.protocol import (
    AgentCapabilities,
    AgentOptions,
    AgentTrial,
    AgentUsage,
    LayerSpec,
    McpServer,
    Trouble,
    mcp_servers,
)
from valkyrie.errors import UsageError
from valkyrie.trajectory import AgentInfo, FinalMetrics, TrajectoryBuilder

SESSION = "codex-session.jsonl"
"""Its own record of the session; it tells the tokens of a run that was cut short."""
MOST_SESSION = 32 * 1024 * 1024
_CODEX_HOME = f"{HOME}/codex"
_KEY = "VALKYRIE_MODEL_KEY"
_EFFORT = re.compile(r"[a-z]{1,20}")
_TOOLS = ("command_execution", "file_change", "mcp_tool_call", "web_search", "todo_list", "collab_tool_call")


ENTRY = CatalogAgent(
    "OpenAI's Codex",
    f"{__name__}:Codex",
    version="0.166.0",
    keys=(KeyGroup(("OPENAI_API_KEY",)),),
    effort="effort",
    tried="solves tasks; refusals, rate limits, overflow and cuts are told apart; converses, takes up "
    "skills, sees MCP servers",
    tools="apply_patch collab_tool_call command_execution exec_command file_change mcp_tool_call shell "
    "todo_list update_plan view_image web_search write_stdin",
)


class Codex(InstalledAgent):
    """Runs `codex exec --json` without approvals or a sandbox of its own."""

    name = "codex"
    entry = ENTRY
    capabilities = AgentCapabilities(converses=True, takes_mcp=True, takes_skills=True)
    program = "node_modules/@openai/codex/vendor/*/bin/codex"
    vendors = ("openai",)
    hosts = ("api.openai.com",)
    record = SESSION
    parameters: ClassVar[Mapping[str, str]] = {
        "effort": "how hard the model thinks: minimal, low, medium, high, …",
        "max_retries": "times a request is tried again before the agent gives up; needs --model-url",
    }

    def __init__(self, options: AgentOptions) -> None:
        super().__init__(options)
        effort, retries = self.parameter("effort"), self.parameter("max_retries")
        if effort is not None and not _EFFORT.fullmatch(effort):
            raise UsageError(f"-k effort={effort[:40]}: one word is expected, like high.")
        if retries is not None and not re.fullmatch(r"\d{1,3}", retries):
            raise UsageError(f"-k max_retries={retries[:40]}: a whole number is expected.")
        if retries is not None and not options.model_url:
            raise UsageError(
                "codex lets -k max_retries be set only for a model served at --model-url; leave it out."
            )

    def packages(self) -> LayerSpec:
        return LayerSpec(self.name, self.version, npm=(f"@openai/codex@{self.version}-linux-{{cpu}}",))

    def headless(self, trial: AgentTrial) -> Headless:
        argv = [self.program_word, "exec", "--json", "--skip-git-repo-check"]
        argv += ["--dangerously-bypass-approvals-and-sandbox"]
        if self.model:
            argv += ["--model", self.model]
        for setting in self._settings(trial.model_url):
            argv += ["-c", setting]
        own = {"CODEX_HOME": _CODEX_HOME}
        if key := trial.secrets.get("OPENAI_API_KEY"):
            own["CODEX_API_KEY"] = key
        if trial.model_url:
            own[_KEY] = key or PLACEHOLDER_KEY
        # It wants its folder to be there; a file makes it.
        files = {"codex/.keep": ""}
        if servers := mcp_servers(trial.task):
            files["codex/config.toml"] = "\n".join(_toml(servers))
        return Headless([*argv, "-"], environment(trial, **own), files=files)

    def resumed(self, headless: Headless, session: str | None) -> Headless:
        program, verb, *options, stdin = headless.argv
        return replace(headless, argv=[program, verb, "resume", *options, session or "--last", stdin])

    def _settings(self, model_url: str | None) -> list[str]:
        found = ["check_for_update_on_startup=false", "analytics.enabled=false"]
        if effort := self.parameter("effort"):
            found.append(f'model_reasoning_effort="{effort}"')
        if model_url:
            name = "model_providers.valkyrie"
            # A JSON string is a TOML string.
            found += [
                'model_provider="valkyrie"',
                f'{name}.name="valkyrie"',
                f"{name}.base_url={json.dumps(versioned(model_url))}",
                f'{name}.env_key="{_KEY}"',
                f'{name}.wire_api="responses"',
            ]
            if retries := self.parameter("max_retries"):
                found += [f"{name}.request_max_retries={retries}", f"{name}.stream_max_retries={retries}"]
        return found

    async def bring(self, trial: AgentTrial, kept: Path) -> None:
        found = await trial.sandbox.list_files(f"{_CODEX_HOME}/sessions/*/*/*/rollout-*.jsonl")
        if found:
            await bring_out(trial.sandbox, sorted(found)[0], kept / SESSION, MOST_SESSION)

    def read(self, ran: AgentCommandResult) -> LogSummary:
        return _Log(self).read(ran)


class _Log:
    """Events: thread.started, turn.*, item.*, error."""

    def __init__(self, agent: Codex) -> None:
        self._agent = agent
        self._built = TrajectoryBuilder()
        self._session: str | None = None
        self._error: str | None = None
        self._said: list[str] = []
        self._thought: list[str] = []
        self._open: dict[str, dict[str, Any]] = {}
        self._items = 0
        self._spent = (0, 0, 0)
        """Input, cached, output."""
        self._asked = 0

    def read(self, ran: AgentCommandResult) -> LogSummary:
        ran.begin(self._built)
        ended = False
        for event in ran.events(self._built):
            ended = event.get("type") == "turn.completed" or (ended and event.get("type") != "turn.started")
            self._take(event)
        for item in self._open.values():
            self._tool(item, done=False)
        self._speak()
        if ran.kept:
            self._session_tokens(ran.kept / SESSION, ran.seen)
        usage = self._usage()
        final = FinalMetrics(
            total_prompt_tokens=usage.input_tokens,
            total_completion_tokens=usage.output_tokens,
            total_cached_tokens=usage.cached_tokens,
        )
        info = AgentInfo(name="codex", version=self._agent.version, model_name=usage.model)
        built = self._built.build(info, session_id=self._session, final=final)
        return LogSummary(built, usage if usage.steps else None, self._trouble(ran, ended=ended))

    def _take(self, event: dict[str, Any]) -> None:
        kind, item = event.get("type"), event.get("item")
        if kind == "thread.started":
            self._session = word(event.get("thread_id"))
        elif kind == "item.started" and isinstance(item, dict):
            self._open[str(item.get("id"))] = item
        elif kind == "item.completed" and isinstance(item, dict):
            self._open.pop(str(item.get("id")), None)
            self._item(item)
        elif kind == "turn.completed":
            self._add(event.get("usage"))
            self._error = None
        elif kind == "turn.failed":
            self._error = word(at(event, "error", "message"), 1000) or "the turn failed"
        elif kind == "error":
            self._error = word(event.get("message"), 1000) or "an error"

    def _item(self, item: dict[str, Any]) -> None:
        kind = item.get("type")
        if kind == "agent_message":
            if self._said:
                self._speak()
            self._said.append(str(item.get("text") or ""))
        elif kind == "reasoning":
            self._thought.append(str(item.get("text") or ""))
        elif kind in _TOOLS:
            self._tool(item, done=True)
        # Items of type error are notices: the turn goes on.
        self._items += kind != "error"

    def _tool(self, item: dict[str, Any], *, done: bool) -> None:
        """A tool, in one step with what was said before it."""
        kind, call = str(item.get("type")), item.get("id")
        known = ("id", "type", "status", "aggregated_output", "exit_code", "result", "error")
        arguments = {key: value for key, value in item.items() if key not in known}
        self._speak(calls=[(call, at(item, "tool") or kind, at(item, "arguments") or arguments)])
        if done:
            outputs = [item.get(key) for key in ("aggregated_output", "result", "error")]
            brought = next((output for output in outputs if output is not None), "")
            self._built.result(call, brought, failed=item.get("status") == "failed")

    def _speak(self, calls: list[tuple[Any, Any, Any]] | None = None) -> None:
        if not (self._said or self._thought or calls):
            return
        self._built.agent("\n".join(self._said), reasoning="\n".join(self._thought), calls=calls or ())
        self._said, self._thought = [], []

    def _add(self, usage: Any) -> None:
        new = [tokens(at(usage, key)) for key in ("input_tokens", "cached_input_tokens", "output_tokens")]
        before = self._spent
        self._spent = (before[0] + new[0], before[1] + new[1], before[2] + new[2])

    def _session_tokens(self, path: Path, seen: int) -> None:
        """Take what the session's own record has counted, which a failed turn's events do not tell.

        The events of a session that is gone on with count what was before; its record has each answer.
        """
        if not path.is_file():
            return
        total: Any = None
        if seen:
            self._spent = (0, 0, 0)
        for line in json_lines(path, seen):
            if at(line, "payload", "type") == "token_count" and at(line, "payload", "info"):
                self._asked += 1
                total = at(line, "payload", "info", "total_token_usage")
                if seen:
                    self._add(at(line, "payload", "info", "last_token_usage"))
        if total and self._spent == (0, 0, 0):
            self._add(total)

    def _usage(self) -> AgentUsage:
        prompt, cached, output = self._spent
        return AgentUsage(
            input_tokens=prompt,
            cached_tokens=min(cached, prompt),
            output_tokens=output,
            model=self._agent.model,
            # Its tools can remove the session's file, but not what it printed.
            steps=self._asked or int(bool(prompt or output or self._items or self._open)),
        )

    def _trouble(self, ran: AgentCommandResult, *, ended: bool) -> Trouble | None:
        if self._error is not None:
            return trouble(_plain(self._error))
        if ended and self._items == 0 and self._spent[2]:
            # Codex passes over a refusal: what is left is a turn in which the model said and did nothing.
            return Trouble("model_refused", "the model ended its turn without a word or a deed")
        if ran.exit_code != 0 and not ended:
            return trouble(ran.stderr[-500:])
        return None


def _toml(servers: Sequence[McpServer]) -> Iterator[str]:
    """Servers in its settings; a JSON string is a TOML string."""
    for server in servers:
        yield f"[mcp_servers.{server.name}]"
        if server.url:
            yield f"url = {json.dumps(server.url)}"
        else:
            yield f"command = {json.dumps(server.argv[0])}"
            yield f"args = {json.dumps(list(server.argv[1:]))}"
        if server.timeout:
            yield f"tool_timeout_sec = {server.timeout:.3f}"
        for key, values in (("env", server.env), ("http_headers", server.headers)):
            if values:
                yield f"[mcp_servers.{server.name}.{key}]"
                yield from (f"{json.dumps(name)} = {json.dumps(value)}" for name, value in values.items())


def _plain(message: str) -> str:
    """The words of an error; it may be the JSON the server sent."""
    try:
        error = at(json.loads(message), "error")
    except ValueError:
        return message
    said = [word(at(error, "code")), word(at(error, "message"), 500)]
    return ": ".join(part for part in said if part) or message

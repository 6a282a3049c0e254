"""opencode, the open-source terminal agent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from sandboxes.retry import parse_retry_after
from valkyrie.agents.catalog import ANY_VENDOR, CatalogAgent
from valkyrie.agents.command import (
    HOME,
    AgentCommandResult,
    Counted,
    Headless,
    LogSummary,
    at,
    dollars,
    tokens,
    trouble,
    word,
)
from valkyrie.agents.installed import (
    PLACEHOLDER_KEY,
    InstalledAgent,
    environment,
    unversioned,
    vendor_and_model,
    versioned,
)
from valkyrie.agents.protocol import AgentCapabilities, AgentTrial, LayerSpec, McpServer, Trouble, mcp_servers
from valkyrie.domain import Json
from valkyrie.trajectory import TrajectoryBuilder

_KEYS: Mapping[str, str] = {
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "google": "GOOGLE_GENERATIVE_AI_API_KEY",
}
_OTHERS = "@ai-sdk/openai-compatible"


_ADDRESSES = {
    "anthropic": "https://api.anthropic.com",
    "google": "https://generativelanguage.googleapis.com",
    "openai": "https://api.openai.com",
}


ENTRY = CatalogAgent(
    "opencode, the open-source terminal agent",
    f"{__name__}:OpenCode",
    version="1.18.33",
    keys=(ANY_VENDOR,),
    needs_model=True,
    effort="variant",
    tried="solves tasks over all four APIs; needs 1 GB of memory; waits for ever for a busy model; "
    "converses, uses MCP servers; its skills need ripgrep in the sandbox",
    tools="apply_patch bash codesearch edit glob grep invalid list lsp multiedit patch question read skill "
    "task todoread todowrite webfetch websearch write",
)


class OpenCode(InstalledAgent):
    """Runs `opencode run --format json`."""

    name = "opencode"
    entry = ENTRY
    capabilities = AgentCapabilities(
        converses=True, takes_mcp=True, takes_skills=True, skills_at=".opencode/skills"
    )
    program = "node_modules/opencode-linux-*/bin/opencode"
    parameters: ClassVar[Mapping[str, str]] = {
        "variant": "how hard the model thinks, in the vendor's own words"
    }

    def packages(self) -> LayerSpec:
        package = f"opencode-linux-{{cpu}}{{musl}}@{self.version}"
        return LayerSpec(self.name, self.version, npm=(package,))

    def headless(self, trial: AgentTrial) -> Headless:
        vendor, model = self.vendor(served=trial.model_url is not None)
        argv = [self.program_word, "run", "--format", "json", "--auto", "--title", "task"]
        argv += ["--model", f"{vendor}/{model}"]
        if variant := self.parameter("variant"):
            argv += ["--variant", variant]
        settings = self._settings(vendor, model, trial.model_url)
        if servers := mcp_servers(trial.task):
            settings["mcp"] = {server.name: _server(server) for server in servers}
        # Over opencode.json of the task's folder, which could lead the key elsewhere.
        chosen = trial.task.env.get(f"{vendor.upper()}_BASE_URL") if trial.model_url is None else None
        address = chosen or self._address(vendor, trial.model_url)
        content = {"provider": {vendor: {"options": {"baseURL": address}}}} if address else {}
        env = environment(
            trial, **self._environment(trial, vendor), OPENCODE_CONFIG_CONTENT=json.dumps(content)
        )
        return Headless(argv, env, files={"opencode.json": json.dumps(settings)})

    def resumed(self, headless: Headless, session: str | None) -> Headless:
        return replace(
            headless, argv=[*headless.argv, *(["--session", session] if session else ["--continue"])]
        )

    def vendor(self, *, served: bool) -> tuple[str, str]:
        """Return whose model it is, and its name."""
        return vendor_and_model(self.name, self.model or "", served=served)

    def _environment(self, trial: AgentTrial, vendor: str) -> dict[str, str]:
        own = {
            "OPENCODE_CONFIG": f"{HOME}/opencode.json",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
            **{f"XDG_{kind}_HOME": f"{HOME}/{kind.lower()}" for kind in ("DATA", "CONFIG", "CACHE", "STATE")},
        }
        if key := trial.secrets.get("GOOGLE_API_KEY") or trial.secrets.get("GEMINI_API_KEY"):
            own[_KEYS["google"]] = key
        if trial.model_url:
            own["OPENCODE_DISABLE_MODELS_FETCH"] = "1"
            name = _KEYS.get(vendor)
            if name and not {**trial.secrets, **own}.get(name):
                own[name] = PLACEHOLDER_KEY
        return own

    def _address(self, vendor: str, model_url: str | None) -> str | None:
        """Return where the vendor's models are asked; None where only opencode knows."""
        if model_url and vendor not in _KEYS:
            return versioned(model_url)
        base = unversioned(model_url) if model_url else _ADDRESSES.get(vendor)
        return base and base + ("/v1beta" if vendor == "google" else "/v1")

    def _settings(self, vendor: str, model: str, model_url: str | None) -> Json:
        provider: Json = {"models": {model: {}}}
        if model_url and vendor in _KEYS:
            provider["options"] = {"baseURL": self._address(vendor, model_url)}
        elif model_url:
            provider |= {"npm": _OTHERS, "name": vendor}
            provider["options"] = {"baseURL": self._address(vendor, model_url), "apiKey": PLACEHOLDER_KEY}
        return {"autoupdate": False, "share": "disabled", "provider": {vendor: provider}}

    def read(self, ran: AgentCommandResult) -> LogSummary:
        return _Log(self).read(ran)


def _server(server: McpServer) -> Json:
    more: Json = {"enabled": True} | ({"timeout": int(server.timeout * 1000)} if server.timeout else {})
    if server.url:
        return {"type": "remote", "url": server.url, "headers": dict(server.headers), **more}
    return {"type": "local", "command": list(server.argv), "environment": dict(server.env), **more}


class _Log:
    """Events: step_start, text, reasoning, tool_use, step_finish, error."""

    def __init__(self, agent: OpenCode) -> None:
        self._agent = agent
        self._built = TrajectoryBuilder()
        self._counted = Counted()
        _, self._counted.model = agent.vendor(served=True)
        self._error: Trouble | None = None
        self._session: str | None = None
        self._forget()

    def _forget(self) -> None:
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._tools: list[dict[str, Any]] = []

    def read(self, ran: AgentCommandResult) -> LogSummary:
        ran.begin(self._built)
        for event in ran.events(self._built):
            self._session = self._session or word(event.get("sessionID"))
            self._take(str(event.get("type")), event)
        self._close(None)
        reading = self._counted.reading(self._built, self._agent, self._session)
        if self._error is None and ran.exit_code != 0 and ran.stderr.strip():
            self._error = trouble(ran.stderr[-500:])
        return LogSummary(reading.trajectory, reading.usage, self._error)

    def _take(self, kind: str, event: dict[str, Any]) -> None:
        part = event.get("part")
        if kind == "step_start":
            self._close(None)
        elif kind in ("text", "reasoning"):
            (self._texts if kind == "text" else self._thoughts).append(str(at(part, "text") or ""))
        elif kind == "tool_use" and isinstance(part, dict):
            self._tools.append(part)
        elif kind == "step_finish":
            self._close(part)
        elif kind == "error":
            self._error = _trouble(event.get("error"))

    def _close(self, finished: Any) -> None:
        """One answer of the model is whole, with what its tools brought back."""
        if not (self._texts or self._thoughts or self._tools or finished):
            return
        self._error = None if finished else self._error
        metrics = None
        if finished:
            read = tokens(at(finished, "tokens", "cache", "read"))
            written = tokens(at(finished, "tokens", "cache", "write"))
            metrics = self._counted.step(
                tokens(at(finished, "tokens", "input")) + read + written,
                tokens(at(finished, "tokens", "output")) + tokens(at(finished, "tokens", "reasoning")),
                read,
                dollars(at(finished, "cost")) or None,
            )
            if at(finished, "reason") == "content-filter":
                self._error = trouble("content_filter: the model refused to go on")
        calls = [(tool.get("callID"), tool.get("tool"), at(tool, "state", "input")) for tool in self._tools]
        self._built.agent(
            "\n".join(self._texts), calls=calls, reasoning="\n".join(self._thoughts), metrics=metrics
        )
        for tool in self._tools:
            failed = at(tool, "state", "status") == "error"
            content = at(tool, "state", "error" if failed else "output")
            self._built.result(tool.get("callID"), content, failed=failed)
        self._forget()


def _trouble(error: Any) -> Trouble:
    status = at(error, "data", "statusCode")
    said = [word(at(error, "name")), word(at(error, "data", "message"), 1000), word(at(error, "message"))]
    body = word(at(error, "data", "responseBody"), 500)
    return trouble(
        ": ".join(filter(None, [*said, body])),
        status if isinstance(status, int) else None,
        parse_retry_after(at(error, "data", "responseHeaders", "retry-after")),
    )

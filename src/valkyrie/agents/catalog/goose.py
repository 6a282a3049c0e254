"""goose, the open-source agent that began at Block."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from valkyrie.agents.catalog import ANY_VENDOR, CatalogAgent
from valkyrie.agents.command import (
    HOME,
    AgentCommandResult,
    Counted,
    Headless,
    LogSummary,
    at,
    dollars,
    items,
    tokens,
    trouble,
    word,
)
from valkyrie.agents.installed import (
    ELSEWHERE,
    PLACEHOLDER_KEY,
    InstalledAgent,
    environment,
    unversioned,
    vendor_and_model,
)
from valkyrie.agents.protocol import (
    AgentCapabilities,
    AgentTrial,
    AgentUsage,
    LayerSpec,
    McpServer,
    Trouble,
    mcp_servers,
    skills_of,
)
from valkyrie.trajectory import TrajectoryBuilder

_VENDORS: Mapping[str, tuple[str, str]] = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_HOST"),
    "openai": ("OPENAI_API_KEY", "OPENAI_HOST"),
    "google": ("GOOGLE_API_KEY", "GOOGLE_HOST"),
}
"""The key and the address each takes from the environment."""
_NAME = "valkyrie"
"""Of the session, where there will be more than one turn."""
_ERRORS = ("Ran into this error", "Network error", "Unable to continue", "The error above", "Error")


ENTRY = CatalogAgent(
    "goose, the open-source agent that began at Block",
    f"{__name__}:Goose",
    version="1.52.0",
    keys=(ANY_VENDOR,),
    needs_model=True,
    tried="solves tasks; refusals look like answers; npm has it for x86_64 with glibc only; converses, "
    "takes up skills, uses MCP servers",
    tools="analyze computercontroller__web_scrape developer__analyze developer__image_processor "
    "developer__list_windows developer__screen_capture developer__shell developer__text_editor edit "
    "shell text_editor todo__todo_write tree write",
)


class Goose(InstalledAgent):
    """Runs `goose run` with the developer tools."""

    name = "goose"
    entry = ENTRY
    capabilities = AgentCapabilities(
        converses=True, takes_mcp=True, takes_mcp_headers=False, takes_skills=True
    )
    program = "node_modules/@aaif/goose-binary-linux-*/bin/goose"
    parameters: ClassVar[Mapping[str, str]] = {"max_turns": "how often the model may be asked"}

    def packages(self) -> LayerSpec:
        package = f"@aaif/goose-binary-linux-{{cpu}}@{self.version}"
        return LayerSpec(self.name, self.version, npm=(package,))

    def headless(self, trial: AgentTrial) -> Headless:
        vendor, model = vendor_and_model(self.name, self.model or "", served=trial.model_url is not None)
        provider = "openai" if vendor == ELSEWHERE else vendor
        argv = [self.program_word, "run", "--instructions", "-", "--output-format", "stream-json"]
        argv += ["--name", _NAME] if len(trial.turns) > 1 else ["--no-session"]
        argv += [
            "--no-profile",
            "--with-builtin",
            "developer,skills" if skills_of(trial.task) else "developer",
        ]
        argv += ["--provider", provider, "--model", model]
        if turns := self.turn_limit("max_turns", trial.task):
            argv += ["--max-turns", turns]
        servers = mcp_servers(trial.task)
        argv += [word for server in servers for word in _extension(server)]
        files = {_script(server): _starting(server) for server in servers if not server.url}
        return Headless(argv, environment(trial, **_environment(trial, provider, model)), files=files)

    def resumed(self, headless: Headless, session: str | None) -> Headless:
        _ = session
        return replace(headless, argv=[*headless.argv, "--resume"])

    def read(self, ran: AgentCommandResult) -> LogSummary:
        return _Log(self).read(ran)


def _script(server: McpServer) -> str:
    return f"mcp/{server.name}.sh"


def _extension(server: McpServer) -> Iterator[str]:
    """The words that add a server; goose splits a command at its blanks, so it stands in a script."""
    if server.url:
        yield from ("--with-streamable-http-extension", server.url)
    else:
        yield from ("--with-extension", f"{server.name}:/bin/sh {HOME}/{_script(server)}")


def _starting(server: McpServer) -> str:
    variables = [f"export {key}={shlex.quote(value)}\n" for key, value in server.env.items()]
    return "".join([*variables, f"exec {shlex.join(server.argv)}\n"])


def _environment(trial: AgentTrial, provider: str, model: str) -> dict[str, str]:
    own = {
        "GOOSE_PROVIDER": provider,
        "GOOSE_MODEL": model,
        "GOOSE_MODE": "auto",
        "GOOSE_DISABLE_KEYRING": "1",
        "GOOSE_DISABLE_SESSION_NAMING": "true",
        "GOOSE_TELEMETRY_ENABLED": "false",
        **{f"XDG_{kind}_HOME": f"{HOME}/{kind.lower()}" for kind in ("DATA", "CONFIG", "CACHE", "STATE")},
    }
    if trial.model_url and provider in _VENDORS:
        key, host = _VENDORS[provider]
        own[host] = unversioned(trial.model_url)
        own[key] = trial.secrets.get(key) or PLACEHOLDER_KEY
    return own


class _Log:
    """Events: message (pieces of one have one id), complete, error, notification."""

    def __init__(self, agent: Goose) -> None:
        self._agent = agent
        self._built = TrajectoryBuilder()
        self._counted = Counted()
        self._error: Trouble | None = None
        self._before = AgentUsage()
        self._open: str | None = None
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[tuple[Any, Any, Any]] = []

    def read(self, ran: AgentCommandResult) -> LogSummary:
        ran.begin(self._built)
        self._before = ran.before or AgentUsage()
        for event in ran.events(self._built):
            if event.get("type") == "message":
                self._message(event.get("message"))
            elif event.get("type") == "error":
                self._error = trouble(word(event.get("error"), 1000) or "")
            elif event.get("type") == "complete":
                self._complete(event)
        self._close()
        if self._error is None and ran.exit_code != 0:
            self._error = trouble(ran.stderr[-500:])
        found = self._counted.reading(self._built, self._agent)
        return LogSummary(found.trajectory, found.usage, self._error)

    def _message(self, message: Any) -> None:
        if at(message, "role") == "user":
            for part in items(at(message, "content")):
                self._result(part)
            return
        # What goose itself has to say has no model in it; only that is believed to be an error.
        model = word(at(message, "metadata", "inference", "requestedModel"))
        if model is None:
            self._own_words(items(at(message, "content")))
            return
        self._counted.model = model
        key = word(at(message, "id"))
        if key != self._open or key is None:
            self._close()
            self._open = key
            self._counted.steps += 1
            self._error = None
        for part in items(at(message, "content")):
            self._part(part)

    def _part(self, part: Any) -> None:
        kind = at(part, "type")
        if kind == "text":
            self._texts.append(str(at(part, "text") or ""))
        elif kind == "thinking":
            self._thoughts.append(str(at(part, "thinking") or ""))
        elif kind == "toolRequest":
            call = at(part, "toolCall", "value")
            self._calls.append((at(part, "id"), at(call, "name"), at(call, "arguments")))

    def _result(self, part: Any) -> None:
        if at(part, "type") != "toolResponse":
            return
        self._close()
        result = at(part, "toolResult")
        failed = at(result, "status") == "error" or at(result, "value", "isError") is True
        pieces = [at(piece, "text") for piece in items(at(result, "value", "content"))]
        said = "\n".join(piece for piece in pieces if isinstance(piece, str))
        self._built.result(at(part, "id"), said or at(result, "error"), failed=failed)

    def _own_words(self, parts: list[Any]) -> None:
        self._close()
        for part in parts:
            said = word(at(part, "text") or at(part, "message") or at(part, "msg"), 1000)
            if said and (at(part, "type") == "error" or said.startswith(_ERRORS)):
                self._error = trouble(said)
            elif said:
                self._built.system(said)

    def _complete(self, event: dict[str, Any]) -> None:
        """Take what the session used so far, also in its earlier turns."""
        before, counted = self._before, self._counted
        counted.input = max(0, tokens(event.get("input_tokens")) - before.input_tokens)
        counted.output = max(0, tokens(event.get("output_tokens")) - before.output_tokens)
        counted.cached = max(0, tokens(event.get("cache_read_input_tokens")) - before.cached_tokens)
        cost = dollars(event.get("cost_usd"))
        counted.cost = None if cost is None else max(0.0, cost - (before.cost or 0.0))

    def _close(self) -> None:
        if self._texts or self._thoughts or self._calls:
            self._built.agent(
                "".join(self._texts),
                calls=self._calls,
                reasoning="".join(self._thoughts),
                model=self._counted.model,
            )
        self._open, self._texts, self._thoughts, self._calls = None, [], [], []

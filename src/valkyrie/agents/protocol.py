"""Define what an agent is to the engine, and its abilities: conversations, skills, MCP servers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from benchmark_runner.agent_bundle.resolution import OutputArtifact as OutputArtifact
from sandboxes.protocol import KILLED_EXIT_CODE, TIMEOUT_EXIT_CODE, OutputSink, Sandbox
from valkyrie.domain import ExitReason, Json, TaskSpec
from valkyrie.errors import UsageError
from valkyrie.text import did_you_mean
from valkyrie.trajectory.transcript import DEFAULT_LIMIT

if TYPE_CHECKING:
    from valkyrie.agents.catalog import KeyGroup
    from valkyrie.trajectory.transcript import Transcript


MODEL_URL = "VALKYRIE_MODEL_URL"
"""Environment variable of the agent's commands: where its model is served, if the run says so."""
SKILLS = "skills"
"""In a task's metadata: the names of the skills its workspace has."""
SKILLS_AT = ".agents/skills"
"""Where most agents look for skills, below the folder they work in."""


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What the command line says about an agent: `--model`, `-k`, `-s`."""

    model: str | None = None
    kwargs: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Environment variable → secret name."""
    model_url: str | None = None
    """`--model-url`: its model is served there, so that no vendor's key is needed."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """Software an agent needs, installed once and shown read-only to every trial: no code of it is run
    while it is installed."""

    name: str
    version: str
    npm: Sequence[str] = ()
    """Packages with their exact versions, `name@1.2.3`."""
    pip: Sequence[str] = ()
    """Packages with their exact versions, `name==1.2.3`."""
    node: bool = False
    """It needs a Node.js of its own where the root file system has none."""

    @property
    def target(self) -> str:
        """Where it is seen in the sandbox."""
        return f"/opt/valkyrie/{self.name}"


@dataclass(frozen=True, slots=True)
class AgentCapabilities:
    """What an agent can do besides one task told at once. The defaults are what every agent can do."""

    converses: bool = False
    """It can be told something more after it has answered; False: tasks of several turns are refused."""
    takes_mcp: bool = False
    """It uses the MCP servers of a task."""
    takes_mcp_headers: bool = True
    """It sends the headers that a server over HTTP wants."""
    takes_skills: bool = False
    """It is shown the skills of a task's `skills_dir`."""
    skills_at: str = SKILLS_AT
    """Where it looks for skills, below the folder it works in."""

    @classmethod
    def from_attributes(cls, agent: object) -> AgentCapabilities:
        """Return what an agent declares by attributes of these names."""
        names = [one.name for one in fields(cls)]
        return cls(**{name: getattr(agent, name) for name in names if hasattr(agent, name)})


@dataclass(frozen=True, slots=True)
class AgentUsage:
    """What an attempt used of its model, as the agent's own log says."""

    input_tokens: int = 0
    """Cached ones included."""
    cached_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    """US dollars: the agent's own number, or one worked out from published prices."""
    cost_source: str | None = None
    """`agent`, or `prices` and the date they are of."""
    model: str | None = None
    """The one that answered."""
    steps: int = 0
    """Times the model was asked."""

    def plus(self, other: AgentUsage | None) -> AgentUsage:
        """Both together; a cost that is known of one only is no cost of both."""
        if other is None:
            return self
        known = self.cost is not None and other.cost is not None
        return AgentUsage(
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost=(self.cost or 0.0) + (other.cost or 0.0) if known else None,
            cost_source=other.cost_source if known else None,
            model=other.model,
            steps=self.steps + other.steps,
        )


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why the agent gave up, read from its log: the cause decides whether that is graded or tried again."""

    cause: str
    """A row of schedule.policy's TABLE: model_rate_limited, model_unreachable, model_refused, …"""
    message: str
    retry_after: float | None = None


async def _nobody_looks(_number: int) -> None:
    """After a turn nothing is looked at."""


@dataclass(frozen=True, slots=True)
class AgentTrial:
    """Everything an agent is given for one attempt."""

    task: TaskSpec
    sandbox: Sandbox
    secrets: Mapping[str, str]
    """Environment variable → value; only what the contract names."""
    log: OutputSink
    solution: Path | None = None
    """Only the oracle looks at it."""
    kept: Path | None = None
    """A folder of the host (made by who writes) whose files are kept with the attempt, as `agent/…`."""
    model_url: str | None = None
    """Where the model is served, as seen from inside the sandbox; None is the vendor's own place."""
    layer: Path | None = None
    """The agent's layer on the host, where the provider could not show it; `install` brings it in."""
    k: int = 0
    """Which trial of the task it is, from 0."""
    attempt: int = 1
    """Which attempt at that trial, from 1."""
    trajectory_limit: int = DEFAULT_LIMIT
    """Bytes kept of what it tells of itself; more is cut at a step."""
    turn_ended: Callable[[int], Awaitable[None]] = _nobody_looks
    """To be awaited when a turn (from 0) but the last has ended: what is there now may be graded."""

    @property
    def turns(self) -> tuple[str, ...]:
        """What the agent is told, one thing after another; mostly it is one."""
        return self.task.turns or (self.task.instruction,)


@dataclass(frozen=True, slots=True)
class AgentExit:
    """How the agent's command ended."""

    exit_code: int
    reason: ExitReason | None = None
    usage: AgentUsage | None = None
    trouble: Trouble | None = None
    told: Transcript | None = None
    """What it did, of an agent that tells it here and not in a file; kept with the attempt."""


def exit_of(code: int) -> AgentExit:
    """Return how a command ended, with the two codes that say it did not end by itself."""
    reasons = {TIMEOUT_EXIT_CODE: ExitReason.TIMEOUT, KILLED_EXIT_CODE: ExitReason.OS_KILLED}
    return AgentExit(code, reasons.get(code))


class Agent(Protocol):
    """What is tested: installed into a sandbox, then run on one task.

    Other people's agents need `name`, `digest`, `secrets`, `install` and `run`; where they are loaded, they
    are given the rest.
    """

    @property
    def name(self) -> str: ...

    @property
    def digest(self) -> str:
        """Content digest of what is tested: bundle, contract, parameters."""
        ...

    @property
    def secrets(self) -> Mapping[str, str]:
        """Environment variable → secret name it wants filled."""
        ...

    @property
    def final_output(self) -> str | None:
        """Absolute path in the sandbox to archive after the run."""
        ...

    @property
    def output_artifacts(self) -> Sequence[OutputArtifact]: ...

    @property
    def needs_solution(self) -> bool:
        """True for the oracle: tasks without a solution are refused before start."""
        ...

    @property
    def capabilities(self) -> AgentCapabilities:
        """What it can do; looked at before anything is started."""
        ...

    @property
    def layer(self) -> LayerSpec | None:
        """Software that is installed once for it and shown to every trial; None for an agent without."""
        ...

    async def install(self, trial: AgentTrial) -> None:
        """Put the agent into the sandbox. Raises AgentInstallError."""
        ...

    async def run(self, trial: AgentTrial) -> AgentExit:
        """Run it on the task to its end or its timeout (`trial.task.timeouts.agent`)."""
        ...


@dataclass(frozen=True, slots=True)
class PreparedAgent:
    """An agent found and checked, not yet frozen into a run."""

    name: str
    digest: str
    """What trials are identified by; the frozen agent has the same."""
    frozen: Json
    """Plain data; `freeze` adds where the archive is."""
    secrets: Mapping[str, str]
    """Environment variable → secret name."""
    model: str | None = None
    kwargs: Mapping[str, Any] | None = None
    final_output: str | None = None
    output_artifacts: Sequence[OutputArtifact] = ()
    egress_allowlist: Sequence[str] = ()
    needs_solution: bool = False
    keys: Sequence[KeyGroup] = ()
    """API keys of which some are needed; planning looks which there are."""
    notices: Sequence[str] = ()
    """What its author should know, and what keeps nothing from running."""
    capabilities: AgentCapabilities = AgentCapabilities()
    source: Path | None = None
    """The folder or archive a bundle comes from."""


# Tool servers (MCP) a task gives its agent, checked and in one form; each agent writes them in its own.

WORKSPACE = "${workspace}"
"""In a command, an argument, a variable or a folder: where the agent works."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_STDIO, _REMOTE = ("stdio", "local"), ("http", "sse", "streamable-http", "streamable_http")
_KEYS = ("type", "command", "args", "env", "cwd", "timeout", "url", "headers", "tools")
_FILLED = re.compile(r"\$\{|\$[A-Z_][A-Z0-9_]{2,}|\{(env|file):")
"""What some agent or other replaces when it reads its list of servers."""
_GO_THERE = 'cd -- "$1" && shift && exec "$@"'


@dataclass(frozen=True, slots=True)
class McpServer:
    """One server: a program that is started beside the agent, or an address."""

    name: str
    argv: tuple[str, ...] = ()
    """Goes to its folder itself: not every agent can start a program elsewhere."""
    env: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: str = "stdio"
    """`stdio`, `http` or `sse`."""
    timeout: float | None = None
    """Seconds for one call."""


def mcp_servers(task: TaskSpec) -> list[McpServer]:
    """The task's servers in order. Raises UsageError that names the server and what is wrong with it."""
    return [_server(name, data, task.cwd) for name, data in task.mcp_servers.items()]


def _server(name: str, data: Any, workspace: str) -> McpServer:
    where = f"mcpServers.{name[:80]}"
    if not _NAME.fullmatch(name):
        raise UsageError(f"{where}: a server's name has letters, digits, - and _ only, at most 64.")
    if not isinstance(data, Mapping):
        raise UsageError(f"{where}: an object is expected.")
    for key in data:
        if key not in _KEYS:
            raise UsageError(f"{where}: no field is called {key!r}.{did_you_mean(str(key), _KEYS)}")
    kind = data.get("type", "http" if "url" in data else "stdio")
    timeout = _seconds(data.get("timeout"), f"{where}.timeout")
    if kind in _STDIO:
        return _program(name, data, workspace, where, timeout)
    if kind not in _REMOTE:
        known = ", ".join((*_STDIO, *_REMOTE))
        raise UsageError(f"{where}.type: one of {known} is expected, not {str(kind)[:40]!r}.")
    url = _text(data.get("url"), f"{where}.url")
    headers = _texts(data.get("headers", {}), f"{where}.headers")
    for said in (url, *headers, *headers.values()):
        if match := _FILLED.search(said):
            raise UsageError(
                f"{where}: {match[0]!r} in an address or header is filled by agents with their own variables "
                "and files, and sent there; write the value itself."
            )
    return McpServer(name, url=url, headers=headers, kind="sse" if kind == "sse" else "http", timeout=timeout)


def _program(
    name: str, data: Mapping[str, Any], workspace: str, where: str, timeout: float | None
) -> McpServer:
    args = data.get("args", [])
    if not isinstance(args, Sequence) or isinstance(args, str):
        raise UsageError(f"{where}.args: a list of texts is expected.")
    words = [_text(data.get("command"), f"{where}.command")]
    words += [str(arg) for arg in args]
    words = [word.replace(WORKSPACE, workspace) for word in words]
    env = _texts(data.get("env", {}), f"{where}.env")
    for key in env:
        if not re.fullmatch(r"[A-Za-z_]\w*", key, re.ASCII):
            raise UsageError(f"{where}.env: {key[:80]!r} is no name of a variable.")
    env = {key: value.replace(WORKSPACE, workspace) for key, value in env.items()}
    folder = _folder(data.get("cwd"), workspace, f"{where}.cwd")
    if folder != workspace:
        words = ["/bin/sh", "-c", _GO_THERE, "sh", folder, *words]
    return McpServer(name, tuple(words), env, timeout=timeout)


def _folder(value: Any, workspace: str, where: str) -> str:
    if value is None:
        return workspace
    said = _text(value, where).replace(WORKSPACE, workspace).removeprefix("./")
    if said in ("", "."):
        return workspace
    return said.rstrip("/") if said.startswith("/") else f"{workspace}/{said}".rstrip("/")


def _seconds(value: Any, where: str) -> float | None:
    """Seconds, or a duration as specs write it."""
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", value) if isinstance(value, str) else None:
        return float(match[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}[match[2]]
    raise UsageError(f"{where}: a duration is expected, like 30s.")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{where}: text is expected.")
    return value


def _texts(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where}: an object of texts is expected.")
    return {str(key): str(one) for key, one in value.items()}


def as_json(servers: Sequence[McpServer], *, stdio: str = "stdio", more: Json | None = None) -> Json:
    """The form most agents read: `{"mcpServers": {name: {…}}}`; `more` stands in each."""
    return {"mcpServers": {server.name: _entry(server, stdio) | (more or {}) for server in servers}}


def _entry(server: McpServer, stdio: str) -> Json:
    if server.url:
        return {"type": server.kind, "url": server.url, "headers": dict(server.headers)}
    program, *args = server.argv
    return {"type": stdio, "command": program, "args": args, "env": dict(server.env)}


def skills_of(task: TaskSpec) -> tuple[str, ...]:
    """The skills an agent finds in the task's workspace."""
    return tuple(task.metadata.get(SKILLS, ()))


def refuses(name: str, capabilities: AgentCapabilities, task: TaskSpec) -> str | None:
    """Return why the agent `name` cannot be run on this task, naming both; None when it can."""
    if len(task.turns) > 1 and not capabilities.converses:
        return (
            f"{task.id} has {len(task.turns)} turns, and the agent {name} cannot hold a conversation. "
            "Use one that can (valk agent catalog), or write a single prompt."
        )
    if not task.mcp_servers:
        return None
    if not capabilities.takes_mcp and task.tools_optional:
        return None
    if not capabilities.takes_mcp:
        servers = ", ".join(task.mcp_servers)
        return f"{task.id} has MCP servers ({servers}), and the agent {name} takes none."
    try:
        servers_found = mcp_servers(task)
    except UsageError as error:
        return f"{task.id}: {error}"
    no_headers = [server.name for server in servers_found if server.headers]
    if no_headers and not capabilities.takes_mcp_headers:
        return f"{task.id}: the agent {name} sends no headers to an MCP server ({', '.join(no_headers)})."
    return None

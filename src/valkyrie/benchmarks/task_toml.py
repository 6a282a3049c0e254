"""Harbor's `task.toml` as types. A foreign format: unknown keys are warned about, never refused."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from posixpath import normpath
from typing import Any, Literal, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from sandboxes.types import NetworkPolicy
from valkyrie.errors import BenchmarkError
from valkyrie.nouns import VerifyMode
from valkyrie.regular_files import read_regular
from valkyrie.suggest import did_you_mean

MOST_BYTES = 8 << 20
"""Of a file in TOML that is read whole."""

NetworkMode = Literal["public", "no-network", "allowlist"]

_POLICIES: dict[NetworkMode, NetworkPolicy] = {
    "public": "public",
    "no-network": "none",
    "allowlist": "allowlist",
}
_UNION_BRANCHES = frozenset({"str", "int", "float", "Artifact", "dict[str,float]"})
"""What pydantic adds to a key's path to say which branch of a union it tried."""
_PLAIN = {"tuple_type": "a list is expected", "string_pattern_mismatch": "an absolute path is expected"}
NEVER_CARRIED = ("/proc", "/sys", "/dev", "/tests", "/logs/verifier")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])(?:i?B)?", re.IGNORECASE)
_MB_PER_UNIT = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}


class _Table(BaseModel):
    """Values must have the type they should; keys we do not know are kept aside for a warning."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, allow_inf_nan=False)


class Author(_Table):
    name: str
    email: str | None = None


class TaskInfo(_Table):
    """`[task]`: who it is."""

    name: str | None = None
    """`org/name`, or a plain name."""
    version: str | None = None
    description: str = ""
    authors: tuple[Author, ...] = Field(default=(), strict=False)
    keywords: tuple[str, ...] = Field(default=(), strict=False)


class Artifact(_Table):
    """A path worth keeping after the agent ran."""

    source: str = Field(min_length=1)
    destination: str | None = Field(default=None, min_length=1)
    exclude: tuple[str, ...] = Field(default=(), strict=False)
    service: str | None = None

    @field_validator("destination")
    @classmethod
    def _stays_below(cls, value: str | None) -> str | None:
        if value is not None and ".." in value.split("/"):
            raise ValueError("leads out of the folder artifacts are kept in")
        return value


class Healthcheck(_Table):
    """A command that must succeed before the agent starts. Seconds."""

    command: str
    interval: float = Field(default=5.0, ge=0, validation_alias=AliasChoices("interval", "interval_sec"))
    timeout: float = Field(default=30.0, gt=0, validation_alias=AliasChoices("timeout", "timeout_sec"))
    start_period: float = Field(
        default=0.0, ge=0, validation_alias=AliasChoices("start_period", "start_period_sec")
    )
    start_interval: float = Field(
        default=5.0, ge=0, validation_alias=AliasChoices("start_interval", "start_interval_sec")
    )
    retries: int = Field(default=3, ge=1)


class McpServer(_Table):
    """A tool server of the agent's: a program of the sandbox, or an address it can reach."""

    name: str
    transport: Literal["sse", "streamable-http", "stdio"] = "sse"
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = Field(default=(), strict=False)
    headers: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names_what_it_needs(self) -> Self:
        key = "command" if self.transport == "stdio" else "url"
        if not getattr(self, key):
            raise ValueError(f"the MCP server {self.name!r} ({self.transport}) needs a {key}")
        return self

    def as_json(self) -> dict[str, Any]:
        """As eval specs write it."""
        if self.transport == "stdio":
            return {"type": "stdio", "command": self.command, "args": list(self.args)}
        return {"type": self.transport, "url": self.url, "headers": self.headers}


class Tpu(_Table):
    type: str
    topology: str | None = None


class _Networked(_Table):
    network_mode: NetworkMode | None = None
    allowed_hosts: tuple[str, ...] = Field(default=(), strict=False)
    """Host, `*.host`, IP or CIDR; for `allowlist`."""


class EnvironmentTable(_Networked):
    """`[environment]`: the world the agent works in."""

    build_timeout_sec: float = Field(default=600.0, gt=0)
    docker_image: str | None = Field(default=None, min_length=1)
    os: Literal["linux", "windows"] = "linux"
    cpus: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, gt=0)
    storage_mb: int | None = Field(default=None, gt=0)
    gpus: int = Field(default=0, ge=0)
    gpu_types: tuple[str, ...] = Field(default=(), strict=False)
    tpu: Tpu | None = None
    mcp_servers: tuple[McpServer, ...] = Field(default=(), strict=False)
    env: dict[str, str] = Field(default_factory=dict)
    """May name host variables, `${VAR}` or `${VAR:-default}`; the agent sees the values."""
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = Field(default=None, pattern="^/")

    @field_validator("mcp_servers")
    @classmethod
    def _told_apart(cls, servers: tuple[McpServer, ...]) -> tuple[McpServer, ...]:
        names = [server.name for server in servers]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two servers are called {twice!r}; rename one")
        return servers

    @model_validator(mode="before")
    @classmethod
    def _accept_old_forms(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        table = dict(data)
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            if old not in table:
                continue
            if new in table:
                raise ValueError(f"has both {new} and the deprecated {old}; keep {new}")
            table[new] = _megabytes(old, table.pop(old))
        if "allow_internet" in table:
            allowed = table.pop("allow_internet")
            if not isinstance(allowed, bool):
                raise ValueError("allow_internet must be true or false")
            mode = "public" if allowed else "no-network"
            if table.setdefault("network_mode", mode) != mode:
                raise ValueError("network_mode contradicts the deprecated allow_internet; keep network_mode")
        return table


class AgentTable(_Networked):
    """`[agent]`: limits of the agent's own command."""

    timeout_sec: float | None = Field(default=None, gt=0)
    user: str | int | None = None


class Collect(_Table):
    command: str
    service: str = "main"
    timeout_sec: float = Field(default=60.0, gt=0)
    user: str | int | None = None


class VerifierTable(_Networked):
    """`[verifier]`: how `tests/test.sh` is run."""

    timeout_sec: float = Field(default=600.0, gt=0)
    env: dict[str, str] = Field(default_factory=dict)
    user: str | int | None = None
    environment_mode: Literal["fresh", "shared", "separate"] | None = None
    """Where the tests run: in a sandbox no process of the agent ever ran in, or in the agent's own."""
    carry: tuple[str, ...] = Field(default=(), strict=False)
    """Paths whose changes are carried into a fresh sandbox, although they are in a system folder."""
    keep_processes: bool | None = None
    """The agent's processes live on while the tests run; only in a shared environment."""
    environment: EnvironmentTable | None = None
    """Its own environment; implies `separate`."""
    collect: tuple[Collect, ...] = Field(default=(), strict=False)

    @field_validator("carry")
    @classmethod
    def _can_be_carried(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            if problem := _carry_problem(path):
                raise ValueError(f"{path!r} cannot be carried: {problem}")
        return paths

    @property
    def verify(self) -> VerifyMode | None:
        """Where the tests run, if the table says so."""
        return VerifyMode(self.environment_mode) if self.environment_mode in ("fresh", "shared") else None


class SolutionTable(_Table):
    env: dict[str, str] = Field(default_factory=dict)


class StepTable(_Table):
    """`[[steps]]`: one of several things to do in the same environment; what it leaves out is the task's."""

    name: str
    agent: AgentTable = Field(default_factory=AgentTable)
    verifier: VerifierTable = Field(default_factory=VerifierTable)
    min_reward: float | dict[str, float] | None = None
    """Below it no later step is tried: a number for the key `reward`, or one for each key."""
    healthcheck: Healthcheck | None = None
    artifacts: tuple[str | Artifact, ...] = Field(default=(), strict=False)


class TaskToml(_Table):
    """One `task.toml`, all of it."""

    schema_version: str | float = "1.4"
    version: str | float | None = None
    """Old spelling of `schema_version`."""
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] = "mean"
    artifacts: tuple[str | Artifact, ...] = Field(default=(), strict=False)
    task: TaskInfo = Field(default_factory=TaskInfo)
    metadata: dict[str, Any] = Field(default_factory=dict)
    agent: AgentTable = Field(default_factory=AgentTable)
    verifier: VerifierTable = Field(default_factory=VerifierTable)
    environment: EnvironmentTable = Field(default_factory=EnvironmentTable)
    solution: SolutionTable = Field(default_factory=SolutionTable)
    steps: tuple[StepTable, ...] = Field(default=(), strict=False)

    @property
    def network(self) -> NetworkPolicy:
        """What the agent may reach: its own mode, else the environment's, else everything."""
        return _POLICIES[self.agent.network_mode or self.environment.network_mode or "public"]

    @property
    def allowed_hosts(self) -> tuple[str, ...]:
        """For `allowlist`: the agent's hosts, or the environment's when it has no mode of its own."""
        return self.agent.allowed_hosts if self.agent.network_mode else self.environment.allowed_hosts


@dataclass(frozen=True, slots=True)
class ParsedToml:
    """A file that fits, and what a careful reader would ask about it."""

    config: TaskToml
    warnings: list[str]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Parse the file at `path`. Raises BenchmarkError naming file and key."""
        try:
            text = read_regular(path, MOST_BYTES).decode("utf-8")
        except OSError as error:
            raise BenchmarkError(f"cannot read {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise BenchmarkError(f"{path} is not UTF-8 (byte {error.start})") from error
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, where: str) -> Self:
        """Parse TOML text; `where` is what messages call it."""
        try:
            data = parse_toml(text)
        except tomllib.TOMLDecodeError as error:
            raise BenchmarkError(f"{where} is not valid TOML: {error}") from error
        try:
            config = TaskToml.model_validate(data)
        except ValidationError as error:
            raise BenchmarkError("\n".join(_complaints(error, where))) from error
        return cls(config, list(_unknown_keys(config, "")))


def parse_toml(text: str) -> dict[str, Any]:
    """Return what TOML text says; TOMLDecodeError also for what is nested without end."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError("nested too deeply") from None


def _carry_problem(path: str) -> str | None:
    if not path.startswith("/") or "\0" in path or normpath(path) != path or path.startswith("//"):
        return "write an absolute path without `..`, doubled slashes or a slash at its end"
    if path == "/":
        return "name the folders that the task is about"
    for never in NEVER_CARRIED:
        if path == never or path.startswith(f"{never}/"):
            return f"nothing of the agent's is ever brought to {never}"
    return None


def _megabytes(key: str, value: object) -> int:
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f'{key} must look like "2G" or "512M", not {value!r}')
    return max(1, round(float(match[1]) * _MB_PER_UNIT[match[2].upper()]))


def _complaints(error: ValidationError, where: str) -> Iterator[str]:
    found: dict[tuple[str, ...], str] = {}
    for item in error.errors(include_url=False):
        keys = tuple(str(part) for part in item["loc"] if part not in _UNION_BRANCHES)
        message = _PLAIN.get(item["type"]) or item["msg"].removeprefix("Value error, ")
        given = "" if isinstance(item["input"], dict | list | tuple) else f" (got {item['input']!r})"
        # A value of several possible forms fits none of them: the first says enough.
        found.setdefault(keys, f"{where}: {'.'.join(keys) or 'top level'}: {message}{given}")
    for keys, text in found.items():
        # What is wrong inside a table says more than that the table is no text.
        if not any(other[: len(keys)] == keys and other != keys for other in found):
            yield text


def _unknown_keys(table: BaseModel, prefix: str) -> Iterator[str]:
    fields = type(table).model_fields
    for key in table.model_extra or {}:
        yield f"unknown key {prefix}{key} is ignored.{did_you_mean(key, fields)}"
    for name in fields:
        value = getattr(table, name)
        for index, item in enumerate(value if isinstance(value, tuple) else (value,)):
            if isinstance(item, BaseModel):
                inner = f"{name}[{index}]" if isinstance(value, tuple) else name
                yield from _unknown_keys(item, f"{prefix}{inner}.")

"""Harbor's `task.toml` as types, and the mistakes in it that are reported when a run is planned."""

from __future__ import annotations

import os
import pwd
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from posixpath import normpath
from shlex import quote
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

from sandboxes.folder_contents import LEFTOVERS
from sandboxes.types import NetworkPolicy
from valkyrie.config.permissions import outside
from valkyrie.domain import VerifyMode
from valkyrie.errors import BenchmarkError
from valkyrie.text import did_you_mean, read_regular

MOST_BYTES = 8 << 20
"""Of a file in TOML that is read whole."""

NetworkMode = Literal["public", "no-network", "allowlist"]

_POLICIES: dict[NetworkMode, NetworkPolicy] = {
    "public": "public",
    "no-network": "none",
    "allowlist": "allowlist",
}
_UNION_BRANCHES = frozenset({"str", "int", "float", "TaskArtifact", "dict[str,float]"})
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


class TaskArtifact(_Table):
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


class TaskMcpServer(_Table):
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
    mcp_servers: tuple[TaskMcpServer, ...] = Field(default=(), strict=False)
    env: dict[str, str] = Field(default_factory=dict)
    """May name host variables, `${VAR}` or `${VAR:-default}`; the agent sees the values."""
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = Field(default=None, pattern="^/")

    @field_validator("mcp_servers")
    @classmethod
    def _told_apart(cls, servers: tuple[TaskMcpServer, ...]) -> tuple[TaskMcpServer, ...]:
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
    artifacts: tuple[str | TaskArtifact, ...] = Field(default=(), strict=False)


class TaskToml(_Table):
    """One `task.toml`, all of it."""

    schema_version: str | float = "1.4"
    version: str | float | None = None
    """Old spelling of `schema_version`."""
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] = "mean"
    artifacts: tuple[str | TaskArtifact, ...] = Field(default=(), strict=False)
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


# Mistakes of a task's author that are told when a run is planned: names, links and users.

MOST_LINKS_TOLD = 5
_HIGHEST_ID = 2**32 - 2


def env_problems(config: TaskToml) -> Iterator[str]:
    """Variables that no process can have."""
    tables = {
        "environment.env": config.environment.env,
        "verifier.env": config.verifier.env,
        "solution.env": config.solution.env,
        **{f"step {step.name!r}: verifier.env": step.verifier.env for step in config.steps},
    }
    for where, env in tables.items():
        for name, value in env.items():
            if not name or "=" in name or "\0" in name:
                yield f"{where}: {name!r} is no name a variable can have; it is empty or holds `=` or NUL"
            elif "\0" in value:
                yield f"{where}: the value of {name} holds NUL, which no variable can"


def stray_problem(path: Path, root: Path, allowed: Sequence[Path] = ()) -> str | None:
    """Return why a file or folder of a task may not be read: it is a link that leaves the benchmark's folder.

    `root` is the folder the user named, `allowed` what else they allow.
    """
    if not os.path.lexists(path) or (real := outside(path, root, *allowed)) is None:
        return None
    shown = os.fsencode(real).decode("utf-8", "backslashreplace")
    way = f"put a copy in its place, or allow it with --allow-path {quote(shown)}"
    return f"leads out of {root} (to {shown}); {way}"


def link_problems(folder: Path) -> Iterator[tuple[Path, str]]:
    """Links in `folder` that cannot be brought into a sandbox with it."""
    top, told = os.path.realpath(folder), 0
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in LEFTOVERS)
        for name in sorted([*folders, *files]):
            path = Path(place, name)
            if not path.is_symlink() or name in LEFTOVERS:
                continue
            if problem := _link_problem(path, top):
                told += 1
                if told > MOST_LINKS_TOLD:
                    yield folder, f"more links in {folder.name}/ cannot be brought into a sandbox"
                    return
                yield path, problem


def _link_problem(path: Path, top: str) -> str | None:
    target = os.path.realpath(path)
    if target != top and not target.startswith(f"{top}/"):
        where = os.fsencode(path.readlink()).decode("utf-8", "backslashreplace")
        return f"is a link that leaves its folder (to {where}); put a copy in its place"
    return None


def user_problems(config: TaskToml) -> Iterator[str]:
    """Users that cannot exist anywhere."""
    for where, user in _users(config).items():
        if _is_number(user):
            if not 0 <= int(user) <= _HIGHEST_ID:
                yield f"{where} = {user!r} is no number a user can have"
        elif not str(user).strip() or str(user).startswith("-") or set(str(user)) & set("\0\n:/ \t"):
            yield f"{where} = {user!r} is no name a user can have"


def unknown_users(config: TaskToml) -> list[str]:
    """Users that this host does not have, and with it no sandbox made of its files."""
    return [
        f"{where} = {user!r}: there is no such user, and nothing in the task makes one; add it in "
        "environment/setup.sh (useradd), or give a number"
        for where, user in _users(config).items()
        if not _is_number(user) and not _exists(str(user))
    ]


def _is_number(user: str | int) -> bool:
    return isinstance(user, int) or (user.isascii() and user.lstrip("-").isdigit())


def _users(config: TaskToml) -> Mapping[str, str | int]:
    tables: list[tuple[str, TaskToml | StepTable]] = [("", config)]
    tables += [(f"step {step.name!r}: ", step) for step in config.steps]
    found: dict[str, str | int | None] = {}
    for prefix, table in tables:
        found[f"{prefix}agent.user"] = table.agent.user
        verifier: VerifierTable = table.verifier
        found[f"{prefix}verifier.user"] = verifier.user
        for number, one in enumerate(verifier.collect):
            found[f"{prefix}verifier.collect[{number}].user"] = one.user
    return {where: user for where, user in found.items() if user is not None}


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True

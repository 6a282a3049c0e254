"""What is asked of a sandbox provider, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

NetworkPolicy = Literal["none", "public", "allowlist"]
StreamName = Literal["stdout", "stderr"]

OutputSink = Callable[[StreamName, str], None]
"""Receives output as it comes: which stream, and text that never splits a UTF-8 character."""

TIMEOUT_EXIT_CODE = 124
KILLED_EXIT_CODE = 137


class ImageSource(BaseModel):
    """A container image, by reference."""

    type: Literal["image"] = "image"
    image: str


class SnapshotSource(BaseModel):
    """A provider's own snapshot, by name."""

    type: Literal["snapshot"] = "snapshot"
    snapshot: str


class TargetedSnapshotSource(BaseModel):
    """A snapshot in a named region."""

    type: Literal["targeted_snapshot"] = "targeted_snapshot"
    snapshot: str
    target: str


class HostSource(BaseModel):
    """The host's own system files, or another root file system kept in a folder."""

    type: Literal["host"] = "host"
    rootfs: str | None = None


PlainSource = Annotated[
    ImageSource | SnapshotSource | TargetedSnapshotSource | HostSource, Field(discriminator="type")
]


class ComposeSource(BaseModel):
    """One service of a compose project that runs inside an outer sandbox."""

    type: Literal["compose"] = "compose"
    outer: PlainSource
    service: str = "main"
    compose_command: str = "docker compose"


SandboxSource = Annotated[
    ImageSource | SnapshotSource | TargetedSnapshotSource | HostSource | ComposeSource,
    Field(discriminator="type"),
]


class Resources(BaseModel):
    """What a task needs, in whole cores and gigabytes. Mutable: services adjust it."""

    vcpu: int
    memory: int
    disk: int
    gpu: int = 0
    gpu_type: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Hard limits of one sandbox; None leaves that one to the provider's default."""

    cpus: float | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None
    pids: int | None = None


class SandboxCreateRequest(BaseModel):
    """Everything a provider needs to make one sandbox."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    source: SandboxSource = Field(default_factory=HostSource)
    resources: Resources | None = None
    """Whole-number resources, as benchmark services state them."""
    limits: Limits | None = None
    """Finer limits; each set field wins over `resources`."""
    name: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    env_vars: dict[str, str] = Field(default_factory=dict)
    """Environment of every command in the sandbox."""
    auto_stop_interval: int | None = None
    """Minutes without use after which a remote provider may stop it."""
    create_timeout: float = 360.0
    network_block_all: bool = False
    network: NetworkPolicy = "public"

    @property
    def network_policy(self) -> NetworkPolicy:
        """The policy in force: blocking all wins."""
        return "none" if self.network_block_all else self.network

    @property
    def effective_limits(self) -> Limits:
        """`limits` over `resources`."""
        asked = self.limits or Limits()
        if self.resources is None:
            return asked
        return Limits(
            cpus=asked.cpus if asked.cpus is not None else float(self.resources.vcpu),
            memory_mb=asked.memory_mb if asked.memory_mb is not None else self.resources.memory * 1024,
            disk_mb=asked.disk_mb if asked.disk_mb is not None else self.resources.disk * 1024,
            pids=asked.pids,
        )


class SandboxQuery(BaseModel):
    """Which sandboxes to list: those that carry all these labels."""

    labels: dict[str, str] = Field(default_factory=dict)
    page_size: int = 10
    created_at_lte: datetime | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """One program to run in a sandbox."""

    argv: Sequence[str]
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    """User name or numeric id inside the sandbox; None is the sandbox's root."""
    timeout: float | None = None
    """Seconds; then the whole process tree of the command is killed and the exit code is 124."""

    @classmethod
    def shell(cls, script: str, **options: object) -> Command:
        """`script` under `/bin/sh`."""
        return cls(argv=("/bin/sh", "-c", script), **options)  # type: ignore[arg-type]

    @classmethod
    def bash(cls, script: str, **options: object) -> Command:
        """`script` under bash with pipefail: a pipeline fails when any part of it does."""
        return cls(argv=("bash", "-o", "pipefail", "-c", script), **options)  # type: ignore[arg-type]


@dataclass(slots=True)
class ExecResult:
    """How a command ended, and what it printed (stdout and stderr as they came)."""

    exit_code: int
    output: str = ""

    @property
    def stdout(self) -> str:
        """Same as `output`."""
        return self.output


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """How much a folder download may bring out."""

    max_bytes: int = 250 * 1024 * 1024
    max_file_bytes: int = 250 * 1024 * 1024
    max_entries: int = 10_000


@dataclass(slots=True)
class CopyReport:
    """What a folder download brought out, and what it left behind and why."""

    files: int = 0
    bytes: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """(path inside the folder, reason); at most 100 are listed."""
    skipped_count: int = 0

    def skip(self, path: str, reason: str) -> None:
        """Record one entry left behind."""
        self.skipped_count += 1
        if len(self.skipped) < 100:
            self.skipped.append((path, reason))


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a provider can do on this machine, decided once and recorded with every run."""

    provider: str
    isolation: str
    """One line a person understands: what stands between agent and host."""
    images: bool = False
    """Can run container images."""
    writable_system: bool = False
    """Commands may write anywhere in their own view of the file system (apt, pip --system, …)."""
    networks: frozenset[str] = frozenset({"none"})
    enforcement: Mapping[str, str] = field(default_factory=dict)
    """For cpus, memory, disk, pids: the mechanism in force, e.g. 'cgroup v2', 'not enforced'."""
    missing: Sequence[tuple[str, str]] = ()
    """(what is missing, how to get it)."""
    problem: str | None = None
    """Why no sandbox can be made here at all, with the way out; None when one can."""

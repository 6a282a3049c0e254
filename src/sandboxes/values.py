"""Plain values of the sandbox protocol. They import nothing, so that everyone may import them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

NetworkPolicy = Literal["none", "public", "allowlist"]
StreamName = Literal["stdout", "stderr"]

OutputSink = Callable[[StreamName, str], None]
"""Receives output as it comes: which stream, and text that never splits a UTF-8 character."""

TIMEOUT_EXIT_CODE = 124
KILLED_EXIT_CODE = 137


@dataclass(frozen=True, slots=True)
class Limits:
    """Hard limits of one sandbox; None leaves that one to the provider's default."""

    cpus: float | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None
    pids: int | None = None
    gpus: int = 0
    """How many it is given; none unless asked for."""


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


@dataclass(frozen=True, slots=True)
class ImageDefaults:
    """What the author of an image chose for whatever runs in it."""

    workdir: str = "/"
    user: str | None = None
    """None is root."""
    entrypoint: Sequence[str] = ()
    """What runs first, with the command it is to start as its last words."""


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


A_LINK = "a link"
"""Why a link is left behind by a download."""
MOST_LINKS = 20_000


@dataclass(slots=True)
class CopyReport:
    """What a folder download brought out, and what it left behind and why."""

    files: int = 0
    bytes: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """(path inside the folder, reason); at most 100 are listed."""
    skipped_count: int = 0
    links: dict[str, str] = field(default_factory=dict)
    """Symbolic links among what was left behind, by path, with what they say; at most `MOST_LINKS`."""

    def link(self, path: str, target: str) -> None:
        """Record a symbolic link, which is left behind."""
        self.skip(path, A_LINK)
        if len(self.links) < MOST_LINKS:
            self.links[path] = target

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
    builds: bool = False
    """Can build an image from a Dockerfile."""
    builds_buildkit: bool = False
    """Also from one that needs BuildKit (`RUN --mount`, `RUN <<EOF`)."""
    mounts: bool = False
    """Can show folders of the host in a sandbox."""
    copy_on_write: bool = False
    """Can show them writable, each sandbox with changes of its own."""
    carries_work: bool = False
    """Sandboxes can pack what changed in them, and unpack it in another one (`Sandbox.pack_work`)."""
    gpus: bool = False
    """Can pass GPUs on."""
    users: bool = False
    """Commands may run as users other than the sandbox's root."""
    networks: frozenset[str] = frozenset({"none"})
    enforcement: Mapping[str, str] = field(default_factory=dict)
    """For cpus, memory, disk, pids: the mechanism in force, e.g. 'cgroup v2', 'not enforced'."""
    missing: Sequence[tuple[str, str]] = ()
    """(what is missing, how to get it)."""
    problem: str | None = None
    """Why no sandbox can be made here at all, with the way out; None when one can."""

"""Plain values of the sandbox protocol, and limits that fit this machine where a task names none."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

NetworkPolicy = Literal["none", "public", "allowlist"]
StreamName = Literal["stdout", "stderr"]

OutputSink = Callable[[StreamName, str], None]
"""Receives output as it comes: which stream, and text that never splits a UTF-8 character."""

TIMEOUT_EXIT_CODE = 124
KILLED_EXIT_CODE = 137


@dataclass(frozen=True, slots=True)
class SandboxLimits:
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


# Limits of a sandbox whose task names none: what fits this machine.


DEFAULT_PIDS = 4096
DEFAULT_DISK_MB = 10 * 1024
"""Before it is cut to what the memory allows."""

_LEAST_MB = 512
_MOST_MB = 2048
_HOST_PART = 8
_USABLE = 0.9
"""Of the host's memory, for a sandbox that names a disk which lies in memory."""
_LIMIT_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


MOST_OPEN_FILES = 1 << 20
"""More is asked for by nobody, and some systems allow no higher limit."""


def raise_open_files() -> int:
    """Raise this process's limit on open files to what it may be; return that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST_OPEN_FILES if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


@lru_cache(maxsize=1)
def host_memory_mb() -> int:
    """Return the memory of this machine, or of the container this process is in."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    for path in _LIMIT_FILES:
        try:
            with open(path) as file:
                limit = file.read().strip()
        except OSError:
            continue
        if limit.isdigit():
            total = min(total, int(limit) >> 20)
    return total


def default_memory_mb(host_mb: int) -> int:
    """Return the memory of a sandbox whose task names none: an eighth of the host's, within bounds."""
    return max(1, min(max(_LEAST_MB, min(_MOST_MB, host_mb // _HOST_PART)), host_mb // 2))


def memory_for(limits: SandboxLimits, host_mb: int, *, disk_in_memory: bool = True) -> int:
    """Return the memory limit in force: the one asked for, else the default.

    `disk_in_memory`: files count towards it, so that a disk which was asked for makes it larger, as far as
    the host has memory.
    """
    if limits.memory_mb is not None:
        return limits.memory_mb
    default = default_memory_mb(host_mb)
    if not disk_in_memory or limits.disk_mb is None:
        return default
    return max(default, min(-(-limits.disk_mb * 4 // 3), int(host_mb * _USABLE)))


def disk_in_memory_mb(disk_mb: int | None, memory_mb: int) -> int:
    """Return the size of a file system that lies in memory and counts towards the memory limit.

    Were it larger than three quarters of that, a full disk would show as processes killed for lack of
    memory, the sandbox's own among them; this way it shows as a full disk.
    """
    return min(DEFAULT_DISK_MB if disk_mb is None else disk_mb, max(1, memory_mb * 3 // 4))


def with_defaults(limits: SandboxLimits, host_mb: int, *, disk_in_memory: bool = True) -> SandboxLimits:
    """Return the limits with memory, disk and processes set. A disk that does not lie in memory stays as
    it was asked for."""
    memory = memory_for(limits, host_mb, disk_in_memory=disk_in_memory)
    disk = disk_in_memory_mb(limits.disk_mb, memory) if disk_in_memory else limits.disk_mb
    pids = DEFAULT_PIDS if limits.pids is None else limits.pids
    return replace(limits, memory_mb=memory, disk_mb=disk, pids=pids)

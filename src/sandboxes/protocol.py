"""What every provider offers: sandboxes, a way to get them, and the plain values both speak in."""

from __future__ import annotations

import os
import resource
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from sandboxes.errors import SandboxCommandError, SandboxError, SandboxUnsupportedError, SandboxUserError

if TYPE_CHECKING:
    # Requests are validated models; commands that only look at a store need not pay for pydantic.
    from sandboxes.types import (
        Resources,
        SandboxCapacityDomain,
        SandboxCreateRequest,
        SandboxQuery,
        SandboxSource,
    )

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


class Command(NamedTuple):
    """One program to run in a sandbox."""

    argv: Sequence[str]
    cwd: str | None = None
    env: Mapping[str, str] = {}
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


class ImageDefaults(NamedTuple):
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


class CopyLimits(NamedTuple):
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


class Capabilities(NamedTuple):
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
    enforcement: Mapping[str, str] = {}
    """For cpus, memory, disk, pids: the mechanism in force, e.g. 'cgroup v2', 'not enforced'."""
    missing: Sequence[tuple[str, str]] = ()
    """(what is missing, how to get it)."""
    problem: str | None = None
    """Why no sandbox can be made here at all, with the way out; None when one can."""


# What an agent changed in its sandbox, and which of it is carried into another one.

ChangeKind = Literal["added", "changed", "removed"]


class ChangedPath(NamedTuple):
    """One path that differs from what the sandbox was made from."""

    path: str
    kind: ChangeKind


class CarryRules(NamedTuple):
    """Which paths of a sandbox are carried. Paths are absolute and normal; `/` is the default for all."""

    carried: tuple[str, ...] = ("/",)
    left: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()
    """Folders whose hidden entries (names that begin with a dot) are left, unless `carried` names them:
    programs read them when they start. `/home/*` stands for every folder in /home."""
    forbidden: tuple[str, ...] = ()
    """Never carried, whatever `carried` says; a link that leads into one of these, or to a folder above
    one, is left as well."""
    inverted: bool = False
    """Carry what would be left, and leave what would be carried; `forbidden` holds all the same."""

    @property
    def inverse(self) -> CarryRules:
        """The rules for everything these do not carry."""
        return self._replace(inverted=not self.inverted)

    def carries(self, path: str) -> bool:
        """Return whether what is at `path` is carried."""
        if _longest(path, self.forbidden) >= 0:
            return False
        carried = _longest(path, self.carried)
        left = max(_longest(path, self.left), self._hidden_in_home(path))
        return (carried >= left) is not self.inverted

    def reaches_below(self, path: str) -> bool:
        """Return whether something below the folder `path` may be carried, although it is not itself."""
        if self.inverted:
            return _longest(path, self.forbidden) < 0
        return self.carries(path) or any(is_below(one, path) for one in self.carried if one != "/")

    def is_forbidden_target(self, path: str) -> bool:
        """Return whether a link to `path` leads into a forbidden folder, or to a folder above one."""
        return any(path == one or is_below(path, one) or is_below(one, path) for one in self.forbidden)

    def refuses_link_at(self, path: str) -> bool:
        """Return whether a link at `path` would bring something to a place that is left or forbidden: below
        it, or in a home that it stands for."""
        if self.inverted:
            return False
        apart = (*self.left, *self.forbidden, *(home.removesuffix("/*") for home in self.homes))
        if any(path == one or is_below(one, path) for one in apart):
            return True
        above = path.rpartition("/")[0]
        return any(home == f"{above}/*" for home in self.homes)

    def _hidden_in_home(self, path: str) -> float:
        """Between the depths of a home and of its hidden entry that `path` is or is below; else -1."""
        for home in self.homes:
            top = home.removesuffix("/*") if home.endswith("/*") else None
            parts, above = path.strip("/").split("/"), (top or home).strip("/").split("/")
            at = len(above) + (1 if top else 0)
            if parts[: len(above)] == above and len(parts) > at and parts[at].startswith("."):
                return at + 0.5
        return -1


def is_below(path: str, folder: str) -> bool:
    """Return whether `path` is strictly below `folder`."""
    return path != folder and (folder == "/" or path.startswith(f"{folder}/"))


def _longest(path: str, prefixes: Iterable[str]) -> int:
    """The depth of the longest prefix that `path` is or is below; -1 if there is none."""
    depths = (0 if one == "/" else one.count("/") for one in prefixes if path == one or is_below(path, one))
    return max(depths, default=-1)


@dataclass(slots=True)
class PackedWork:
    """What was packed of a sandbox, and what was not."""

    files: int = 0
    bytes: int = 0
    removed: list[str] = field(default_factory=list)
    """Carried paths that were there when the sandbox was made and are gone, outermost first."""
    left: list[ChangedPath] = field(default_factory=list)
    """Changes at paths the rules do not carry (system files, mostly); at most MOST_LISTED are listed."""
    left_count: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """(path, reason) of carried paths that stayed behind: fifos, devices, sockets, links that lead to
    forbidden places, files over a limit; at most MOST_SKIPPED are listed."""
    skipped_count: int = 0
    cut_short: bool = False
    """A limit on bytes or entries was reached: not all of the work was packed."""

    def leave(self, path: str, kind: ChangeKind) -> None:
        """Record a change that is not carried."""
        self.left_count += 1
        if len(self.left) < MOST_LISTED:
            self.left.append(ChangedPath(path, kind))

    def skip(self, path: str, reason: str) -> None:
        """Record one entry that stayed behind."""
        self.skipped_count += 1
        if len(self.skipped) < MOST_SKIPPED:
            self.skipped.append((path, reason))


MOST_LISTED = 500_000
"""Of changes. What is not listed cannot be put back: a sandbox with more of them gives no verdict."""
MOST_SKIPPED = 200_000


class WorkLimits(NamedTuple):
    """How much may be packed."""

    max_bytes: int = 2 << 30
    max_file_bytes: int = 2 << 30
    max_entries: int = 200_000


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


# The two things every provider offers: sandboxes, and a way to get them.


class Sandbox(ABC):
    """One isolated place. Subclasses need not call `super().__init__`.

    `exec`, `command`, `upload_file` and `download_file` are the portable core. Everything else has a
    default built on them or says plainly that it is unsupported.
    """

    __slots__ = ()

    labels: Mapping[str, str] | None = None
    created_at: datetime | None = None
    views: Sequence[str] = ()
    """Targets of the copy-on-write mounts that are there."""
    image_defaults: ImageDefaults | None = None
    """What its image says, never what is in the sandbox now; None where the provider does not tell."""

    @property
    @abstractmethod
    def id(self) -> str:
        """The provider's id of this sandbox."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name it was asked for under, or the id."""

    @property
    @abstractmethod
    def state(self) -> str:
        """`started`, `stopped` or `deleted`."""

    @abstractmethod
    async def exec(self, command: str, *, cwd: str | None = None, timeout: float | None = None) -> ExecResult:
        """Run a shell command to its end. Timeout gives exit code 124."""

    @abstractmethod
    def command(
        self,
        command: str,
        *,
        cwd: str | None = None,
        timeout: float | None = None,
        env_vars: Mapping[str, str] | None = None,
    ) -> AsyncIterator[str]:
        """Yield the command's output as it comes; a non-zero exit raises SandboxCommandError after it."""

    @abstractmethod
    async def upload_file(self, path: str, content: bytes) -> None:
        """Write one file, making its parent folders."""

    @abstractmethod
    async def download_file(self, path: str) -> bytes:
        """Read one regular file; raises when there is none."""

    async def run(self, command: Command, sink: OutputSink | None = None) -> int:
        """Run `command`, hand its output to `sink` as it comes, return the exit code.

        124 after a timeout, 137 when killed. Every process the command left in its own tree is dead on
        a timeout or a cancellation; background processes of a command that ended by itself live on.
        """
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot stream stdout and stderr apart")

    async def start_entrypoint(self, env: Mapping[str, str], sink: OutputSink | None = None) -> None:
        """Run the image's entrypoint in the background, where there is one, as its author meant it.

        Returns when it has started the command it was given, which does nothing, or has taken its time over
        it. Raises SandboxImageError when it ended before. For a sandbox nobody hostile was in yet.
        """
        _ = env, sink

    async def stream_download(self, path: str) -> AsyncIterator[bytes]:
        """Yield one regular file in pieces."""
        yield await self.download_file(path)

    async def upload_stream(self, path: str, chunks: AsyncIterator[bytes], *, mode: int = 0o644) -> None:
        """Write one file from pieces."""
        _ = mode
        await self.upload_file(path, b"".join([chunk async for chunk in chunks]))

    async def upload_folder(self, source: Path, path: str) -> None:
        """Copy a host folder into the sandbox (made if missing, merged if present), modes kept.

        Links in `source` that leave it are refused. What the agent planted at `path` is never followed.
        """
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot upload folders")

    async def download_folder(
        self, path: str, destination: Path, limits: CopyLimits | None = None
    ) -> CopyReport:
        """Copy a folder's regular files out to a new host folder, within limits.

        Links, devices, sockets and fifos are left behind and reported; nothing is ever read through a
        link, so the host's own files cannot be named from inside.
        """
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot download folders")

    async def list_files(self, pattern: str) -> list[str]:
        """Absolute paths of regular files that match a glob (`*`, `?`, `[…]`), links not followed."""
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot list files")

    async def is_folder(self, path: str) -> bool:
        """Return whether a real folder (not a link) is at `path`."""
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot inspect paths")

    async def remove(self, path: str) -> None:
        """Delete a file, link or whole folder at `path`; nothing there is fine. Links are not followed."""
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot remove files")

    async def clear_folder(self, path: str) -> None:
        """Leave an empty real folder at `path`; a link or file there is replaced, never followed."""
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot clear folders")

    async def give_folder(self, path: str, user: str) -> None:
        """Make `user`, a name or number inside, the owner of the real folder at `path`, and of nothing in it.

        SandboxUserError when the sandbox has no such user.
        """
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot change owners")

    async def clear(self, folders: Sequence[str], removed: Sequence[str] = ()) -> None:
        """`clear_folder` of each folder, then `remove` of the others."""
        for path in folders:
            await self.clear_folder(path)
        for path in removed:
            await self.remove(path)

    async def changes(self, rules: CarryRules | None = None) -> list[ChangedPath]:
        """Return what differs from what the sandbox was made from, by path, at most MOST_LISTED of them.

        `rules`: only what they carry. For a sandbox whose processes are dead, or that nobody hostile
        was in yet.
        """
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot tell what changed in it")

    async def pack_work(
        self, rules: CarryRules, archive: Path, limits: WorkLimits | None = None
    ) -> PackedWork:
        """Pack all that changed and that the rules carry into a new tar file of the host.

        Members have absolute paths without the leading slash, their owner's ids as inside the sandbox, no
        set-id bits, no extended attributes. Regular files, folders and links only; nothing is ever read
        through a link. For a sandbox whose processes are dead.
        """
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot pack what changed in it")

    async def unpack_work(self, archive: Path, rules: CarryRules, removed: Sequence[str] = ()) -> None:
        """Put packed work into this sandbox, which was made and set up like the one it comes from.

        At the paths the rules carry, this sandbox is like the other one afterwards: `removed` paths go, and
        so does what its own set-up added there and the archive does not have. For a sandbox in which nobody
        hostile was yet.
        """
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot unpack work")

    async def put_back(self, paths: Sequence[str], pristine: Sandbox) -> None:
        """Make each path what it is in `pristine`, a sandbox made from the same source that nothing ran in:
        changed and removed ones are restored, added ones removed. Processes of this sandbox are dead."""
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot restore files")

    async def kill_all(self) -> None:
        """End every process in the sandbox, however it hid; the sandbox itself stays usable."""
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot kill processes")

    def shell_argv(self, cwd: str = "/") -> list[str]:
        """The host command that opens an interactive shell in here, in the folder `cwd` if it is there."""
        _ = cwd
        raise SandboxUnsupportedError(f"{type(self).__name__} cannot open a shell")

    async def modify_egress_rules(self, rules: list[str]) -> None:
        """Allow only these hosts."""
        raise SandboxError(f"{type(self).__name__} cannot restrict egress to a list (asked for {rules})")

    async def clear_egress_rules(self) -> None:
        """Lift what `modify_egress_rules` set."""
        raise SandboxError(f"{type(self).__name__} has no egress rules")


class RunnableSandbox(Sandbox):
    """A sandbox whose one primitive is `run`; the portable calls follow from it."""

    __slots__ = ()

    @abstractmethod
    async def run(self, command: Command, sink: OutputSink | None = None) -> int: ...

    async def give_folder(self, path: str, user: str) -> None:
        words: list[str] = []
        code = await self.run(Command(argv=("chown", "-h", user, path)), lambda _, text: words.append(text))
        if code != 0:
            said = "".join(words).strip()
            kind = SandboxUserError if "user" in said else SandboxError
            raise kind(f"{path} in the sandbox cannot be given to {user!r}: {said or f'exit code {code}'}")

    async def exec(self, command: str, *, cwd: str | None = None, timeout: float | None = None) -> ExecResult:
        pieces: list[str] = []

        def keep(_stream: StreamName, text: str) -> None:
            pieces.append(text)

        code = await self.run(Command.shell(command, cwd=cwd, timeout=timeout), keep)
        return ExecResult(exit_code=code, output="".join(pieces))

    async def command(
        self,
        command: str,
        *,
        cwd: str | None = None,
        timeout: float | None = None,
        env_vars: Mapping[str, str] | None = None,
    ) -> AsyncIterator[str]:
        from sandboxes.streams import stream_output

        spec = Command.shell(command, cwd=cwd, timeout=timeout, env=dict(env_vars or {}))
        # Closed here and now, not when the garbage collector gets to it: closing is what ends the command.
        async with aclosing(stream_output(self, spec)) as items:
            async for item in items:
                if isinstance(item, str):
                    yield item
                elif item != 0:
                    raise SandboxCommandError(f"Command failed with exit code {item}", exit_code=item)


class SandboxProvider(ABC):
    """Makes, finds and ends sandboxes."""

    @abstractmethod
    async def create_sandbox(self, request: SandboxCreateRequest) -> Sandbox:
        """Make one; on any failure or cancellation nothing is left behind."""

    @abstractmethod
    async def get_sandbox(self, sandbox_id: str) -> Sandbox:
        """The live sandbox of that id, or SandboxNotFoundError."""

    @abstractmethod
    async def delete_sandbox(self, sandbox_id: str) -> None:
        """End it and everything in it. Deleting what is gone is fine."""

    @abstractmethod
    def list_sandboxes(self, query: SandboxQuery | None = None) -> AsyncIterator[Sandbox]:
        """Live sandboxes that carry all the labels asked for."""

    async def reap(self, labels: Mapping[str, str]) -> int:
        """End what an earlier process of ours left behind under these labels; how many there were."""
        from sandboxes.types import SandboxQuery

        gone = [sandbox.id async for sandbox in self.list_sandboxes(SandboxQuery(labels=dict(labels)))]
        for sandbox_id in gone:
            await self.delete_sandbox(sandbox_id)
        return len(gone)

    def capabilities(self) -> Capabilities:
        """Return what this provider can do here; cheap after the first call."""
        return Capabilities(provider=type(self).__name__, isolation="it does not say")

    def expected_capabilities(self) -> Capabilities:
        """Return what `capabilities` is expected to say, and start no program to find out.

        A provider that has to try what a machine can do says what it last found there, or what it assumes.
        """
        return self.capabilities()

    @property
    def admission_pool_id(self) -> str:
        """Runs whose providers share this id compete for the same room."""
        return type(self).__name__

    async def check_admission(self, source: SandboxSource, resources: Resources | None = None) -> bool:
        """Return whether there is room for one more right now."""
        _ = source, resources
        return True

    async def get_capacity(self) -> object | None:
        """Return how much room there is in all, where a provider knows."""
        return None

    async def get_capacity_domains(self) -> Sequence[SandboxCapacityDomain] | None:
        """The parts of that room, where a provider knows them."""
        return None

    async def close(self) -> None:
        """End everything this object holds."""
        return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

"""Which of an agent's changes are its work, and where work and other outputs are kept."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import json
import os
import posixpath
import shutil
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from sandboxes.masker import Masker
from sandboxes.protocol import CarryRules, ChangedPath, is_below
from valkyrie.artifact_store.protocol import (
    ArtifactStore,
    LogKeeper,
    LogName,
    attempt_prefix,
    run_prefix,
    task_prefix,
)
from valkyrie.config import values
from valkyrie.domain import Json, TaskSpec
from valkyrie.errors import UnknownError
from valkyrie.store.layout import RunFolder, encode_task_id
from valkyrie.store.leases import Leased

LOG = "attempt.log"
ARTIFACTS = "artifacts/"
FINAL = "agent_output.tar.gz"
Carry = Callable[[Callable[[], None]], Awaitable[None]]
"""Does blocking work somewhere else."""


async def in_a_thread(work: Callable[[], None]) -> None:
    await asyncio.to_thread(work)


@dataclass(frozen=True, slots=True)
class RemoteStorage:
    """Where one run's attempts put what they leave, besides this machine's folder."""

    artifacts: ArtifactStore | None = None
    logs: LogKeeper | None = None
    carry: Carry = in_a_thread

    def follow(self, leased: Leased, log: Path) -> None:
        """An attempt begins; its log is taken on as it grows."""
        if self.logs:
            self.logs.follow(_name(leased), log)

    def ended(self, leased: Leased) -> None:
        if self.logs:
            self.logs.ended(_name(leased))

    async def put(self, leased: Leased, kept: Path, log: Path | None = None) -> None:
        """Put an attempt's files away; returns when they are safe."""
        if self.artifacts is not None:
            await self.carry(partial(self._put, self.artifacts, leased, kept, log))

    def _put(self, artifacts: ArtifactStore, leased: Leased, kept: Path, log: Path | None) -> None:
        prefix = attempt_prefix(leased.run_id, encode_task_id(leased.task_id), leased.k, leased.number)
        if log and log.exists():
            artifacts.put(prefix + LOG, log)
        for path in sorted(kept.rglob("*")) if kept.exists() else ():
            if path.is_file() and not path.is_symlink():
                name = path.relative_to(kept).as_posix()
                artifacts.put(prefix + name, path)
                if leased.k == 0 and (plain := _plain_name(name)):
                    own = task_prefix(leased.run_id, encode_task_id(leased.task_id))
                    artifacts.copy(prefix + name, own + plain)

    async def fetch(self, leased: Leased, number: int, kept: Path) -> None:
        """Bring back what an earlier attempt put away, if another machine's executor ran it."""
        if self.artifacts is not None and not kept.exists():
            await self.carry(partial(self._fetch, self.artifacts, leased, number, kept))

    async def put_once(self, key: str, file: Path) -> None:
        """Put one file away under a key, unless there is one already."""
        if (artifacts := self.artifacts) is not None:

            def put() -> None:
                if artifacts.find(key) is None:
                    artifacts.put(key, file)

            await self.carry(put)

    async def get(self, key: str, file: Path) -> None:
        """Fetch one file, if it is not here and there is one of that key."""
        if (artifacts := self.artifacts) is not None and not file.exists():

            def get() -> None:
                file.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(UnknownError):
                    artifacts.get(key, file)

            await self.carry(get)

    def _fetch(self, artifacts: ArtifactStore, leased: Leased, number: int, kept: Path) -> None:
        prefix = attempt_prefix(leased.run_id, encode_task_id(leased.task_id), leased.k, number)
        for found in list(artifacts.list(prefix)):
            name = found.key.removeprefix(prefix)
            if name != LOG and ".." not in Path(name).parts:
                target = kept / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(UnknownError):
                    artifacts.get(found.key, target)


def _plain_name(name: str) -> str | None:
    """Return where the file stands in the layout people know, if it is one of the agent's outputs."""
    if name == FINAL:
        return FINAL
    plain = name.removeprefix(ARTIFACTS)
    return plain if plain != name and plain.partition("/")[0] != "attempts" else None


def _name(leased: Leased) -> LogName:
    return LogName(leased.run_id, leased.task_id, leased.k, leased.number, leased.started_at)


# Which of an agent's changes are its work, and which are changes to the system the tests stand on.
#
# One list for every provider and every benchmark; docs/concepts/verification.md shows it.

SYSTEM_FOLDERS = (
    *(
        "/bin",
        "/sbin",
        "/lib",
        "/lib32",
        "/lib64",
        "/libx32",
        "/usr",
        "/etc",
        "/opt",
        "/boot",
        "/nix",
        "/snap",
    ),
    *("/var/lib", "/var/cache", "/var/spool", "/var/run", "/var/lock"),
)
"""Not carried: programs, libraries, configuration and packages come from the clean side."""

TOOL_FOLDERS = (
    *("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec"),
    *("/usr/local/bin", "/usr/local/sbin", "/usr/local/lib"),
    *("/etc/ld.so.preload", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/profile"),
    *("/etc/profile.d", "/etc/bash.bashrc", "/etc/environment", "/etc/passwd", "/etc/group", "/etc/shadow"),
    *("/etc/pam.d", "/etc/sudoers", "/etc/sudoers.d", "/etc/nsswitch.conf"),
)
"""Not carried either where a task's working folder is a system folder above one of these."""

HOMES = ("/root", "/home/*")
"""Their hidden entries are read by shells, interpreters and git when they start."""

FORBIDDEN = ("/tests", "/logs/verifier", "/solution", "/proc", "/sys", "/dev", "/run")
"""Where tests, rewards and solutions are, and what is not a file system of the sandbox's own."""

TEST_FOLDERS = ("/tests", "/logs/verifier", "/solution")
"""Those of them a link may lead to so that an answer is what the tests expect."""

AGENT_FOLDERS = ("/bundle",)
"""Where an agent itself is installed."""

_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_PROGRAM_FOLDERS = ("/bin", "/sbin", "/usr/bin", "/usr/sbin")
_PUT_BACK = (
    *("/lib*.so*", "/usr/lib*.so*", "/usr/lib/python3*", "/usr/local/lib/python3*", "/usr/share/perl*"),
    *("/usr/lib/*/perl*", "/etc/ld.so.*", "/etc/profile", "/etc/profile.d/*", "/etc/bash.bashrc"),
    *("/etc/nsswitch.conf", "/etc/pam.d/*"),
    *(
        f"/usr/local/bin/{name}"
        for name in ("python*", "pip*", "node", "npm", "npx", "perl*", "ruby", "bash")
    ),
    *(f"/usr/local/bin/{name}" for name in ("sh", "uv", "uvx", "pytest", "git", "env")),
)
"""Files of the image that a shell, an interpreter, the loader or a test tool is made of."""
_START_UP = (
    *("/etc/ld.so.preload", "*/sitecustomize.py", "*/usercustomize.py"),
    *("/usr/*/python3*/__pycache__/*.pyc", "/etc/gitconfig", "*/.gitconfig", "*/.config/git/*"),
)
"""Files that run by themselves in a program or interpreter of the image, whoever added them."""
_PACKAGE_START_UP = ("*-packages/*.pth",)
"""The same of installed packages: they stay where a task says that its work is the system."""
BLOCKED = ".blocked"
"""The name of no file: to put it back, whatever stands in the place of its folder has to go."""


def _with_folders_above(paths: Iterable[str]) -> frozenset[str]:
    found = set()
    for path in paths:
        parts = path.strip("/").split("/")
        found |= {"/" + "/".join(parts[:depth]) for depth in range(1, len(parts) + 1)}
    return frozenset(found)


_ABOVE_TOOLS = _with_folders_above(
    (*_PATH, "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc")
)
"""Folders of tools, and those above them: a link in place of one leads to other tools."""

_ABOVE_HOMES = frozenset({"/", "/root", "/home", "/tmp"})

LINK_RULES = CarryRules(forbidden=TEST_FOLDERS)
"""All that changed, and which of its links lead to the tests."""


def tool_folders(path: str, cwd: str) -> tuple[str, ...]:
    """Folders of an image's own tools that are in no system folder, from its PATH.

    With `bin` goes what is beside it: an interpreter has its libraries there.
    """
    found = set()
    for folder in filter(lambda one: one.startswith("/"), path.split(":")):
        place = posixpath.normpath(folder)
        above = posixpath.dirname(place)
        if posixpath.basename(place) in ("bin", "sbin") and above not in _ABOVE_HOMES:
            place = above
        if (
            place not in _ABOVE_HOMES
            and place != cwd
            and not is_below(place, cwd)
            and not is_below(cwd, place)
        ):
            found.add(place)
    return tuple(sorted(found - _ABOVE_TOOLS))


def rules_for(task: TaskSpec, tools: Sequence[str] = ()) -> CarryRules:
    """Return what of a task's sandbox is carried: all but the system and its tools, the working folder
    always."""
    return CarryRules(
        carried=("/", *((task.cwd,) if task.cwd != "/" else ()), *task.carry),
        left=(*SYSTEM_FOLDERS, *TOOL_FOLDERS, *AGENT_FOLDERS, *tools),
        homes=HOMES,
        forbidden=FORBIDDEN,
    )


def carries_tools(task: TaskSpec) -> bool:
    """Return whether a task carries something its tests may be run by."""
    return any(
        path == tool or is_below(path, tool) or is_below(tool, path)
        for path in task.carry
        for tool in (*TOOL_FOLDERS, *_PROGRAM_FOLDERS, "/lib", "/lib64")
    )


def tampered(changes: Iterable[ChangedPath], tools: Sequence[str] = (), *, strict: bool = True) -> list[str]:
    """The image's own tools among the changes, and what runs by itself in every program: to be put back.

    `tools`: folders of tools outside the system. `strict`: start-up files of installed packages as well.
    """
    found = []
    start_up = (*_START_UP, *_PACKAGE_START_UP) if strict else _START_UP
    for change in changes:
        changed = change.kind != "added"
        if changed and change.path in _ABOVE_TOOLS:
            found.append(f"{change.path}/{BLOCKED}")
            continue
        own_program = any(is_below(change.path, folder) for folder in (*_PROGRAM_FOLDERS, *tools))
        own_tool = own_program or any(fnmatch(change.path, pattern) for pattern in _PUT_BACK)
        if (changed and own_tool) or any(fnmatch(change.path, pattern) for pattern in start_up):
            found.append(change.path)
    return found


def shadows(changes: Iterable[ChangedPath]) -> dict[str, Sequence[str]]:
    """Programs that were added where PATH looks, each with the places where it may hide one of the image."""
    found: dict[str, Sequence[str]] = {}
    for change in changes:
        folder, _, name = change.path.rpartition("/")
        if change.kind == "added" and folder in _PATH:
            found[change.path] = [f"{other}/{name}" for other in _PATH if other != folder]
    return found


# The packed work of a run's agents, kept so that it can be graded again without running them.
#
# Each archive is kept once per run, under its digest: `<run folder>/work/<digest>.tar`, and in an artifact
# store under `benchmarks/<run>/.work/<digest>.tar`. The attempt's own folder has `work.json`, which names
# the digest. An archive that is too large, or that holds a secret value, is not kept; `keep` says why.

WORK = "work.tar"
"""The file of an attempt's draft the work is packed into."""
RECORD = "work.json"
"""The file of an attempt that says what was packed: `digest`, `removed`, `left`, `kept` and so on."""
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class KeepLimits:
    """How many bytes of work are kept."""

    trial: int = 256 << 20
    run: int = 10 << 30

    @classmethod
    def configured(cls) -> KeepLimits:
        """Return the limits of `work_max_mb` and `work_run_max_mb`."""
        trial, run = (values.effective(name).value for name in ("work_max_mb", "work_run_max_mb"))
        return cls(int(trial or 0) << 20, int(run or 0) << 20)


@dataclass(slots=True)
class KeptWork:
    """The archives of one run."""

    folder: RunFolder
    limits: KeepLimits = field(default_factory=KeepLimits)
    _total: int | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def path(self, digest: str) -> Path:
        """Return where the archive of that digest is, or would be, on this machine."""
        return self.folder.root / "work" / f"{digest}.tar"

    def keep(self, archive: Path, digest: str, masker: Masker | None = None) -> str | None:
        """Keep an archive; return why it is not kept, or None. Blocks; callable from any thread.

        The archive itself stays where it is: the kept file is a second name of it where possible.
        """
        size, place = archive.stat().st_size, self.path(digest)
        if size > self.limits.trial:
            return f"it has {_mb(size)}, and work_max_mb is {_mb(self.limits.trial)}"
        if masker is not None and masker.finds_in(archive):
            return "it holds the value of a secret"
        with self._lock:
            if place.exists():
                return None
            total = self._measure()
            if total + size > self.limits.run:
                return f"the run keeps {_mb(total)} already, and work_run_max_mb is {_mb(self.limits.run)}"
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _link(archive, place)
            self._total = total + size
        return None

    def _measure(self) -> int:
        if self._total is None:
            self._total = sum(path.stat().st_size for path in self.path("").parent.glob("*.tar"))
        return self._total


async def share(kept: KeptWork, away: RemoteStorage, run_id: str, digest: str) -> None:
    """Put a kept archive into the run's artifact store, if there is one and it has none of that digest."""
    if away.artifacts is not None:
        await away.put_once(work_key(run_id, digest), kept.path(digest))


async def fetch(kept: KeptWork, away: RemoteStorage, run_id: str, digest: str) -> Path | None:
    """Return the archive of that digest, brought from the artifact store if need be; None if it is gone."""
    path = kept.path(digest)
    await away.get(work_key(run_id, digest), path)
    return path if path.exists() else None


def digest_of(archive: Path) -> str:
    digest = hashlib.sha256()
    with archive.open("rb") as source:
        while piece := source.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def write_record(folder: Path, record: Json) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECORD).write_text(json.dumps(record), encoding="utf-8")


def read_record(folder: Path) -> Json | None:
    """Return what was packed in an attempt, or None if nothing was."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def work_key(run_id: str, digest: str) -> str:
    """Return the key an archive has in the run's artifact store."""
    # No task's folder begins with a dot (`layout.encode_task_id`).
    return f"{run_prefix(run_id)}.work/{digest}.tar"


def _link(archive: Path, place: Path) -> None:
    """Give the archive a second name, or copy it where the file system has no hard links."""
    try:
        os.link(archive, place)
    except FileExistsError:
        return  # another process kept the same
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        part = place.with_name(f".{uuid.uuid4().hex}")
        shutil.copyfile(archive, part)
        part.replace(place)


def _mb(size: int) -> str:
    return f"{size / (1 << 20):.1f} MB"

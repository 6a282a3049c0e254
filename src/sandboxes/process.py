"""Plain processes in a folder: no isolation, for contracts and trusted tasks only."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Self, TypeVar
from uuid import uuid4

from sandboxes import cgroups
from sandboxes.cgroups import Cgroup, CgroupSupport, detect_cgroups
from sandboxes.errors import SandboxError, SandboxNotFoundError, SandboxUnsupportedError
from sandboxes.protocol import RunnableSandbox, SandboxProvider
from sandboxes.rooted_files import FOLDER, RootedFiles, remove_entry
from sandboxes.streams import feed, pieces_from, pump, uninterrupted
from sandboxes.types import (
    Capabilities,
    Command,
    CopyLimits,
    CopyReport,
    OutputSink,
    SandboxCreateRequest,
    SandboxLimits,
    SandboxQuery,
)


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One sandbox: `record.json` in its folder. It exists exactly as long as the sandbox does."""

    id: str
    name: str
    labels: dict[str, str]
    env: dict[str, str]
    limits: SandboxLimits
    created_at: datetime
    creator_pid: int = field(default_factory=os.getpid)

    @classmethod
    def new(cls, request: SandboxCreateRequest) -> Self:
        """The record of a sandbox to be made."""
        sandbox_id = f"process-{uuid4().hex[:16]}"
        return cls(
            id=sandbox_id,
            name=request.name or sandbox_id,
            labels=dict(request.labels),
            env=dict(request.env_vars),
            limits=request.effective_limits,
            created_at=datetime.now(UTC),
        )

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The record in that folder, or None."""
        try:
            raw = json.loads((folder / "record.json").read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        return cls(
            **{
                **raw,
                "limits": SandboxLimits(**raw["limits"]),
                "created_at": datetime.fromisoformat(raw["created_at"]),
            }
        )

    @classmethod
    def read_all(cls, root: Path) -> list[Self]:
        """Return all records below `root`, oldest first."""
        folders = root.iterdir() if root.is_dir() else ()
        records = [record for folder in folders if (record := cls.read(folder)) is not None]
        return sorted(records, key=lambda record: record.created_at)

    def write(self, folder: Path) -> None:
        """Write it whole or not at all. Only the owner may read it: the environment may hold secrets."""
        raw = asdict(self) | {"created_at": self.created_at.isoformat()}
        draft = folder / "record.json.new"
        draft.touch(mode=0o600)
        draft.write_text(json.dumps(raw))
        draft.replace(folder / "record.json")


# Ending processes that can only be told by a mark in their environment.

PATIENCE_SECONDS = 10.0


def find_marked(mark: str) -> list[int]:
    """Processes started with `mark` (NAME=value) in their environment, whatever they did since."""
    wanted = mark.encode()
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:  # gone meanwhile, or another user's
                continue
            if wanted in environment.split(b"\0"):
                found.append(int(entry.name))
    return found


def kill_marked(mark: str) -> bool:
    """Kill them, and those forked meanwhile, until none is left; whether that came about in time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while pids := find_marked(mark):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


# Well-known sandbox paths in commands, replaced by places in a host folder.

PROCESS_FOLDERS = ("app", "workspace", "bundle", "tests", "logs", "solution", "tmp", "home")
"""Folders every process sandbox has."""

_NAMES = ("app", "workspace", "bundle", "tests", "logs", "solution", "oracle", "tmp", r"instruction(?:\.md)?")
# Not part of a longer path or word before (`/usr/app`, `$HOME/app`, `${X}/app`, `$(pwd)/app`, `s/app/…/`),
# and the whole of a name (`/apps` and `/app.txt` are others).
_BEFORE = r"(?<![\w./~})\]*?-])"
_AFTER = r"(?![\w.-])"


class PathRewriter:
    """Replaces `/app` by `<root>/app`, and its like, wherever one begins a path in a text."""

    __slots__ = ("_pattern", "_root")

    def __init__(self, root: str) -> None:
        self._root = root
        own = f"(?!{re.escape(root)})"
        self._pattern = re.compile(f"{_BEFORE}{own}(/(?:{'|'.join(_NAMES)})){_AFTER}")

    def rewrite(self, text: str) -> str:
        """The text with every well-known path moved into the folder."""
        return self._pattern.sub(lambda match: self._root + match[1], text) if "/" in text else text


# Plain processes in a folder: no isolation, for contracts and trusted tasks only.
#
# A sandbox is a folder below the provider's state folder. File operations stay inside it. Commands run on
# the host, as the user that runs Valkyrie, and see the whole machine. Because there is no file system of
# their own, well-known paths (`/app`, `/tests`, …) are replaced by the folder's where they begin a path in
# arguments, environment values and the working folder. The text of uploaded scripts is not touched: scripts
# have to use relative paths or `$VALKYRIE_ROOT`.

T = TypeVar("T")

SANDBOX_MARK = "VALKYRIE_SANDBOX_ID"
RUN_MARK = "VALKYRIE_RUN_ID"

_ENTER = """n=$1; shift
while [ "$n" -gt 0 ]; do echo 0 > "$1" || exit 126; shift; n=$((n-1)); done
cd "$1" || exit 126
shift; exec "$@"
"""
"""Joins cgroups, then becomes the command: in the child, so that not even its first fork can get away."""


class ProcessSandbox(RunnableSandbox):
    """One folder and the processes started for it."""

    def __init__(self, folder: Path, record: ProcessRecord) -> None:
        self._folder = folder
        self._root = folder / "root"
        self._record = record
        self._rewriter = PathRewriter(str(self._root))
        self._numbers = count(1)
        self.labels = record.labels
        self.created_at = record.created_at

    @property
    def id(self) -> str:
        return self._record.id

    @property
    def name(self) -> str:
        return self._record.name

    @property
    def state(self) -> str:
        return "started" if self._alive() else "deleted"

    async def run(self, command: Command, sink: OutputSink | None = None) -> int:
        self._check()
        if command.user not in (None, "root", "0", getpass.getuser(), str(os.getuid())):
            raise SandboxUnsupportedError(
                f"provider 'process' runs as {getpass.getuser()}, not {command.user}"
            )
        run_id = f"{os.getpid()}-{next(self._numbers)}-{uuid4().hex[:8]}"
        group = self._cgroup().child(f"run-{run_id}")
        environment = self._environment(command.env) | {RUN_MARK: run_id}

        async def kill() -> None:
            await asyncio.to_thread(_kill_tree, group, f"{RUN_MARK}={run_id}")

        try:
            process = subprocess.Popen(  # noqa: ASYNC220 - spawning is what this does; it takes a millisecond
                self._entering(group, command.cwd, [self._rewriter.rewrite(word) for word in command.argv]),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:  # more words than the kernel takes, or no room for a process
            group.remove_if_empty()
            raise SandboxError(f"cannot run the command: {error.strerror}") from error
        try:
            code = await pump(process, sink, timeout=command.timeout, kill=kill)
        finally:
            group.remove_if_empty()
        self._check()
        return code

    async def upload_file(self, path: str, content: bytes) -> None:
        await self._with_files(lambda files: files.write(path, (content,)))

    async def download_file(self, path: str) -> bytes:
        return await self._with_files(lambda files: b"".join(files.read(path)))

    async def upload_stream(self, path: str, chunks: AsyncIterator[bytes], *, mode: int = 0o644) -> None:
        self._check()
        with self._files() as files:
            await feed(chunks, lambda pieces: files.write(path, pieces, mode))

    async def stream_download(self, path: str) -> AsyncIterator[bytes]:
        self._check()
        with self._files() as files:
            async for piece in pieces_from(files.read(path)):
                yield piece

    async def upload_folder(self, source: Path, path: str) -> None:
        await self._with_files(lambda files: files.copy_in(source, path))

    async def download_folder(
        self, path: str, destination: Path, limits: CopyLimits | None = None
    ) -> CopyReport:
        return await self._with_files(lambda files: files.copy_out(path, destination, limits))

    async def list_files(self, pattern: str) -> list[str]:
        return await self._with_files(lambda files: files.glob(pattern))

    async def is_folder(self, path: str) -> bool:
        return await self._with_files(lambda files: files.is_folder(path))

    async def clear_folder(self, path: str) -> None:
        await self._with_files(lambda files: files.clear_folder(path))

    async def remove(self, path: str) -> None:
        await self._with_files(lambda files: files.remove(path))

    async def kill_all(self) -> None:
        self._check()
        await asyncio.to_thread(_kill_tree, self._cgroup(), f"{SANDBOX_MARK}={self.id}")

    def shell_argv(self, cwd: str = "/") -> list[str]:
        self._check()
        settings = [f"{key}={value}" for key, value in (self._environment({}) | {"TERM": "xterm"}).items()]
        return [
            "env",
            "-i",
            *settings,
            *self._entering(self._cgroup(), None if cwd == "/" else cwd, ["/bin/sh", "-i"]),
        ]

    def end(self) -> None:
        """Kill everything and delete the folder. The record goes first: from then on it is deleted."""
        (self._folder / "record.json").unlink(missing_ok=True)
        group = self._cgroup()
        _kill_tree(group, f"{SANDBOX_MARK}={self.id}")
        group.remove()
        parent = os.open(self._folder.parent, FOLDER)
        try:
            remove_entry(self._folder.name, parent)
        finally:
            os.close(parent)

    def _alive(self) -> bool:
        return (self._folder / "record.json").exists()

    def _check(self) -> None:
        if not self._alive():
            raise SandboxNotFoundError(f"sandbox {self.id} was deleted")

    def _cgroup(self) -> Cgroup:
        return Cgroup.reopen(self.id)

    def _entering(self, group: Cgroup, cwd: str | None, argv: list[str]) -> list[str]:
        joins = group.procs_files
        return ["/bin/sh", "-c", _ENTER, "sh", str(len(joins)), *joins, self._host_folder(cwd), *argv]

    def _host_folder(self, cwd: str | None) -> str:
        if cwd is None:
            return str(self._root / "app")
        rewritten = self._rewriter.rewrite(cwd)
        inside = self._root / cwd.lstrip("/")
        return str(inside) if rewritten == cwd and inside.is_dir() else rewritten

    def _environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        asked = {**self._record.env, **extra}
        return {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "HOME": str(self._root / "home"),
            "TMPDIR": str(self._root / "tmp"),
            **{key: self._rewriter.rewrite(value) for key, value in asked.items()},
            "VALKYRIE_ROOT": str(self._root),
            SANDBOX_MARK: self.id,
        }

    async def _with_files(self, work: Callable[[RootedFiles], T]) -> T:
        def opened() -> T:
            self._check()
            with self._files() as files:
                return work(files)

        return await uninterrupted(asyncio.to_thread(opened))

    @contextmanager
    def _files(self) -> Iterator[RootedFiles]:
        # Opened for each use: a descriptor kept would be closed, and its number reused, under a thread.
        try:
            root = os.open(self._root, FOLDER)
        except FileNotFoundError:
            raise SandboxNotFoundError(f"sandbox {self.id} was deleted") from None
        try:
            yield RootedFiles(root, (os.geteuid(), os.getegid()))
        finally:
            os.close(root)


class ProcessProvider(SandboxProvider):
    """Makes folders below `root`; whatever process uses the same `root` sees the same sandboxes."""

    def __init__(self, root: Path) -> None:
        self._state_dir = root
        self._root = root / "process"

    async def create_sandbox(self, request: SandboxCreateRequest) -> ProcessSandbox:
        task = asyncio.ensure_future(asyncio.to_thread(self._create, request))
        try:
            return await uninterrupted(task)
        except asyncio.CancelledError:
            if not task.cancelled() and task.exception() is None:
                await asyncio.to_thread(task.result().end)
            raise

    async def get_sandbox(self, sandbox_id: str) -> ProcessSandbox:
        sandbox = self._open(sandbox_id)
        if sandbox is None:
            raise SandboxNotFoundError(f"no sandbox {sandbox_id}")
        return sandbox

    async def delete_sandbox(self, sandbox_id: str) -> None:
        sandbox = self._open(sandbox_id)
        if sandbox is not None:
            await uninterrupted(asyncio.to_thread(sandbox.end))

    async def list_sandboxes(self, query: SandboxQuery | None = None) -> AsyncIterator[ProcessSandbox]:
        query = query or SandboxQuery()
        for record in await asyncio.to_thread(ProcessRecord.read_all, self._root):
            late = query.created_at_lte is not None and record.created_at > query.created_at_lte
            if query.labels.items() <= record.labels.items() and not late:
                yield ProcessSandbox(self._root / record.id, record)

    def capabilities(self) -> Capabilities:
        found = _capabilities()
        cgroups.write_capabilities(self._state_dir, found)
        return found

    def expected_capabilities(self) -> Capabilities:
        return cgroups.read_capabilities(self._state_dir) or _assumed_capabilities()

    def _create(self, request: SandboxCreateRequest) -> ProcessSandbox:
        if request.source.type != "host" or request.source.rootfs is not None:
            raise SandboxUnsupportedError(
                f"provider 'process' runs on the host's own files, not from a {request.source.type} source;"
                " use 'local' or 'docker'"
            )
        record = ProcessRecord.new(request)
        folder = self._root / record.id
        for name in PROCESS_FOLDERS:
            (folder / "root" / name).mkdir(parents=True)
        sandbox = ProcessSandbox(folder, record)
        try:
            Cgroup.create(record.id, record.limits)
            record.write(folder)
        except BaseException:
            sandbox.end()
            raise
        return sandbox

    def _open(self, sandbox_id: str) -> ProcessSandbox | None:
        record = ProcessRecord.read(self._root / Path(sandbox_id).name)
        return None if record is None else ProcessSandbox(self._root / record.id, record)


@lru_cache(maxsize=1)
def _capabilities() -> Capabilities:
    return _declared(detect_cgroups())


def _assumed_capabilities() -> Capabilities:
    """Return what is known without starting a program."""
    limits = dict.fromkeys(("cpus", "memory", "pids", "processes"), "not tried yet: valk doctor")
    declared = _declared(CgroupSupport())
    return declared._replace(enforcement={**declared.enforcement, **limits})


def _declared(support: CgroupSupport) -> Capabilities:
    return Capabilities(
        provider="process",
        isolation=f"none: commands run on this machine as {getpass.getuser()}, in a folder of their own",
        networks=frozenset({"none", "public"}),
        enforcement={
            "cpus": support.cpu or "not enforced",
            "memory": support.memory or "not enforced",
            "pids": support.pids or "not enforced",
            "disk": "not enforced",
            "network": "not enforced",
            "processes": support.kill or "found by a mark in their environment",
        },
        missing=tuple((f"cgroup {control}", reason) for control, reason in support.reasons.items()),
    )


def _kill_tree(group: Cgroup, mark: str) -> None:
    if group.can_kill:
        group.kill()
    else:
        kill_marked(mark)

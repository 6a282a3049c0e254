"""A local sandbox as the engine sees it: its record on disk, the accounts its commands run as, and one that
another process holds."""

# ruff: noqa: ARG002
from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import select
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from sandboxes import work as work_transfer
from sandboxes.cgroups import Cgroup
from sandboxes.errors import (
    SandboxConnectionError,
    SandboxDiedError,
    SandboxError,
    SandboxFileNotFoundError,
    SandboxNotFoundError,
    SandboxUnsupportedError,
    SandboxUserError,
)
from sandboxes.local import processes, root_filesystem, shell
from sandboxes.local.changes import InitialRoot, OverlayChanges, OverlayLayer, PreparedPaths, PrivateRoot
from sandboxes.local.keeper_link import HelperChannel, KeeperLink
from sandboxes.local.processes import ProcessIdentity, boot_id
from sandboxes.protocol import CarryRules, ChangedPath, PackedWork, RunnableSandbox, Sandbox, WorkLimits
from sandboxes.rooted_files import RootedFiles
from sandboxes.streams import feed, pieces_from, pump_fds, uninterrupted
from sandboxes.types import Command, CopyLimits, CopyReport, ExecResult, OutputSink
from sandboxes.work import Difference, put_back
from sandboxes.work_archive import Ids

RECORD_SUFFIX = ".sandbox"


@dataclass(frozen=True)
class SandboxRecord:
    """What the lines of one record say."""

    id: str
    name: str
    labels: dict[str, str]
    created_at: float
    cgroup: str
    keeper: ProcessIdentity
    first: ProcessIdentity | None = None
    ended: bool = False
    """Another process of ours ends it."""

    def opening(self) -> str:
        """The line written before the start."""
        keeper = {"pid": self.keeper.pid, "start": self.keeper.start, "boot": self.keeper.boot}
        fields = {
            "id": self.id,
            "name": self.name,
            "labels": self.labels,
            "created_at": self.created_at,
            "cgroup": self.cgroup,
            "keeper": keeper,
        }
        return json.dumps(fields) + "\n"


def load_records(folder: Path) -> list[SandboxRecord]:
    """Return every record that can be read; one whose first line is torn never started anything."""
    found = [read_record(path) for path in sorted(folder.glob(f"*{RECORD_SUFFIX}"))]
    return [record for record in found if record is not None]


def read_record(path: Path) -> SandboxRecord | None:
    """One record, or None when it is gone or its first line is torn."""
    fields: dict[str, Any] = {}
    try:
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                fields.update(json.loads(line))
    except (FileNotFoundError, ValueError):
        return None
    if "id" not in fields:
        return None
    for role in ("keeper", "first"):
        if role in fields:
            fields[role] = ProcessIdentity(**fields[role])
    return SandboxRecord(**fields)


# Ending what processes that are gone left behind, and looking at what others still hold.
#
# A record or cgroup belongs to a keeper. While exactly that process lives, its sandboxes are its own.

_PATIENCE_SECONDS = 10.0
_MARKED = re.compile(r"(\d+)-(\d+)-")


def marked_name(mark: ProcessIdentity, name: str) -> str:
    """A name that says which process it belongs to."""
    return f"{mark.pid}-{mark.start}-{name}"


def end_orphans(state_dir: Path, cgroup_prefix: str) -> list[SandboxRecord]:
    """End every sandbox whose keeper is gone, and tidy up after it; the records there were."""
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    left = [record for record in load_records(state_dir) if not record.keeper.alive()]
    for record in left:
        _end(record)
    for name in Cgroup.find(cgroup_prefix):
        if _is_orphan(name.removeprefix(cgroup_prefix)):
            with suppress(SandboxError):  # its processes take their time to die; the next sweep looks again
                Cgroup.reopen(name).remove()
    for record in left:
        (state_dir / f"{record.id}{RECORD_SUFFIX}").unlink(missing_ok=True)
    _remove_leftover_folders(state_dir)
    return left


def foreign_records(state_dir: Path, own_keeper: int | None) -> list[SandboxRecord]:
    """Records of sandboxes that another live process holds."""
    held = [record for record in load_records(state_dir) if record.keeper.pid != own_keeper]
    return [record for record in held if record.first is not None and record.keeper.alive()]


def end_foreign(state_dir: Path, record: SandboxRecord) -> None:
    """End a sandbox another process holds, and wait until that one has tidied up."""
    path = state_dir / f"{record.id}{RECORD_SUFFIX}"
    with suppress(FileNotFoundError):
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        os.write(fd, processes.ENDED_LINE)
        os.close(fd)
    _end(record)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while path.exists() and record.keeper.alive() and time.monotonic() < deadline:
        time.sleep(0.005)


def _end(record: SandboxRecord) -> None:
    pidfd = record.first.open() if record.first is not None else None
    if pidfd is None:
        return
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        poller.poll(int(_PATIENCE_SECONDS * 1000))
    except ProcessLookupError:
        pass
    finally:
        os.close(pidfd)


def _is_orphan(name: str) -> bool:
    found = _MARKED.match(name)
    if found is None:
        return False
    mark = ProcessIdentity(int(found[1]), int(found[2]), boot_id())
    return not mark.alive()


def _remove_leftover_folders(state_dir: Path) -> None:
    for path in state_dir.iterdir():
        if path.is_dir() and _is_orphan(path.name):
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
        elif path.suffix == RECORD_SUFFIX and read_record(path) is None:
            path.unlink(missing_ok=True)


# A sandbox another process of ours holds: it can be seen, entered by a person and ended, nothing else.


class ForeignSandbox(Sandbox):
    """Known by its record alone."""

    def __init__(self, record: SandboxRecord, mode: str, groups: list[str]) -> None:
        self._record = record
        self._mode = mode
        self._groups = groups
        self.labels = record.labels
        self.created_at = datetime.fromtimestamp(record.created_at, UTC)

    @property
    def id(self) -> str:
        return self._record.id

    @property
    def name(self) -> str:
        return self._record.name

    @property
    def state(self) -> str:
        first = self._record.first
        return "started" if first is not None and first.alive() else "deleted"

    async def exec(self, command: str, *, cwd: str | None = None, timeout: float | None = None) -> ExecResult:
        raise self._out_of_reach()

    async def command(
        self,
        command: str,
        *,
        cwd: str | None = None,
        timeout: float | None = None,
        env_vars: Mapping[str, str] | None = None,
    ) -> AsyncIterator[str]:
        raise self._out_of_reach()
        yield ""

    async def upload_file(self, path: str, content: bytes) -> None:
        raise self._out_of_reach()

    async def download_file(self, path: str) -> bytes:
        raise self._out_of_reach()

    def shell_argv(self, cwd: str = "/") -> list[str]:
        first = self._record.first
        if first is None or not first.alive():
            raise SandboxNotFoundError(f"sandbox {self.id} is gone")
        env = {"HOME": "/root", "LANG": "C.UTF-8", "PWD": cwd}
        return shell.argv(first.pid, self._groups, self._mode, env)

    def _out_of_reach(self) -> SandboxConnectionError:
        return SandboxConnectionError(
            f"sandbox {self.id} is held by process {self._record.keeper.pid}; only that one can use it"
        )


# One local sandbox as the engine sees it, with the accounts its commands run as.

_MAX_BYTES = 1 << 20
_MAX_ID = 65_535
_MAX_GROUPS = 64


@dataclass(frozen=True, slots=True)
class UnixAccount:
    """A user of the sandbox."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


def look_up_account(files: RootedFiles, user: str) -> UnixAccount:
    """The account of a user name or numeric id. A number without an account is fine, a name is not."""
    for fields in _lines(files, "/etc/passwd", 7):
        name, _, uid, gid, _, home, _ = fields
        if name == user or (user.isdigit() and uid == user):
            return _account(files, name, int(uid), int(gid), home)
    if user.isdigit():
        return _account(files, user, int(user), int(user), "/")
    raise SandboxUserError(
        f"no user {user!r} in the sandbox; add it to /etc/passwd there (useradd) or give a number"
    )


def _account(files: RootedFiles, name: str, uid: int, gid: int, home: str) -> UnixAccount:
    if not (0 <= uid <= _MAX_ID and 0 <= gid <= _MAX_ID):
        raise SandboxUserError(f"user {name!r} has an id over {_MAX_ID}, which sandboxes do not have")
    groups = {gid}
    for _, _, number, members in _lines(files, "/etc/group", 4):
        if name in members.split(",") and int(number) <= _MAX_ID:
            groups.add(int(number))
    return UnixAccount(name, uid, gid, tuple(sorted(groups)[:_MAX_GROUPS]), home or "/")


def _lines(files: RootedFiles, path: str, count: int) -> list[list[str]]:
    try:
        text = b"".join(files.read(path, max_bytes=_MAX_BYTES)).decode("utf-8", "replace")
    except SandboxFileNotFoundError:
        return []
    split = [line.split(":") for line in text.splitlines()]
    return [fields for fields in split if len(fields) == count and fields[2].isdigit()]


# One local sandbox as the engine sees it.

T = TypeVar("T")

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENVIRONMENT = {"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8", "TERM": "dumb"}
_ROOT = ("root", "0")
_END_SECONDS = 2.0
_LAST_WORDS_SECONDS = 10.0
_ANSWER_SECONDS = 0.5


class LocalSandbox(RunnableSandbox):
    """Namespaces made by bubblewrap, commands run by its warden, files by openat2 below its root."""

    def __init__(
        self, keeper: KeeperLink, record: SandboxRecord, spec: processes.Message, env: Mapping[str, str]
    ) -> None:
        self._id = record.id
        self._name = record.name
        self.labels = dict(record.labels)
        self.created_at = datetime.fromtimestamp(record.created_at, UTC)
        self._keeper = keeper
        self._spec = spec
        self._env = {**_ENVIRONMENT, **env}
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._answers: dict[int, asyncio.Future[int]] = {}
        self._count = 0
        self._ended = False
        self._death: asyncio.Task[SandboxDiedError] | None = None
        """Finds out why it ended by itself."""
        self._root_fd = -1
        self._first_pidfd = -1
        self._layer_fds: list[int] = []
        """The folder with its upper layers, and the lower ones of its views; empty for an ordinary user."""
        self._prepared: tuple[dict[str, int], dict[str, str]] = ({}, {})
        self.first_pid = 0
        self._files: RootedFiles | None = None
        self._busy = 0
        self._last_resort: asyncio.Future[bool] | None = None
        sock, self._gone = keeper.create(spec)
        self._channel = HelperChannel(sock, self._receive, self._on_end)

    @property
    def id(self) -> str:
        return self._id

    @property
    def name(self) -> str:
        return self._name

    @property
    def state(self) -> str:
        return "deleted" if self._ended else "started"

    @property
    def networked(self) -> bool:
        """Whether it was asked for with a network."""
        return bool(self._spec["network"])

    async def started(self) -> None:
        """Wait until it runs."""
        try:
            await self._ready
        except SandboxDiedError as error:
            if self._channel.lacked_files:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error
            raise

    async def end(self) -> None:
        """End everything in it and wait until it is gone. Again is fine."""
        self._mark_ended(SandboxNotFoundError(f"sandbox {self._id} was deleted"))
        # Now: who drops the last reference to the root waits for its file systems to be taken apart.
        self._release()
        self._channel.post({"op": "end"})
        done, _ = await asyncio.wait((self._gone,), timeout=_END_SECONDS)
        if not done:
            self._keeper.end(self._id)
            await asyncio.wait((self._gone,), timeout=_LAST_WORDS_SECONDS)
        self._channel.close()
        self._release()
        if not self._gone.done():
            raise SandboxError(f"sandbox {self._id} does not end; its processes may hang in the kernel")

    async def run(self, command: Command, sink: OutputSink | None = None) -> int:
        request = await self._request(command)
        self._check()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        number = request["n"]
        exited = self._answers[number] = self._loop.create_future()
        self._channel.post(request, (out_write, err_write))

        async def kill() -> None:
            await self._kill(number)

        try:
            return await pump_fds(
                {"stdout": out_read, "stderr": err_read}, exited, sink, timeout=command.timeout, kill=kill
            )
        finally:
            self._answers.pop(number, None)

    async def _request(self, command: Command) -> processes.Message:
        await self._checked()
        self._count += 1
        env = self._env
        user = None
        if command.user is not None and command.user not in _ROOT:
            account = await self._account(command.user)
            env = {**env, "HOME": account.home, "USER": account.name, "LOGNAME": account.name}
            user = (account.uid, account.gid, account.groups)
        return {
            "op": "exec",
            "n": self._count,
            "argv": list(command.argv),
            "env": {**env, **command.env},
            "cwd": command.cwd or "/",
            "user": user,
        }

    async def _account(self, user: str) -> UnixAccount:
        if self._keeper.mode == root_filesystem.ROOTLESS:
            raise SandboxUnsupportedError(
                f"no user {user!r}: an ordinary user's sandbox has one id only; run as root,"
                " or use --provider docker"
            )
        return await self._in_files(lambda files: look_up_account(files, user))

    async def give_folder(self, path: str, user: str) -> None:
        ids = self._ids
        account = None if user in _ROOT else await self._account(user)
        uid, gid = (0, 0) if account is None else (account.uid, account.gid)
        await self._in_files(lambda files: files.give_folder(path, ids.outside(uid), ids.outside(gid)))

    async def _kill(self, number: int) -> None:
        if number in self._answers and not self._answers[number].done():
            self._channel.post({"op": "kill", "n": number})

    async def kill_all(self) -> None:
        await self._checked()
        if await self._is_empty():
            return
        if not await self._keeper.kill_all(self.first_pid, self._first_pidfd, self._spec["groups"]):
            await self._checked()
            raise SandboxDiedError(f"processes in sandbox {self._id} do not die; delete it")
        if self._keeper.is_ending:
            await asyncio.wait((self._gone,), timeout=_LAST_WORDS_SECONDS)
            self._on_end()
        await self._checked()

    async def _is_empty(self) -> bool:
        """Return whether the warden says that nothing runs; one that does not answer in time says no."""
        self._count += 1
        number = self._count
        counted = self._answers[number] = self._loop.create_future()
        self._channel.post({"op": "count", "n": number})
        try:
            await asyncio.wait((counted,), timeout=_ANSWER_SECONDS)
            return counted.done() and bool(counted.result())
        finally:
            self._answers.pop(number, None)

    def shell_argv(self, cwd: str = "/") -> list[str]:
        self._check()
        # Without the request's own variables: a command line is for all to see, and they may be secrets.
        env = {**_ENVIRONMENT, "PWD": cwd}
        return shell.argv(self.first_pid, self._spec["groups"], self._keeper.mode, env)

    async def upload_file(self, path: str, content: bytes) -> None:
        await self._in_files(lambda files: files.write(path, (content,)))

    async def download_file(self, path: str) -> bytes:
        return await self._in_files(lambda files: b"".join(files.read(path)))

    async def upload_stream(self, path: str, chunks: AsyncIterator[bytes], *, mode: int = 0o644) -> None:
        await self._checked()
        with self._using_files() as files:
            await feed(chunks, lambda pieces: files.write(path, pieces, mode))

    async def stream_download(self, path: str) -> AsyncIterator[bytes]:
        await self._checked()
        with self._using_files() as files:
            async for piece in pieces_from(files.read(path)):
                yield piece

    async def upload_folder(self, source: Path, path: str) -> None:
        await self._in_files(lambda files: files.copy_in(source, path))

    async def download_folder(
        self, path: str, destination: Path, limits: CopyLimits | None = None
    ) -> CopyReport:
        return await self._in_files(lambda files: files.copy_out(path, destination, limits))

    async def list_files(self, pattern: str) -> list[str]:
        return await self._in_files(lambda files: files.glob(pattern))

    async def is_folder(self, path: str) -> bool:
        return await self._in_files(lambda files: files.is_folder(path))

    async def clear_folder(self, path: str) -> None:
        await self._in_files(lambda files: files.clear_folder(path))

    async def remove(self, path: str) -> None:
        await self._in_files(lambda files: files.remove(path))

    async def clear(self, folders: Sequence[str], removed: Sequence[str] = ()) -> None:
        def work(files: RootedFiles) -> None:
            for path in folders:
                files.clear_folder(path)
            for path in removed:
                files.remove(path)

        await self._in_files(work)

    async def changes(self, rules: CarryRules | None = None) -> list[ChangedPath]:
        difference = await self._difference()
        return await self._in_files(lambda _: work_transfer.list_changed_paths(difference, rules))

    async def pack_work(
        self, rules: CarryRules, archive: Path, limits: WorkLimits | None = None
    ) -> PackedWork:
        difference = await self._difference()
        return await self._in_files(
            lambda _: work_transfer.pack_changes(
                difference, self._root_fd, self._ids, rules, archive, limits or WorkLimits()
            )
        )

    async def unpack_work(self, archive: Path, rules: CarryRules, removed: Sequence[str] = ()) -> None:
        difference = await self._difference()
        await self._in_files(
            lambda _: work_transfer.unpack_changes(
                difference, self._root_fd, self._ids, rules, archive, removed
            )
        )

    async def put_back(self, paths: Sequence[str], pristine: Sandbox) -> None:
        if not isinstance(pristine, LocalSandbox):
            raise SandboxUnsupportedError("files of a local sandbox can be put back from a local one only")
        difference = await self._difference()

        def work(_: RootedFiles) -> None:
            with work_transfer.explained("put files back"):
                put_back(difference, self._root_fd, pristine._root_fd, self._ids, paths)

        with pristine._using_files():
            await self._in_files(work)

    @property
    def _ids(self) -> Ids:
        return Ids(self._keeper.owner[0], alone=self._keeper.mode == root_filesystem.ROOTLESS)

    async def _difference(self) -> Difference:
        """Return what tells this sandbox from a new one."""
        await self._checked()
        spec = self._spec
        if self._keeper.mode == root_filesystem.ROOTLESS:
            return PrivateRoot(self._root_fd, await asyncio.to_thread(InitialRoot.of, spec))
        lower = await self._keeper.lower(spec["rootfs"])
        self._check()
        found = [OverlayLayer("", "upper", lower.root, PreparedPaths(*self._prepared))]
        for number, (name, fd) in enumerate(lower.trees.items()):
            found.append(OverlayLayer(f"/{name}", f"upper{number}", fd))
        lower_of_views = iter(self._layer_fds[1:])
        for number, (_, target, hidden) in enumerate(spec["views"]):
            if target in self.views:
                paths = frozenset(f"{target}/{path}" for path in hidden)
                prepared = PreparedPaths(hidden=paths)
                found.append(OverlayLayer(target, f"upper-view{number}", next(lower_of_views), prepared))
        mounted = {*spec["separate"], *(target for _, target, _ in spec["mounts"])}
        return OverlayChanges(self._layer_fds[0], found, frozenset(mounted), self._keeper.owner[0])

    async def _in_files(self, work: Callable[[RootedFiles], T]) -> T:
        await self._checked()
        with self._using_files() as files:
            return await uninterrupted(asyncio.to_thread(work, files))

    @contextmanager
    def _using_files(self) -> Iterator[RootedFiles]:
        """Keep the root's descriptor open while a thread works below it."""
        self._check()
        assert self._files is not None
        self._busy += 1
        try:
            yield self._files
        finally:
            self._busy -= 1
            self._release()

    def _receive(self, message: processes.Message, fds: list[int]) -> None:
        event = message["event"]
        if event == "ready":
            self._root_fd, *self._layer_fds = fds
            self._prepared = message["prepared"]
            self.first_pid = message["pid"]
            self.views = message["views"]
            try:
                self._first_pidfd = os.pidfd_open(self.first_pid)
            except OSError as error:
                if not self._ready.done():
                    self._ready.set_exception(error)
                return
            self._files = RootedFiles(self._root_fd, self._keeper.owner)
            _settle(self._ready, None)
        elif event == "failed":
            if not self._ready.done():
                self._ready.set_exception(SandboxError(f"the sandbox did not start: {message['error']}"))
        elif event == "exit":
            exited = self._answers.pop(message["n"], None)
            if exited is None or exited.done():
                return
            if "error" in message:
                exited.set_exception(SandboxError(f"command did not start: {message['error']}"))
            else:
                exited.set_result(message["code"])
        elif event == "count":
            counted = self._answers.pop(message["n"], None)
            if counted is not None and not counted.done():
                counted.set_result(message["alone"])
        elif event == "unkillable":
            # It forks faster than it can be listed: only the blow to everyone is fast enough.
            self._last_resort = asyncio.ensure_future(
                self._keeper.kill_all(self.first_pid, self._first_pidfd, self._spec["groups"])
            )

    def _on_end(self) -> None:
        if not self._ended:
            self._ended = True
            self._death = asyncio.ensure_future(self._find_cause())

    async def _find_cause(self) -> SandboxDiedError:
        """Tell whoever waits for something that this sandbox ended by itself, and why."""
        try:
            killed_keeper = self._keeper.is_ending
        except OSError:  # no file can be opened to look
            killed_keeper = False
        # The keeper looks at the groups of a sandbox before it removes them. One whose processes do not die
        # is not gone even then, and that comes from inside.
        done, _ = await asyncio.wait((self._gone,), timeout=_LAST_WORDS_SECONDS)
        outside = killed_keeper or (bool(done) and self._gone.result())
        if not self._ready.done():
            outside = True  # nobody was in it yet
        where = "outside" if outside else "inside"
        error = SandboxDiedError(
            f"sandbox {self._id} ended by itself; the cause was {where}", outside=outside
        )
        self._mark_ended(error)
        return error

    def _mark_ended(self, error: SandboxNotFoundError) -> None:
        self._ended = True
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()
        for exited in list(self._answers.values()):
            if not exited.done():
                exited.set_exception(error)
                exited.exception()
        self._answers.clear()

    async def _checked(self) -> None:
        """Raise what is known of its end, once that is known."""
        if self._death is not None:
            found = await asyncio.shield(self._death)
            raise SandboxDiedError(str(found), outside=found.outside)
        self._check()

    def _check(self) -> None:
        if self._ended:
            raise SandboxNotFoundError(f"sandbox {self._id} is gone")

    def _release(self) -> None:
        if not self._ended or self._busy:
            return
        for fd in (self._root_fd, self._first_pidfd, *self._layer_fds):
            if fd >= 0:
                os.close(fd)
        self._root_fd = self._first_pidfd = -1
        self._layer_fds = []


def _settle(future: asyncio.Future[None], value: None) -> None:
    if not future.done():
        future.set_result(value)

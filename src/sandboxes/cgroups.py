"""Limits by cgroup, and the one sure way to end a process tree.

A sandbox's group is a folder in each tree that controls something. Calls here are a few file operations
each; `kill` and `remove` may sleep for milliseconds while processes die, so call them in a thread when
the group may hold any.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sandboxes.errors import SandboxError
from sandboxes.host_capabilities import (
    PREFIX,
    CgroupParent,
    CgroupSupport,
    Controller,
    Mechanism,
    detect,
    prepare,
)
from sandboxes.types import SandboxLimits

__all__ = ["PREFIX", "Cgroup", "CgroupSupport", "detect"]

CPU_PERIOD_US = 100_000
PATIENCE_SECONDS = 10.0
"""How long killed processes may take to vanish."""


@dataclass(frozen=True, slots=True)
class _Group:
    """The sandbox's folder in one tree."""

    path: str
    mechanism: Mechanism
    controllers: frozenset[Controller]


class Cgroup:
    """One sandbox's groups in all trees that matter to it."""

    __slots__ = ("_groups", "_joined", "name")

    def __init__(self, name: str, groups: tuple[_Group, ...], joined: tuple[_Group, ...] = ()) -> None:
        self.name = name
        self._groups = groups
        self._joined = joined
        """Groups of the parent that a process joins as well; killing and removing leaves them alone."""

    @classmethod
    def create(cls, name: str, limits: SandboxLimits, support: CgroupSupport | None = None) -> Cgroup:
        """Make the groups and set the limits. What the machine cannot limit is left out."""
        name = name if name.startswith(PREFIX) else PREFIX + name
        wanted = _wanted(limits)
        made: list[_Group] = []
        try:
            for place in (support or detect()).places:
                if place.controllers & wanted:
                    group = _Group(f"{place.parent}/{name}", place.mechanism, place.controllers)
                    _make(place, group.path)
                    made.append(group)
                    _set_limits(group, limits)
        except OSError as error:
            cls(name, tuple(made)).remove()
            raise SandboxError(f"cannot make cgroup {name}: {error}") from error
        return cls(name, tuple(made))

    @classmethod
    def find(cls, prefix: str = PREFIX, support: CgroupSupport | None = None) -> list[str]:
        """Return names of the groups that are there, whoever made them."""
        names: set[str] = set()
        for place in (support or detect()).places:
            try:
                names.update(
                    path.name for path in Path(place.parent).iterdir() if path.name.startswith(prefix)
                )
            except FileNotFoundError:
                continue
        return sorted(name for name in names if name.startswith(PREFIX))

    @classmethod
    def reopen(cls, name: str, support: CgroupSupport | None = None) -> Cgroup:
        """The groups of that name which are there, whichever process made them; maybe none."""
        name = name if name.startswith(PREFIX) else PREFIX + name
        groups = (
            _Group(f"{place.parent}/{name}", place.mechanism, place.controllers)
            for place in (support or detect()).places
        )
        return cls(name, tuple(group for group in groups if Path(group.path).is_dir()))

    @property
    def can_kill(self) -> bool:
        """Whether `kill` reaches whatever was put in, however it forks."""
        return any("kill" in group.controllers for group in self._groups)

    def child(self, name: str) -> Cgroup:
        """A group inside this one, for one command: the same limits, killed and removed by itself.

        Without a tree that can kill, it is a stand-in without groups of its own.
        """
        for group in self._groups:
            if "kill" in group.controllers:
                path = f"{group.path}/{name}"
                try:
                    Path(path).mkdir()
                except OSError as error:
                    raise SandboxError(f"cannot make cgroup {path}: {error}") from error
                own = _Group(path, group.mechanism, frozenset({"kill"}))
                return Cgroup(name, (own,), tuple(other for other in self._groups if other is not group))
        return Cgroup(name, (), self._groups)

    @property
    def procs_files(self) -> list[str]:
        """Files into each of which a process writes `0` to join."""
        return [f"{group.path}/cgroup.procs" for group in (*self._joined, *self._groups)]

    def add(self, pid: int) -> None:
        """Put a process, and all it will fork, into the groups."""
        for path in self.procs_files:
            _write(path, str(pid))

    def pids(self) -> list[int]:
        """The processes in the groups and in groups made below them."""
        found: set[int] = set()
        for group in self._groups:
            for folder in _tree(group.path):
                found.update(_pids_in(folder))
        return sorted(found)

    def oom_killed(self) -> bool:
        """Return whether the kernel killed something in here for lack of memory."""
        for group in self._groups:
            if "memory" in group.controllers:
                name = "memory.events" if group.mechanism == "cgroup v2" else "memory.oom_control"
                for line in _read(f"{group.path}/{name}").splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1]) > 0
        return False

    def kill(self) -> bool:
        """SIGKILL everything in the groups, forks in flight included; whether all were gone in time."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        delay = 0.0002
        frozen = self._kill_at_once()
        try:
            while pids := self.pids():
                for pid in pids:
                    _kill(pid)
                # A task frozen by v1 dies only when thawed.
                self._thaw(frozen)
                if time.monotonic() > deadline:
                    return False
                time.sleep(delay)
                delay = min(delay * 2, 0.02)
                if self.pids():
                    frozen = self._kill_at_once()
            return True
        finally:
            self._thaw(frozen)

    def remove_if_empty(self) -> bool:
        """Remove the groups unless something is in them; whether they are gone."""
        gone = [_rmdir(group.path) for group in self._groups]
        return all(gone)

    def remove(self) -> None:
        """Remove the groups, and kill what is still in them."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        delay = 0.0002
        for group in self._groups:
            while not _rmdir(group.path):
                self._make_way()
                self.kill()
                for folder in _tree(group.path)[:0:-1]:
                    _rmdir(folder)
                if time.monotonic() > deadline:
                    raise SandboxError(f"cgroup {group.path} stays busy; its processes do not die")
                time.sleep(delay)
                delay = min(delay * 2, 0.02)

    def _make_way(self) -> None:
        """Let nothing fork any more, and double the memory limit, in groups that are about to go.

        A process that waits for memory in a full group dies only once it has it.
        """
        for group in self._groups:
            if "pids" in group.controllers:
                with suppress(OSError):
                    _write(f"{group.path}/pids.max", "0")
            if "memory" in group.controllers:
                for file in ("memory.memsw.limit_in_bytes", "memory.limit_in_bytes", "memory.max"):
                    limit = _read(f"{group.path}/{file}").strip()
                    if limit.isdigit() and int(limit) < 1 << 60:
                        with suppress(OSError):
                            _write(f"{group.path}/{file}", str(2 * int(limit)))

    def _kill_at_once(self) -> str | None:
        """Kill the whole group in one go, or at least freeze it; the file that thaws it again."""
        for group in self._groups:
            if "kill" not in group.controllers:
                continue
            if group.mechanism == "cgroup v1":
                return _frozen(f"{group.path}/freezer.state", "FROZEN")
            try:
                _write(f"{group.path}/cgroup.kill", "1")
            except OSError:  # Linux before 5.14, or the group is gone
                return _frozen(f"{group.path}/cgroup.freeze", "1")
        return None

    def _thaw(self, path: str | None) -> None:
        if path is not None:
            try:
                _write(path, "THAWED" if path.endswith("freezer.state") else "0")
            except FileNotFoundError:
                pass


def _frozen(path: str, word: str) -> str | None:
    try:
        _write(path, word)
    except FileNotFoundError:
        return None
    return path


def _wanted(limits: SandboxLimits) -> set[Controller]:
    wanted: set[Controller] = {"kill"}
    if limits.memory_mb is not None:
        wanted.add("memory")
    if limits.pids is not None:
        wanted.add("pids")
    if limits.cpus is not None:
        wanted.add("cpu")
    return wanted


def _make(place: CgroupParent, path: str) -> None:
    try:
        Path(path).mkdir()
    except FileNotFoundError:
        prepare(place.parent, place.mechanism)
        Path(path).mkdir()


def _set_limits(group: _Group, limits: SandboxLimits) -> None:
    unified = group.mechanism == "cgroup v2"
    if "memory" in group.controllers and limits.memory_mb is not None:
        amount = str(limits.memory_mb << 20)
        _write(f"{group.path}/memory.{'max' if unified else 'limit_in_bytes'}", amount)
        # v2 limits swap by itself, v1 memory and swap together.
        swap_file = "memory.swap.max" if unified else "memory.memsw.limit_in_bytes"
        try:
            _write(f"{group.path}/{swap_file}", "0" if unified else amount)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EACCES, errno.EOPNOTSUPP):
                raise
    if "pids" in group.controllers and limits.pids is not None:
        _write(f"{group.path}/pids.max", str(limits.pids))
    if "cpu" in group.controllers and limits.cpus is not None:
        quota = max(int(limits.cpus * CPU_PERIOD_US), 1000)
        if unified:
            _write(f"{group.path}/cpu.max", f"{quota} {CPU_PERIOD_US}")
        else:
            _write(f"{group.path}/cpu.cfs_period_us", str(CPU_PERIOD_US))
            _write(f"{group.path}/cpu.cfs_quota_us", str(quota))


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _read(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        pieces = []
        while piece := os.read(fd, 1 << 16):
            pieces.append(piece)
    except OSError as error:
        if error.errno != errno.ENODEV:  # the group went away while it was read
            raise
    finally:
        os.close(fd)
    return b"".join(pieces).decode()


def _pids_in(folder: str) -> list[int]:
    # 0 stands for a process that cannot be seen from this pid namespace.
    return [pid for pid in map(int, _read(f"{folder}/cgroup.procs").split()) if pid > 0]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _tree(path: str) -> list[str]:
    """The group and all groups below it, parents first."""
    folders = [path]
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                folders.extend(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            continue
    return folders


def _rmdir(path: str) -> bool:
    try:
        Path(path).rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
            return False
        raise
    return True

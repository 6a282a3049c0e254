"""Commands of one sandbox, as its warden runs them: start, reap, kill with everything they started.

Each command gets a UTS namespace of its own. That is its tag: inherited by every process it starts, and
not to be shed, since leaving a namespace takes a capability no command has. Sessions, process groups,
parents and environments an agent can change; this it cannot.
"""

# Without pathlib, which would be copied into every warden's memory.
# ruff: noqa: PTH208
from __future__ import annotations

import os
import time

from sandboxes.local import killing, mounts, wire
from sandboxes.local.spawning import ExecError, spawn

_KILL_SECONDS = 2.0
_OOM_FIRST = b"700"
_OOM_NORMAL = b"0"

OUR_OWN_PIDS = 3
"""Warden, bubblewrap and first process share the sandbox's cgroup."""
OUR_OWN_PIDS_INSIDE = 2
"""In the user namespace of an ordinary user's sandbox are warden and first process."""


class _Running:
    def __init__(self, number: int, pid: int, tag: int) -> None:
        self.number = number
        self.pid = pid
        self.tag = tag


class Commands:
    """The commands that run now, by the pidfd of each one's first process."""

    def __init__(self, own_proc: int, oom_fd: int, count_fd: int | None) -> None:
        self._count_fd = count_fd
        self._own_proc = own_proc
        self._oom_fd = oom_fd
        self._proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._running: dict[int, _Running] = {}
        self.newest = -1

    def obey(self, message: wire.Message, fds: list[int]) -> wire.Message | None:
        """Do what is asked; the answer, if it is known at once."""
        try:
            if message["op"] == "exec":
                return self._start(message, fds)
            if message["op"] == "count":
                return {"event": "count", "n": message["n"], "alone": self._is_empty()}
            return self._kill(message["n"])
        finally:
            for fd in fds:
                os.close(fd)

    def reap(self, pidfd: int) -> wire.Message:
        """The exit of the command whose pidfd became readable."""
        running = self._running.pop(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(running.pid, 0)
        return {"event": "exit", "n": running.number, "code": os.waitstatus_to_exitcode(status)}

    def _start(self, message: wire.Message, fds: list[int]) -> wire.Message | None:
        try:
            mounts.unshare(mounts.CLONE_NEWUTS)
            tag = os.stat("ns/uts", dir_fd=self._own_proc).st_ino
            # Out of memory, the kernel takes a command before it takes this process or the first one.
            os.pwrite(self._oom_fd, _OOM_FIRST, 0)
            try:
                pid = spawn(message, (self._null, fds[0], fds[1]))
            finally:
                os.pwrite(self._oom_fd, _OOM_NORMAL, 0)
        except ExecError as error:
            os.write(fds[1], f"{error}\n".encode("utf-8", "replace"))
            return {"event": "exit", "n": message["n"], "code": error.code}
        except OSError as error:
            return {"event": "exit", "n": message["n"], "error": str(error)}
        self.newest = os.pidfd_open(pid)
        self._running[self.newest] = _Running(message["n"], pid, tag)
        return None

    def _is_empty(self) -> bool:
        """Whether no process runs but our own. The kernel's count is exact, forks in flight included."""
        return self._count_fd is not None and int(os.pread(self._count_fd, 20, 0)) == OUR_OWN_PIDS

    def _kill(self, number: int) -> wire.Message | None:
        """Kill a command with everything that carries its tag; what escapes the race is for kill_all."""
        tags = [running.tag for running in self._running.values() if running.number == number]
        deadline = time.monotonic() + _KILL_SECONDS
        while tags and self._kill_tagged(tags[0]):
            if time.monotonic() > deadline:
                return {"event": "unkillable", "n": number}
        return None

    def _kill_tagged(self, tag: int) -> int:
        names = [name for name in os.listdir(self._proc) if name.isdigit() and name != "1"]
        return sum(killing.kill_entry(self._proc, name, tag) for name in names)

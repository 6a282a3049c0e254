"""Ending every process of a sandbox but its first, whatever they do about it.

Two blows, in turns. From inside the pid namespace `kill(-1)` hits everyone in one system call, which no
fork can outrun. With a shifted user namespace nobody inside can touch the one who strikes; without, it
can be stopped before it does. So the second blow comes from outside, one process at a time, by
descriptor. An agent has to beat both at once.
"""

# Without pathlib, which would be copied into every warden's memory.
# ruff: noqa: PTH116, PTH208
from __future__ import annotations

import os
import select
import signal
import time

from sandboxes.local import mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_PATIENCE_SECONDS = 10.0
_BLOW_SECONDS = 0.3
_PAUSE_MS = 2
_FIRST = "1"


def kill_everyone(first_pid: int, first_pidfd: int, namespaces: int) -> NoReturn:
    """In a process made for it: exit with 0 once the sandbox's first process is alone."""
    code = 1
    try:
        own_namespace = os.stat("/proc/self/ns/pid").st_ino
        mounts.setns(first_pidfd, namespaces)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while code != 0 and time.monotonic() < deadline:
            code = _blow_inside(own_namespace)
            if code != 0:
                _blow_outside(f"/proc/{first_pid}/root/proc")
    except FileNotFoundError:
        code = 0  # the sandbox itself is gone
    finally:
        os._exit(code)


def _blow_inside(outer_namespace: int) -> int:
    """0 once nobody was left to hit."""
    try:
        pid = os.fork()
    except BlockingIOError:
        return 1  # sandboxes have used up what their user may start; the blow from outside makes room
    if pid == 0:
        _strike(outer_namespace)
    pidfd = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    if not poller.poll(int(_BLOW_SECONDS * 1000)):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)
    _, status = os.waitpid(pid, 0)
    return abs(os.waitstatus_to_exitcode(status))


def _strike(outer_namespace: int) -> NoReturn:
    code = 1
    try:
        # "Everyone" must not mean the host.
        if os.stat("/proc/self/ns/pid").st_ino == outer_namespace:
            os._exit(code)
        poller = select.poll()
        while True:
            os.kill(-1, signal.SIGKILL)
            poller.poll(_PAUSE_MS)
    except ProcessLookupError:
        code = 0
    finally:
        os._exit(code)


def _blow_outside(proc: str) -> None:
    folder = os.open(proc, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(folder):
            if name.isdigit() and name != _FIRST:
                kill_entry(folder, name)
    finally:
        os.close(folder)


def kill_entry(proc: int, name: str, tag: int | None = None) -> bool:
    """Kill the process `name` of the /proc folder, if it is in UTS namespace `tag` or that is None."""
    try:
        # A folder of /proc serves as a pidfd, so tag and signal are about the same process.
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
    except (FileNotFoundError, ProcessLookupError):
        return False
    try:
        if tag is not None and os.stat("ns/uts", dir_fd=fd).st_ino != tag:
            return False
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(fd)
    return True

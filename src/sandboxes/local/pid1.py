"""The first process of a sandbox: sleeps, and lets the kernel reap every orphan.

It must exist on any root file system, cost next to nothing, survive `kill -9 -1` (the kernel spares the
first process of a namespace), leave no zombies (a parent that ignores SIGCHLD has none) and not be
traceable: it outlives `kill_all`, so nobody may hide in it. So it is a program of some two hundred bytes,
assembled here and run from memory. Where that does not work a shell does all but the last.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal

from sandboxes.machine_code import PROCESSORS, READY_FD, assemble

__all__ = ["FIRST_FREE_FD", "PROGRAM_FD", "READY_FD", "argv", "open_program"]

PROGRAM_FD = 4
FIRST_FREE_FD = 20
"""Descriptors to be handed over are kept from here on, so that none is overwritten on the way."""

_MFD_CLOEXEC = 0x1
_MFD_ALLOW_SEALING = 0x2
_MFD_EXEC = 0x10
_F_ADD_SEALS = 1033
_ALL_SEALS = 0x1 | 0x2 | 0x4 | 0x8
_CHECK_MS = 2000

_SHELL = ("/bin/sh", "-c", f"trap '' CHLD HUP INT TERM; echo >&{READY_FD}; exec sleep 2147483647 3>&- 4>&-")


def open_program() -> int | None:
    """The program as a sealed descriptor to run, or None where the shell must do."""
    cpu = PROCESSORS.get(os.uname().machine)
    if cpu is None:
        return None
    try:
        fd = os.memfd_create("init", _MFD_CLOEXEC | _MFD_ALLOW_SEALING | _MFD_EXEC)
    except OSError:  # Linux before 6.3 does not know MFD_EXEC and makes it executable anyway
        fd = os.memfd_create("init", _MFD_CLOEXEC | _MFD_ALLOW_SEALING)
    os.write(fd, assemble("init", cpu))
    os.fchmod(fd, 0o555)
    fcntl.fcntl(fd, _F_ADD_SEALS, _ALL_SEALS)
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE_FD)
    os.close(fd)
    if _works(high):
        return high
    os.close(high)
    return None


def _works(program: int) -> bool:
    """Whether the program says it is ready: some systems forbid programs in memory."""
    read, write = os.pipe()
    high = fcntl.fcntl(write, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE_FD)
    os.close(write)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, high, READY_FD)]
        pid = os.posix_spawn(f"/proc/self/fd/{program}", ["init"], {}, file_actions=actions)
    except OSError:
        return False
    finally:
        os.close(high)
    poller = select.poll()
    poller.register(read, select.POLLIN)
    ready = bool(poller.poll(_CHECK_MS)) and os.read(read, 1) != b""
    os.close(read)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return ready


def argv(program_fd: int | None) -> tuple[str, ...]:
    """What bubblewrap runs as process 1, given the descriptor it finds at PROGRAM_FD."""
    return (f"/proc/self/fd/{PROGRAM_FD}",) if program_fd is not None else _SHELL

"""Knowing a process for sure: by pid, start time and boot. A pid alone may be someone else's by now."""

from __future__ import annotations

import os

PF_EXITING = 0x4


class ProcessMark:
    """One process of one boot of one machine."""

    __slots__ = ("boot", "pid", "start")

    def __init__(self, pid: int, start: int, boot: str) -> None:
        self.pid = pid
        self.start = start
        self.boot = boot

    @classmethod
    def of(cls, pid: int) -> ProcessMark | None:
        """The process that has this pid now."""
        start = start_time(pid)
        return None if start is None else cls(pid, start, boot_id())

    def open(self) -> int | None:
        """A pidfd of exactly this process, or None when it is gone."""
        if self.boot != boot_id():
            return None
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        # The pidfd was taken first: if the start time still fits, both speak of the same process.
        if start_time(self.pid) == self.start:
            return pidfd
        os.close(pidfd)
        return None

    def alive(self) -> bool:
        """Whether exactly this process still runs."""
        pidfd = self.open()
        if pidfd is None:
            return False
        os.close(pidfd)
        return True


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None if there is none or it is a zombie."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fields = os.read(fd, 4096).rpartition(b")")[2].split()
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def is_exiting(pid: int) -> bool:
    """Whether the process is gone, a zombie, or on its way to become one."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return fields[0] in (b"Z", b"X") or bool(int(fields[6]) & PF_EXITING)


def boot_id() -> str:
    """This boot of this machine."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()

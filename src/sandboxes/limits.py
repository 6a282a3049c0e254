"""Limits of a sandbox whose task names none: what fits this machine."""

from __future__ import annotations

import os
import resource
from dataclasses import replace
from functools import lru_cache

from sandboxes.values import Limits

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


def memory_for(limits: Limits, host_mb: int, *, disk_in_memory: bool = True) -> int:
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


def with_defaults(limits: Limits, host_mb: int, *, disk_in_memory: bool = True) -> Limits:
    """Return the limits with memory, disk and processes set. A disk that does not lie in memory stays as
    it was asked for."""
    memory = memory_for(limits, host_mb, disk_in_memory=disk_in_memory)
    disk = disk_in_memory_mb(limits.disk_mb, memory) if disk_in_memory else limits.disk_mb
    pids = DEFAULT_PIDS if limits.pids is None else limits.pids
    return replace(limits, memory_mb=memory, disk_mb=disk, pids=pids)

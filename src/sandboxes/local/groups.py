"""Cgroups for the keeper: joining and removing, by folders opened before it drops the host's mounts.

Making them, with their limits, is the engine's part (`sandboxes.cgroups`).
"""

from __future__ import annotations

import os
import select
import signal

_PATIENCE_SECONDS = 10.0
_PAUSE_MS = 2
_NEAR_PART = 16
_NO_LIMIT = 1 << 60
_PIDS = "pids.max"
_LIMITS = (_PIDS, "memory.memsw.limit_in_bytes", "memory.limit_in_bytes", "memory.max")
"""In the order in which they are changed: version 1 keeps memory with swap above memory alone."""


class Groups:
    """The folders in which the engine makes cgroups, by path, as descriptors."""

    def __init__(self, parents: dict[str, int]) -> None:
        self._parents = parents
        self._limits: dict[tuple[str, str], int] = {}
        """What changed limits were, by group and file."""

    def join(self, group: str) -> None:
        """Put this process, which has one thread, into a group.

        Moving a thread takes no lock, moving a process waits for every fork in the whole system. Only
        version 1 lets threads go alone; there the file is called `tasks`.
        """
        try:
            fd = self._open(group, "tasks", os.O_WRONLY)
        except FileNotFoundError:
            fd = self._open(group, "cgroup.procs", os.O_WRONLY)
        try:
            os.write(fd, b"0")
        finally:
            os.close(fd)

    def open_count(self, groups: list[str]) -> int | None:
        """A file that tells how many tasks are in the sandbox right now, if one of its groups counts them."""
        for group in groups:
            try:
                return self._open(group, "pids.current", os.O_RDONLY)
            except FileNotFoundError:
                continue
        return None

    def starved_from_outside(self, groups: list[str]) -> bool:
        """Whether the kernel killed something in these groups for lack of memory that was not theirs.

        It counts every process of a group that it kills. A group that came to its own limit is believed to
        be the cause.
        """
        for group in groups:
            events = self._numbers(group, "memory.events")  # version 2
            if events:
                return events.get("oom_kill", 0) > 0 and events.get("oom", 0) == 0
            events = self._numbers(group, "memory.oom_control")
            if events:
                return events.get("oom_kill", 0) > 0 and not self._was_full(group)
        return False

    def _was_full(self, group: str) -> bool:
        """Whether a group of version 1 came near its limit. Not every kernel counts how often it hit it."""
        file = "memory.limit_in_bytes"
        limit = self._limits.get((group, file)) or self._numbers(group, file).get("", 0)
        most = self._numbers(group, "memory.max_usage_in_bytes").get("", limit)
        return most >= limit - limit // _NEAR_PART

    def _numbers(self, group: str, file: str) -> dict[str, int]:
        """The lines of a file with a name and a number each; a number alone has no name."""
        try:
            fd = self._open(group, file, os.O_RDONLY)
        except OSError:
            return {}
        with open(fd) as opened:
            lines = [line.rpartition(" ") for line in opened.read().splitlines()]
        return {name: int(number) for name, _, number in lines if number.isdigit()}

    def _write(self, group: str, file: str, number: int) -> bool:
        try:
            fd = self._open(group, file, os.O_WRONLY)
        except OSError:
            return False
        try:
            os.write(fd, str(number).encode())
        except OSError:
            return False  # the other limit of version 1 forbids it, or the group is fuller than that
        finally:
            os.close(fd)
        return True

    def make_way(self, groups: list[str]) -> None:
        """Let nothing fork any more, and double the memory limits, in groups whose processes are killed next.

        A process that looks for memory in a full group dies only when it has found some or given up, and
        thousands of them keep each other from that for minutes, while others take what the dead gave back.
        """
        for group in groups:
            for file in _LIMITS:
                limit = self._numbers(group, file).get("", 0)
                wanted = 0 if file == _PIDS else 2 * limit
                known = (group, file) in self._limits
                if not known and 0 < limit < _NO_LIMIT and self._write(group, file, wanted):
                    self._limits[group, file] = limit

    def restore(self, groups: list[str]) -> None:
        """Set the limits back to what they were before `make_way`."""
        for group in groups:
            for file in reversed(_LIMITS):
                limit = self._limits.get((group, file))
                if limit is not None and self._write(group, file, limit):
                    del self._limits[group, file]

    def remove(self, group: str) -> None:
        """Remove a group, and kill what is still in it; one that is gone is fine."""
        parent, _, name = group.rpartition("/")
        poller = select.poll()
        for _ in range(int(_PATIENCE_SECONDS * 1000 / _PAUSE_MS)):
            try:
                os.rmdir(name, dir_fd=self._parents[parent])
            except FileNotFoundError:
                break
            except OSError:
                self.make_way([group])
                self._kill(group)
                poller.poll(_PAUSE_MS)
            else:
                break
        for file in _LIMITS:
            self._limits.pop((group, file), None)

    def _kill(self, group: str) -> None:
        try:
            fd = self._open(group, "cgroup.procs", os.O_RDONLY)
        except FileNotFoundError:
            return
        with open(fd) as file:
            pids = [int(pid) for pid in file.read().split()]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _open(self, group: str, file: str, flags: int) -> int:
        parent, _, name = group.rpartition("/")
        return os.open(f"{name}/{file}", flags | os.O_CLOEXEC, dir_fd=self._parents[parent])

"""How much of this machine trials may have, and how much is in use."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from sandboxes.values import host_memory_mb, raise_open_files
from valkyrie.store.leases import Leased, Room

MEMORY_SHARE = 0.9
FILES_PER_TRIAL = 16
"""Open at once for one trial at most: its sandbox, pipes, log, network and connections."""
FILES_OF_OUR_OWN = 200


def trials_by_files(limit: int) -> int:
    """Return how many trials at once a limit on open files allows."""
    return max(1, (limit - FILES_OF_OUR_OWN) // FILES_PER_TRIAL)


def host_cpus() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(slots=True)
class HostRoom:
    """Room for trials, by what their tasks declare."""

    cpus: float
    memory_mb: float
    trials: int = sys.maxsize
    """So many at once have files enough."""
    used_cpus: float = 0.0
    used_memory_mb: float = 0.0
    running: int = 0

    @classmethod
    def measure(cls, cpu_overcommit: float) -> HostRoom:
        """This machine's. Agents mostly wait for a model, so cpus may be promised several times over;
        memory never is."""
        return cls(
            cpus=host_cpus() * cpu_overcommit,
            memory_mb=host_memory_mb() * MEMORY_SHARE,
            trials=trials_by_files(raise_open_files()),
        )

    def take(self, leased: Leased) -> None:
        """A trial begins."""
        self.used_cpus += leased.cpus
        self.used_memory_mb += leased.memory_mb
        self.running += 1

    def give(self, leased: Leased) -> None:
        """A trial ended."""
        self.used_cpus -= leased.cpus
        self.used_memory_mb -= leased.memory_mb
        self.running -= 1

    def left(self) -> Room:
        """What is free now."""
        return Room(
            self.cpus - self.used_cpus,
            self.memory_mb - self.used_memory_mb,
            idle=self.running == 0,
            trials=self.trials - self.running,
        )

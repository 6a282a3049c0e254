"""What works runs off: the queue, executors, the disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """One open run in the queue."""

    run_id: str
    agent: str
    benchmark: str
    priority: int
    state: str
    pending: int
    active: int
    concurrency: int
    created_at: float
    started_by: str | None
    note: str | None


@dataclass(frozen=True, slots=True)
class ExecutorView:
    """One executor that lives."""

    id: str
    host: str
    pid: int
    version: str
    started_at: float
    heartbeat_at: float
    active: int
    """Trials it holds."""


@dataclass(frozen=True, slots=True)
class QueueView:
    """What waits, what runs, and who works."""

    entries: Sequence[QueueEntry]
    """In the order they are served."""
    executors: Sequence[ExecutorView]


@dataclass(frozen=True, slots=True)
class DiskView:
    """Where the bytes are."""

    data_folder: str
    total_bytes: int
    free_bytes: int
    parts: Sequence[tuple[str, int]]
    """(what, bytes): database, runs, agents, caches, …"""
    runs: Sequence[tuple[str, str, int]]
    """(run id, state, bytes), largest first."""
    reclaimable_bytes: int = 0
    """What the database can give back (`db compact`): deleted runs left it."""
    elsewhere: Sequence[tuple[str, int]] = ()
    """(where, bytes) of runs' artifacts in a shared folder or a bucket; not in the total."""

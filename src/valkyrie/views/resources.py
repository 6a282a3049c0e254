"""Agents, secrets, benchmarks and tasks that runs are made of; the queue, executors and disk."""

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


# What runs are made of: agents, secrets, benchmarks and their tasks.


@dataclass(frozen=True, slots=True)
class AgentView:
    """One pushed agent."""

    name: str
    modified_at: float
    bytes: int
    digest: str | None
    """None where its archive is damaged, or only its name and size are known."""
    origin: str | None = None
    """Where it was installed from, commit included."""
    pushed_by: str | None = None
    """Who pushed it; None for those pushed before that was kept."""


@dataclass(frozen=True, slots=True)
class SecretView:
    """A secret that is kept; never its value."""

    name: str
    created_at: float | None = None
    created_by: str | None = None


@dataclass(frozen=True, slots=True)
class BenchmarkView:
    """A benchmark that can be named."""

    name: str
    description: str
    tasks: int | None
    url: str | None = None
    """Of a service."""
    source: str = "shipped"
    """Who says so: shipped, plugin, custom, registry, or `added: ` and what it was made from."""


@dataclass(frozen=True, slots=True)
class TasksView:
    """Task ids in the benchmark's own order."""

    task_ids: Sequence[str]
    datasets: Sequence[str]

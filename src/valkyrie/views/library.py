"""What runs are made of: agents, secrets, benchmarks and their tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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

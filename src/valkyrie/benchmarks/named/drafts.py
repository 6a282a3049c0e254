"""What a converter makes of one published record: a task, not yet on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

Files = Mapping[str, str | bytes]
"""Relative path (`/` between parts) → content. A name that ends in `.sh` becomes executable."""


@dataclass(frozen=True, slots=True)
class TaskDraft:
    """One task of a benchmark; `writing.write` makes the directory."""

    id: str
    """Name of its directory: letters, digits, `.`, `_`, `-`."""
    source_id: str
    """What the data set calls it."""
    record_sha256: str
    """Of the published record it was made from."""
    instruction: str
    tests: Files
    """`test.sh` must be among them. Arrive when the agent is dead."""
    solution: Files = field(default_factory=dict)
    """`solve.sh` and what it needs; empty when the data has no gold answer."""
    environment: Files = field(default_factory=dict)
    """Copied to the working folder before the agent starts, or the context of its Dockerfile."""
    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Tables of task.toml over the defaults: {"agent": {"timeout_sec": 3000.0}, "environment": {…}}."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What else is worth keeping in `[metadata]`: domain, difficulty."""
    keywords: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    """Named subsets of the benchmark that it belongs to, such as a language."""


@dataclass(frozen=True, slots=True)
class Options:
    """What else a converter is told."""

    benchmark: str
    """Name of the benchmark, as in the catalogue."""
    variant: str = ""
    """Which of several benchmarks that share a converter, such as `instruct`."""


class Converter(Protocol):
    """A module of this package with a function `convert`."""

    def convert(self, source: Path, options: Options) -> Iterator[TaskDraft]:
        """Tasks in the data set's own order, one by one; `source` is the file or folder the user brought.

        Raises UsageError naming file, line and field when the records are not what they should be.
        """
        ...

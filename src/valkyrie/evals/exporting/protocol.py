"""What an exporter is given, and what it says it did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from valkyrie.evals.results import Invocation
from valkyrie.specs.model import EvalSpec


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What to export, and where to."""

    output: Path
    """A folder; what is in it already stays unless a file of the same name is written."""
    specs: Sequence[EvalSpec] = ()
    results: Invocation | None = None
    """What an eval came to; then `specs` is empty."""
    options: Mapping[str, str] = field(default_factory=dict)
    """What was said after `--`."""
    grader_plugins: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    written: Sequence[Path]
    """Files, or folders of tasks."""
    warnings: Sequence[str] = ()
    """What could not be taken along, and why."""
    next_step: str = ""
    """The command one needs now."""


Exporter = Callable[[ExportRequest], Exported]
"""Raises UsageError for options it does not know."""

"""What an exporter is given and says it did, and exporters by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from valkyrie import plugins
from valkyrie.errors import UsageError
from valkyrie.evals.results import Invocation
from valkyrie.specs.model import EvalSpec
from valkyrie.text import did_you_mean


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


# Exporters by name: built in, of an installed package, or `module:function`.


ENTRY_POINTS = "valkyrie.exporters"
_BUILT_IN = {
    "harbor": "valkyrie.evals.export.harbor:export_harbor",
    "junit": "valkyrie.evals.export.formats:export_junit",
    "markdown": "valkyrie.evals.export.formats:export_markdown",
    "csv": "valkyrie.evals.export.formats:export_csv",
    "jsonl": "valkyrie.evals.export.formats:export_jsonl",
    "atif": "valkyrie.evals.export.formats:export_atif",
}


def names() -> list[str]:
    """Every exporter that can be named."""
    return [*_BUILT_IN, *plugins.names(ENTRY_POINTS)]


def find_exporter(name: str) -> Exporter:
    """The exporter called so. Raises UsageError with what there is."""
    if name not in names() and not plugins.is_target(name):
        raise UsageError(
            f"unknown exporter {name!r}; there is {', '.join(names())}, or `module:function`."
            f"{did_you_mean(name, names())}"
        )
    found: Exporter = plugins.load(_BUILT_IN.get(name, name), group=ENTRY_POINTS)
    return found


def check_options(given: Mapping[str, str], known: tuple[str, ...], exporter: str) -> None:
    """Refuse options after `--` that nobody reads."""
    for name in given:
        if name not in known:
            what = f"it takes {', '.join(known)}" if known else "it takes none"
            raise UsageError(f"{exporter} has no option {name!r}; {what}.{did_you_mean(name, known)}")

"""Exporters by name: built in, of an installed package, or `module:function`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from valkyrie import plugins
from valkyrie.errors import UsageError
from valkyrie.suggest import did_you_mean

if TYPE_CHECKING:
    from valkyrie.evals.exporting.protocol import Exporter

ENTRY_POINTS = "valkyrie.exporters"
_BUILT_IN = {
    "harbor": "valkyrie.evals.exporting.harbor:export_harbor",
    "junit": "valkyrie.evals.exporting.reports:export_junit",
    "markdown": "valkyrie.evals.exporting.reports:export_markdown",
    "csv": "valkyrie.evals.exporting.lines:export_csv",
    "jsonl": "valkyrie.evals.exporting.lines:export_jsonl",
    "atif": "valkyrie.evals.exporting.trajectories:export_atif",
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

"""`doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from valkyrie.cli.options import verb
from valkyrie.cli.output import Output
from valkyrie.report.formats import plural, safe
from valkyrie.report.layout import pad, wrapped

if TYPE_CHECKING:
    from valkyrie.cli.checks import Check

_NAME_CELLS = 16
_MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}


@verb("doctor", examples="valk doctor")
def doctor(output: Output) -> int:
    """Say what this machine can do, and how to get the rest.

    ✓ is fine, ! works with less, ✗ does not work; each with the way out. Whether the `local` sandbox works
    is proven by making one. Exit 1 when something marked ✗ was found.
    """
    from valkyrie.cli.checks import all_checks

    checks = list(all_checks())
    failed = [check for check in checks if check.mark == "fail"]
    output.emit("doctor", healthy=not failed, checks=[asdict(check) for check in checks])
    if output.json:
        return 1 if failed else 0
    for check in checks:
        output.lines(_check_lines(check, output))
    ways_out = [(check.name, safe(check.way_out)) for check in checks if check.way_out]
    if ways_out:
        output.panel("To get the rest", ways_out)
    output.line(
        "Runs with --provider local work here."
        if not failed
        else f"{plural(len(failed), 'thing')} must be put right."
    )
    return 1 if failed else 0


def _check_lines(check: Check, output: Output) -> Iterator[str]:
    mark, style = _MARKS[check.mark]
    found = wrapped(safe(check.found), output.width and output.width - _NAME_CELLS - 4)
    yield f"{output.ink.paint(mark, style)} {pad(check.name, _NAME_CELLS)}  {found[0]}"
    yield from (" " * (_NAME_CELLS + 4) + line for line in found[1:])

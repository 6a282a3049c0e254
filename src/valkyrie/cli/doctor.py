"""`doctor`."""

from __future__ import annotations

from dataclasses import asdict

from valkyrie.cli.options import verb
from valkyrie.cli.output import Output
from valkyrie.report.formats import safe
from valkyrie.report.layout import Column, Table

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
    table = Table([Column(""), Column("What"), Column("Found", shrink=True)])
    for check in checks:
        mark, style = _MARKS[check.mark]
        table.rows.append([output.ink.paint(mark, style), check.name, safe(check.found)])
    if output.json:
        return 1 if failed else 0
    output.table(table)
    ways_out = [(check.name, safe(check.way_out)) for check in checks if check.way_out]
    if ways_out:
        output.panel("To get the rest", ways_out)
    output.line(
        "Runs with --provider local work here."
        if not failed
        else f"{len(failed)} thing(s) must be put right."
    )
    return 1 if failed else 0

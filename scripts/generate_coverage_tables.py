"""Write the tables of docs/concepts/statistics.md from benchmarks/coverage.json; --check compares.

The numbers are simulated by `python -m benchmarks.coverage --write`, which takes minutes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "concepts" / "statistics.md"
NUMBERS = ROOT / "benchmarks" / "coverage.json"
BEGIN = "<!-- coverage tables: written by `make docs` -->"
END = "<!-- end of coverage tables -->"
WIDER = 0.995
"""Intervals that hold more often than this are wider than they need to be, and are marked."""

Row = Mapping[str, Any]


def percent(share: float, *, mark: bool = True) -> str:
    """`95.3`; a star where an interval is wider than it needs to be."""
    return f"{100 * share:.1f}" + ("\\*" if mark and share > WIDER else "")


def chosen(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def table(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    ruler = ["---", *["--:"] * (len(titles) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, ruler, *lines))


def sizes(rows: Iterable[Row]) -> list[int]:
    return sorted({row["tasks"] for row in rows})


def one_agent(rows: Sequence[Row]) -> str:
    """Coverage of a score's interval, by setting and number of trials, for each number of tasks."""
    found = chosen(rows, what="score")
    kinds = dict.fromkeys((row["setting"], row["trials"]) for row in found)
    lines = []
    for setting, trials in sorted(kinds, key=lambda kind: (list(kinds).index((kind[0], 1)), kind[1])):
        own = {row["tasks"]: row["coverage"] for row in chosen(found, setting=setting, trials=trials)}
        lines.append([f"{setting} × {trials}", *(percent(own[tasks]) for tasks in sizes(found))])
    for trials in sorted({row["trials"] for row in chosen(rows, what="repeats")}):
        for name in ("pass@3", "pass^3"):
            own = {
                row["tasks"]: row[f"{name} coverage"] for row in chosen(rows, what="repeats", trials=trials)
            }
            lines.append([f"{name}, beta(½, ½) × {trials}", *(percent(own[tasks]) for tasks in sizes(found))])
    return table(["setting × trials", *(f"{tasks} tasks" for tasks in sizes(found))], lines)


def two_agents(rows: Sequence[Row]) -> str:
    """Coverage of the difference over all settings, false statements, power now and before."""
    found = chosen(rows, what="pair")
    lines = []
    for tasks in sizes(found):
        for trials in sorted({row["trials"] for row in found}):
            own = chosen(found, tasks=tasks, trials=trials)
            coverage = [row[key] for row in own for key in ("alike coverage", "gap coverage")]
            middle = chosen(own, setting="middle")[0]
            before = middle.get("power before")
            lines.append(
                [
                    f"{tasks} × {trials}",
                    f"{percent(min(coverage))} to {percent(max(coverage))}",
                    *(
                        percent(max(row[key] for row in own), mark=False)
                        for key in ('false "beats"', 'false "worse"', 'false "no worse"')
                    ),
                    percent(middle["power"], mark=False),
                    "–" if before is None else percent(before, mark=False),
                ]
            )
    titles = ["tasks × trials", "coverage", 'false "beats"', 'false "worse"', 'false "no worse"', "power"]
    return table([*titles, "power of exact McNemar and Tango"], lines)


def failing(rows: Sequence[Row]) -> str:
    """An agent that wholly fails some tasks."""
    lines = [
        [
            f"{row['tasks']} × {row['trials']}",
            percent(row["least coverage"]),
            percent(row['false "no worse"'], mark=False),
            percent(row['false "alike"'], mark=False),
        ]
        for row in chosen(rows, what="failing")
    ]
    return table(["tasks × trials", "least coverage", 'false "no worse"', 'false "alike"'], lines)


def families(rows: Sequence[Row]) -> str:
    """Tasks of families, with and without knowing them."""
    keys = ("coverage", "difference coverage", 'false "beats"')
    lines = []
    for row in chosen(rows, what="families"):
        cells = [
            percent(row[f"{key}{when}"], mark=False) for when in ("", " without families") for key in keys
        ]
        lines.append([f"{row['tasks']} tasks of {row['setting']}", *cells])
    known = ["score", "difference", 'false "beats"']
    return table(["", *known, *(f"{title}, families not given" for title in known)], lines)


def render_tables(rows: Sequence[Row]) -> str:
    parts = [
        "How often the 95 % interval of a score holds the true one, in per cent:",
        one_agent(rows),
        "Two agents, of which one is better by a quarter of its score, or neither. Over middle, floor, "
        "ceiling, beta(½, ½) and near full or zero: coverage of the difference from the least to the most, "
        "and the highest rate of each false statement; power is that of the middle:",
        two_agents(rows),
        "One agent wholly fails 3 to 20 % of tasks, and is otherwise like the other one (alike: within 2 "
        "points, when it fails one task in 33):",
        failing(rows),
        "Families with an intra-class correlation of 0.3:",
        families(rows),
    ]
    return "\n\n".join(parts)


def render_page(page: str, rows: Sequence[Row]) -> str:
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{PAGE}: the markers around the coverage tables are gone")
    return f"{before}{BEGIN}\n{render_tables(rows)}\n{END}{after}"


def main(argv: list[str]) -> int:
    page = PAGE.read_text()
    wanted = render_page(page, json.loads(NUMBERS.read_text()))
    if "--check" not in argv:
        PAGE.write_text(wanted)
        return 0
    if page != wanted:
        print("docs/concepts/statistics.md is stale: run `make docs`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

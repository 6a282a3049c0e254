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


def by_setting(rows: Sequence[Row], key: str, *, mark: bool = True) -> list[list[str]]:
    """One line for each setting and number of trials, with one number of theirs for each number of tasks."""
    kinds = dict.fromkeys((row["setting"], row["trials"]) for row in rows)
    order = list(dict.fromkeys(setting for setting, _ in kinds))
    lines = []
    for setting, trials in sorted(kinds, key=lambda kind: (order.index(kind[0]), kind[1])):
        own = {row["tasks"]: row[key] for row in chosen(rows, setting=setting, trials=trials)}
        cells = (percent(own[tasks], mark=mark) for tasks in sizes(rows))
        lines.append([f"{setting} × {trials}", *cells])
    return lines


def titles(rows: Sequence[Row]) -> list[str]:
    return ["setting × trials", *(f"{tasks} tasks" for tasks in sizes(rows))]


def one_agent(rows: Sequence[Row]) -> str:
    """Coverage of the intervals of scores, pass@3 and pass^3."""
    scores, repeats = chosen(rows, what="score"), chosen(rows, what="repeats")
    lines = by_setting(scores, "coverage")
    for name in ("pass@3", "pass^3"):
        lines += [[f"{name}, {line[0]}", *line[1:]] for line in by_setting(repeats, f"{name} coverage")]
    return table(titles(scores), lines)


def two_agents(rows: Sequence[Row], key: str, *, mark: bool = True) -> str:
    found = chosen(rows, what="pair")
    return table(titles(found), by_setting(found, key, mark=mark))


def power(rows: Sequence[Row]) -> str:
    """How often the better one is named, now and by the tests of before."""
    found = [row for row in chosen(rows, what="pair") if "power before" in row]
    lines = []
    for name, key in (("mid-p", "power"), ("exact McNemar and Tango", "power before")):
        lines += [[f"{name}, {line[0]}", *line[1:]] for line in by_setting(found, key, mark=False)]
    return table(titles(found), lines)


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
        "Two agents, of which one is better by a quarter of its score: how often the 95 % interval of the "
        "difference holds the true one:",
        two_agents(rows, "coverage"),
        "How often one of two agents that are alike is said to beat the other:",
        two_agents(rows, 'false "beats"', mark=False),
        'How often a gate says "no worse" of an agent that is worse by just more than the margin:',
        two_agents(rows, 'false "no worse"', mark=False),
        "How often the better one is named, with one trial of each task:",
        power(rows),
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

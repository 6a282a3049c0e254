"""Writes docs/reference/public-benchmarks.md from the catalogue of public benchmarks; --check compares."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from valkyrie.benchmarks.named.catalog import PublicBenchmark, catalog

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "public-benchmarks.md"
INTRODUCTION = " ".join(
    (
        "What `valk benchmark add NAME` knows ([how to](../how-to/use-a-public-benchmark.md)).",
        "No benchmark's content comes with the program: you bring the published records,",
        "and they stay on your machine. Names are found however they are written:",
        "`AIME`, `gpqa_diamond`, `Aider/Polyglot`.",
    )
)
HEAD = "<!-- written by `make docs` from the catalogue; do not edit -->\n# Public benchmarks\n\n"


def main(argv: list[str]) -> int:
    wanted = render()
    if "--check" not in argv:
        PAGE.write_text(wanted)
        return 0
    if not PAGE.is_file() or PAGE.read_text() != wanted:
        print("docs/reference/public-benchmarks.md is stale: run `make docs`", file=sys.stderr)
        return 1
    return 0


def render() -> str:
    lines = ["| name | tasks | image | network | gold answers |", "| --- | --- | --- | --- | --- |"]
    for entry in catalog():
        gold = "yes" if entry.oracle else "no"
        link = f"[`{entry.name}`](#{entry.name})"
        lines.append(f"| {link} | {entry.tasks:,} | {entry.image} | {entry.network} | {gold} |")
    sections = "".join("\n" + section(entry) for entry in catalog())
    return f"{HEAD}{INTRODUCTION}\n\n" + "\n".join(lines) + "\n" + sections


def section(entry: PublicBenchmark) -> str:
    return f"## {entry.name}\n\n{entry.title}. {entry.what}\n\n" + "\n".join(facts(entry)) + "\n"


def facts(entry: PublicBenchmark) -> Iterator[str]:
    yield f"- Measures: {entry.metric}."
    yield f"- Published as: {'; '.join(entry.published)}."
    yield f"- `--from` takes: {entry.bring}."
    if entry.commit:
        yield f"- Pinned to commit `{entry.commit}`."
    yield f"- Licence: {entry.licence}"
    yield f"- Also called: {', '.join(f'`{alias}`' for alias in entry.aliases)}."
    yield from (f"- {note}" for note in entry.notes)
    for bad in entry.known_bad:
        yield f"- Known to be bad, because {bad.why}: {', '.join(f'`{one}`' for one in bad.ids)}."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

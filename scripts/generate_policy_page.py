"""Writes the policy table of docs/concepts/failures.md from the scheduler's own; --check compares."""

from __future__ import annotations

import sys
from pathlib import Path

from valkyrie.schedule.policy import TABLE, Policy

PAGE = Path(__file__).resolve().parents[1] / "docs" / "concepts" / "failures.md"
BEGIN = "<!-- policy table: written by `make docs` -->"
END = "<!-- end of policy table -->"


def describe_retry(policy: Policy) -> str:
    if not policy.retryable:
        return "no"
    return f"{policy.attempts} attempts, first wait up to {policy.base_s:g} s, at most {policy.most_s:g} s"


def render_table() -> str:
    lines = [
        "| category | cause | meaning | can an agent cause it? | tried again by itself |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {p.category} | `{p.cause}` | {p.meaning} | {p.by_agent} | {describe_retry(p)} |" for p in TABLE
    ]
    return "\n".join(lines)


def render_page(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{PAGE}: the markers around the policy table are gone")
    return f"{before}{BEGIN}\n{render_table()}\n{END}{after}"


def main(argv: list[str]) -> int:
    page = PAGE.read_text()
    wanted = render_page(page)
    if "--check" not in argv:
        PAGE.write_text(wanted)
        return 0
    if page != wanted:
        print("docs/concepts/failures.md is stale: run `make docs`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

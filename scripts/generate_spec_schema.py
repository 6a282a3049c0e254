"""Writes the JSON Schema of eval specs and the graders of docs/reference/eval-spec.md; --check compares."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from valkyrie.specs.grader_schema import GRADERS
from valkyrie.specs.schema import json_schema

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"
SCHEMA = REFERENCE / "eval-spec.schema.json"
PAGE = REFERENCE / "eval-spec.md"
BEGIN = "<!-- graders: written by `make docs` -->"
END = "<!-- end of graders -->"


def render_schema() -> str:
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def render_table() -> str:
    lines = ["| type | passes when | config |", "| --- | --- | --- |"]
    for name, form in GRADERS.items():
        keys = ", ".join(f"**`{key}`**" if key in form.required else f"`{key}`" for key in form.keys)
        lines.append(f"| `{name}` | {form.about} | {keys} |")
    return "\n".join([*lines, "", "Keys in bold are required."])


def render_page(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{PAGE}: the markers around the graders are gone")
    return f"{before}{BEGIN}\n{render_table()}\n{END}{after}"


def main(argv: list[str]) -> int:
    wanted = {SCHEMA: render_schema(), PAGE: render_page(PAGE.read_text())}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if "--check" in argv:
        for path in stale:
            print(f"docs/reference/{path.name} is stale: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(wanted[path])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Every code that can be found is in the table, and the page says what the table says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from valkyrie.evals.lint.rules import RULES

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("specs", "grade", "evals/lint", "benchmarks/eval_spec")
CODE_AT = {
    "Finding": 0,
    "finding": 0,
    "error": 0,
    "warning": 0,
    "info": 0,
    "once": 0,
    "fault": 0,
    "_problem": 1,
}
"""Which argument of these is the code."""
CODE = re.compile(r"[a-z]+(-[a-z]+)*")


def emitted() -> Iterator[str]:
    for folder in FOLDERS:
        for file in sorted((ROOT / "src/valkyrie" / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call):
                    yield from code_of(node)


def code_of(call: ast.Call) -> Iterator[str]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    at = CODE_AT.get(name)
    if at is not None and len(call.args) > at:
        argument = call.args[at]
        if isinstance(argument, ast.Constant) and CODE.fullmatch(str(argument.value)):
            yield str(argument.value)


def test_every_code_is_known_and_none_is_idle() -> None:
    found = set(emitted())
    assert found - set(RULES) == set()
    assert set(RULES) - found == set()


def test_the_page_lists_them_as_they_are() -> None:
    page = (ROOT / "docs/reference/lint.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| (\w+) \| (.*) \|$", page, re.MULTILINE)
    assert {code: (severity, summary) for code, severity, summary in rows} == {
        code: (rule.severity, rule.summary) for code, rule in RULES.items()
    }
    assert len(rows) == len(RULES)

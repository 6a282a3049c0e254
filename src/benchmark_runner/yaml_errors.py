"""What a YAML parser complains about, with its place and the usual way out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import yaml


def explain(error: yaml.MarkedYAMLError) -> tuple[int, int, str]:
    """Return line, column and what is wrong, of a parser's error."""
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context or "cannot be read"
    return (mark.line + 1, mark.column + 1, problem) if mark else (1, 1, problem)


def syntax_hint(problem: str, char: str = "") -> str:
    """Return what usually is behind a complaint; `char` is what the parser stumbled over, if known."""
    if char in ("`", "@", "%") or "'`'" in problem or "'@'" in problem or "'%'" in problem:
        return " Put the value in quotes or in a block (`key: |`)."
    if char == "\t" or "'\\t'" in problem or "mapping values" in problem:
        return " Indent with spaces, and put a value that holds `: ` in quotes or in a block (`key: |`)."
    if "expected ',' or" in problem:
        return " Inside { } and [ ], put a value that holds braces, brackets or commas in quotes."
    return ""

"""Constraints as the graders they act as."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from valkyrie.nouns import Json
from valkyrie.specs.durations import format_duration
from valkyrie.specs.model import Constraints, GraderSpec

PREFIX = "constraint:"
ANY_TOOL = "*"


def implicit_graders(constraints: Constraints) -> Iterator[GraderSpec]:
    """One grader for each bound that was set, called `constraint:` and the bound's key."""
    for key, grader_type, config in _rows(constraints):
        yield GraderSpec(grader_type, config, name=f"{PREFIX}{key}", place=constraints.place)


def _rows(given: Constraints) -> Iterator[tuple[str, str, Json]]:
    if given.max_turns is not None:
        yield "max_turns", "turn-count", {"max": given.max_turns}
    if given.max_tokens is not None:
        yield "max_tokens", "token-budget", {"max": given.max_tokens}
    if given.max_duration is not None:
        yield "max_duration", "wall-time", {"max": format_duration(given.max_duration)}
    if given.expect_tools:
        yield "expect_tools", "tool-calls", {"required": _tools(given.expect_tools)}
    if given.reject_tools:
        yield "reject_tools", "tool-calls", {"disallowed": _tools(given.reject_tools)}
    if given.expect_skills:
        yield "expect_skills", "skill-invocation", {"required": list(given.expect_skills)}
    if given.reject_skills:
        yield "reject_skills", "skill-invocation", {"disallowed": list(given.reject_skills)}


def _tools(names: Sequence[str]) -> list[str]:
    """`*` is any tool; everything else is a regex, as in `tool-calls`."""
    return [".*" if name == ANY_TOOL else name for name in names]

"""Constraints: bounds of an author that are checked and reported beside the graders, and score nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from valkyrie.errors import ValkyrieError
from valkyrie.grade.protocol import Given
from valkyrie.grade.types import built_in
from valkyrie.nouns import Json
from valkyrie.specs.durations import format_duration
from valkyrie.specs.model import Constraints, GraderSpec

ANY_TOOL = "*"


@dataclass(frozen=True, slots=True)
class ConstraintResult:
    """Whether a trial kept to one constraint."""

    name: str
    """Its key, such as `max_turns`."""
    held: bool
    """False also where nothing tells: what an agent does not report is not kept."""
    evidence: str = ""
    enforced: bool = False
    """Broken, it fails its trial."""

    def to_json(self) -> Json:
        """As results.jsonl has it."""
        found: Json = {"name": self.name, "held": self.held, "evidence": self.evidence}
        return {**found, "enforced": True} if self.enforced else found

    @classmethod
    def read_all(cls, data: Any) -> tuple[ConstraintResult, ...]:
        """The same, read back from a list; what is none is passed over."""
        return tuple(
            cls(
                str(one["name"]),
                one.get("held") is True,
                str(one.get("evidence") or ""),
                one.get("enforced") is True,
            )
            for one in (data if isinstance(data, list | tuple) else ())
            if isinstance(one, dict) and one.get("name")
        )


async def check_constraints(
    constraints: Constraints, given: Given, *, enforced: bool = False
) -> tuple[ConstraintResult, ...]:
    """Whether the trial kept to each constraint that is set, in the order of the model."""
    return tuple([await _checked(one, given, enforced) for one in constraint_graders(constraints)])


async def _checked(spec: GraderSpec, given: Given, enforced: bool) -> ConstraintResult:
    try:
        found = await built_in(spec.type)(spec).grade(given)
    except ValkyrieError as error:
        return ConstraintResult(spec.label, False, str(error), enforced)
    return ConstraintResult(spec.label, found.passed, found.evidence, enforced)


def constraint_graders(constraints: Constraints) -> Iterator[GraderSpec]:
    """The grader that checks each bound that is set, called by the bound's key."""
    for key, grader_type, config in _rows(constraints):
        yield GraderSpec(grader_type, config, name=key, place=constraints.place)


def _rows(given: Constraints) -> Iterator[tuple[str, str, Json]]:
    for key, grader_type in (
        ("max_turns", "turn-count"),
        ("max_tokens", "token-budget"),
        ("max_tool_calls", "tool-call-count"),
    ):
        if (most := getattr(given, key)) is not None:
            yield key, grader_type, {"max": most}
    for key in ("max_duration", "max_agent_duration"):
        if (longest := getattr(given, key)) is not None:
            yield key, "wall-time", {"max": format_duration(longest)}
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

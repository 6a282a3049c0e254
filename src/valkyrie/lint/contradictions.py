"""Graders of one stimulus that can never all pass."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from valkyrie.grade.constraints import constraint_graders
from valkyrie.lint.claims import (
    DEPENDS_ON_SURROUNDINGS,
    claims_of,
    compiled,
    existences,
    found,
    items,
    texts,
    turn_of,
)
from valkyrie.lint.codes import finding
from valkyrie.specs.model import Finding, GraderSpec, Place, Stimulus

_PLAIN_NAME = re.compile(r"\^?([A-Za-z0-9_-]+)\$?")


def contradictions(stimulus: Stimulus) -> Iterator[Finding]:
    """Each pair of demands that exclude each other."""
    yield from _texts(stimulus)
    yield from _files(stimulus)
    yield from _skills(stimulus)
    yield from _tools(stimulus)
    yield from _turns(stimulus)


def _against(first: str, second: str, place: Place | None, *, counts: bool = True) -> Finding:
    """Two demands that exclude each other; a warning where one is a constraint, which does not count."""
    if counts:
        message = f"{first}, but {second}: no trial can pass both. Drop one of them"
        return finding("contradictory-graders", message, place)
    message = f"{first}, but {second}: no trial can keep to both. Drop one of them"
    return replace(finding("contradictory-graders", message, place), severity="warning")


def _where(place: Place | None) -> str:
    return f" (line {place.line})" if place else ""


def _texts(stimulus: Stimulus) -> Iterator[Finding]:
    claims = claims_of(stimulus)
    for forbids in (claim for claim in claims if not claim.wanted):
        for wants in (claim for claim in claims if claim.wanted and forbids.excludes(claim)):
            first = f"{wants.grader.label} wants {wants.source!r} in the {wants.subject}"
            second = f"{forbids.grader.label}{_where(forbids.grader.place)} forbids {forbids.source!r}"
            yield _against(first, second, wants.grader.place)
    empty = [
        grader
        for grader in stimulus.graders
        if grader.type == "diff-empty" and not grader.config.get("negate")
    ]
    for claim in (claim for claim in claims if claim.subject == "diff" and claim.wanted):
        for grader in (one for one in empty if turn_of(one) == turn_of(claim.grader)):
            second = f"{grader.label}{_where(grader.place)} wants no changes"
            yield _against(f"{claim.grader.label} wants a change", second, claim.grader.place)


def _files(stimulus: Stimulus) -> Iterator[Finding]:
    gone = {path: grader for path, wanted, grader in existences(stimulus) if not wanted}
    needed = [(path, grader) for path, wanted, grader in existences(stimulus) if wanted]
    needed += [
        (claim.subject.removeprefix("file "), claim.grader)
        for claim in claims_of(stimulus)
        if claim.wanted and claim.subject.startswith("file ")
    ]
    for path, grader in needed:
        if path in gone:
            second = f"{gone[path].label}{_where(gone[path].place)} wants it not to exist"
            yield _against(f"{grader.label} needs the file {path}", second, grader.place)


@dataclass(frozen=True, slots=True)
class _Demand:
    """Of one skill or tool: that it is used, or that it is not."""

    name: str
    turn: int | None
    place: Place | None
    counts: bool = True
    """It is a grader's, not a constraint's."""

    def meets(self, refused: _Demand) -> bool:
        """Whether the other, which forbids, holds where this one must be met."""
        return refused.turn is None or refused.turn == self.turn


def _skills(stimulus: Stimulus) -> Iterator[Finding]:
    graders = _with_constraints(stimulus, "skill-invocation")
    required = [
        _Demand(n, g.turn, g.place, counts) for g, counts in graders for n in texts(g.config.get("required"))
    ]
    refused = [
        _Demand(n, g.turn, g.place, counts)
        for g, counts in graders
        for n in texts(g.config.get("disallowed"))
    ]
    for one in required:
        for other in refused:
            if other.name in (one.name, "*") and one.meets(other):
                what = "every skill" if other.name == "*" else "it"
                second = f"{what} is forbidden{_where(other.place)}"
                both = one.counts and other.counts
                yield _against(f"the skill {one.name} is required", second, one.place, counts=both)


def _tools(stimulus: Stimulus) -> Iterator[Finding]:
    """Only demands that surely meet: a name without further conditions, and a plain name."""
    graders = _with_constraints(stimulus, "tool-calls")
    required = [
        _Demand(_tool_name(e), g.turn, g.place, counts)
        for g, counts in graders
        for e in items(g.config.get("required"))
    ]
    refused = [
        _Demand(_tool_name(e), g.turn, g.place, counts)
        for g, counts in graders
        for e in items(g.config.get("disallowed"))
        if _only_name(e)
    ]
    for one in required:
        plain = _PLAIN_NAME.fullmatch(one.name)
        for other in (other for other in refused if other.name and one.meets(other)):
            if other.name == one.name or (plain and _surely_refuses(other.name, one.name, plain[1])):
                second = f"{other.name!r} is forbidden{_where(other.place)}"
                both = one.counts and other.counts
                first = f"a call of the tool {one.name!r} is required"
                yield _against(first, second, one.place, counts=both)
    for grader in stimulus.graders:
        if required and _allows_no_calls(grader):
            first = f"a call of the tool {required[0].name!r} is required"
            second = f"{grader.label}{_where(grader.place)} allows no calls"
            yield _against(first, second, required[0].place, counts=required[0].counts)


def _allows_no_calls(grader: GraderSpec) -> bool:
    none = grader.type == "tool-call-count" and grader.config.get("max") == 0
    return none and grader.turn is None and not grader.config.get("tools")


def _with_constraints(stimulus: Stimulus, type_name: str) -> list[tuple[GraderSpec, bool]]:
    """Graders of a type, and what checks constraints; True for those that count."""
    graders = [(one, True) for one in stimulus.graders]
    graders += [(one, False) for one in constraint_graders(stimulus.constraints)]
    return [(grader, counts) for grader, counts in graders if grader.type == type_name]


def _surely_refuses(pattern: str, required: str, name: str) -> bool:
    """Whether every tool that fits `required` is refused; unanchored, `bash` fits `read_bash` too."""
    regex = compiled(pattern)
    if regex is None or not found(regex, name):
        return False
    return required == f"^{name}$" or not DEPENDS_ON_SURROUNDINGS.search(pattern)


def _tool_name(entry: object) -> str:
    name = entry.get("name") if isinstance(entry, dict) else entry
    return name if isinstance(name, str) else ""


def _only_name(entry: object) -> bool:
    return isinstance(entry, str) or (isinstance(entry, dict) and set(entry) == {"name"})


def _turns(stimulus: Stimulus) -> Iterator[Finding]:
    limit = stimulus.constraints.max_turns
    if limit is not None and limit < len(stimulus.turns):
        first = f"the conversation has {len(stimulus.turns)} turns"
        yield _against(first, f"max_turns is {limit}", stimulus.constraints.place, counts=False)

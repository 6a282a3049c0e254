"""What the built-in graders share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from valkyrie.grade.config import Config
from valkyrie.grade.js_regex import bounded_searching
from valkyrie.grade.protocol import Given, GraderResult, Need
from valkyrie.nouns import Json
from valkyrie.specs.model import GraderSpec

MOST_EVIDENCE = 2000
"""Characters of evidence that are kept."""


class BuiltIn:
    """One built-in grader: reads its config in `read`, speaks in `look`."""

    type: ClassVar[str] = ""
    """Set where a class stands for one type; others go by their spec's."""
    needs: ClassVar[frozenset[Need]] = frozenset()

    absence_only: bool = False
    """It only says what an agent must not have said or done."""

    def __init__(self, spec: GraderSpec) -> None:
        self.spec = spec
        self.config = Config(spec)
        self.read(self.config)

    def read(self, config: Config) -> None:
        """Take what it needs from the config; raises SpecError."""

    async def grade(self, given: Given) -> GraderResult:
        """Its verdict; a pattern JavaScript would not take fails at once."""
        broken = next((pattern.problem for pattern in self.config.patterns if pattern.problem), None)
        if broken:
            return self.failed(broken)
        with bounded_searching():
            return await self.look(given)

    async def look(self, given: Given) -> GraderResult:
        """Look at what there is."""
        raise NotImplementedError

    def found(
        self, passed: bool, evidence: str, *, score: float | None = None, details: Sequence[Json] = ()
    ) -> GraderResult:
        """A result with this grader's name on it."""
        return GraderResult(
            name=self.spec.label,
            type=self.spec.type,
            passed=passed,
            score=float(passed) if score is None else score,
            evidence=clipped(evidence),
            details=details,
        )

    def failed(self, evidence: str) -> GraderResult:
        """It is wrong."""
        return self.found(False, evidence)


def clipped(text: str, most: int = MOST_EVIDENCE) -> str:
    """The text, its middle left out where it is long."""
    if len(text) <= most:
        return text
    half = (most - 5) // 2
    return f"{text[:half]} […] {text[-half:]}"


def around(text: str, start: int, end: int, *, margin: int = 40) -> str:
    """The place of a match with a little of what surrounds it, on one line."""
    piece = text[max(0, start - margin) : min(end, start + 200) + margin]
    return clipped(" ".join(piece.split()), 300)

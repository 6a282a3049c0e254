"""What the built-in graders share: evidence, searches for texts, workspace files, reported results."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from valkyrie.domain import Json
from valkyrie.errors import GraderError
from valkyrie.grade.config import Config
from valkyrie.grade.js_regex import JsRegex, bounded_searching
from valkyrie.grade.protocol import GraderInput, GraderResult, Need
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

    async def grade(self, given: GraderInput) -> GraderResult:
        """Its verdict; a pattern JavaScript would not take fails at once."""
        broken = next((pattern.problem for pattern in self.config.patterns if pattern.problem), None)
        if broken:
            return self.failed(broken)
        with bounded_searching():
            return await self.look(given)

    async def look(self, given: GraderInput) -> GraderResult:
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


# A text or a pattern that is looked for.


class Sought(Protocol):
    """Something that can be found in a text."""

    @property
    def name(self) -> str:
        """How evidence speaks of it."""
        ...

    def where(self, text: str) -> str | None:
        """The place where it is, in a few words; None when it is not there."""
        ...


@dataclass(frozen=True, slots=True)
class Substring:
    """A text within a text."""

    text: str
    case_sensitive: bool

    @property
    def name(self) -> str:
        return f'"{self.text}"'

    def where(self, text: str) -> str | None:
        at = text.find(self.text) if self.case_sensitive else text.lower().find(self.text.lower())
        return None if at < 0 else around(text, at, at + len(self.text))


@dataclass(frozen=True, slots=True)
class Matching:
    """A pattern within a text."""

    pattern: JsRegex

    @property
    def name(self) -> str:
        return f"/{self.pattern.source}/"

    def where(self, text: str) -> str | None:
        found = self.pattern.search(text)
        return None if found is None else around(text, *found)


def substring(config: Config, *, case_sensitive: bool | None = None) -> Substring:
    """`substring`, or `value`; case matters where the config says so, or the grader always does."""
    sought = config.text("substring", "value")
    folds = config.flag("case_sensitive") if case_sensitive is None else case_sensitive
    return Substring(sought, folds)


def matching(config: Config) -> Matching:
    """`pattern`."""
    return Matching(config.pattern("pattern"))


def sought_by(config: Config, grader_type: str, *, case_sensitive: bool | None = None) -> Sought:
    """What a grader of this type looks for: its name says whether a text or a pattern."""
    if grader_type.endswith("matches"):
        return matching(config)
    return substring(config, case_sensitive=case_sensitive)


def wanted_by(config: Config, grader_type: str) -> bool:
    """Whether it must be there: `-not-` and `negate` each turn that round."""
    return ("-not-" in grader_type) == config.flag("negate")


# Results that programs and plugins report as plain data.

KEYS = ("passed", "score", "evidence", "details")
_MOST_DETAILS = 100


def result_of(data: Mapping[str, Any], spec: GraderSpec, *, passed: bool | None = None) -> GraderResult:
    """`passed`, `score` 0..1, `evidence`, `details`; `passed` is what stands in for a missing one.

    A missing score follows from `passed`. Raises GraderError for values of other kinds.
    """
    said = data.get("passed", passed)
    if not isinstance(said, bool):
        raise GraderError(f"it reported passed = {said!r}; true or false is expected.")
    score = data.get("score", float(said))
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise GraderError(f"it reported score = {score!r}; a number from 0 to 1 is expected.")
    if not 0 <= score <= 1:
        raise GraderError(f"it reported score = {score}; a number from 0 to 1 is expected.")
    evidence = data.get("evidence") or f"it reported {'a pass' if said else 'a fail'}, and no evidence"
    details = data.get("details", [])
    if not isinstance(details, list):
        details = [details]
    return GraderResult(
        name=spec.label,
        type=spec.type,
        passed=said,
        score=float(score),
        evidence=clipped(evidence if isinstance(evidence, str) else repr(evidence)),
        kind="llm" if data.get("kind") == "llm" else "code",
        details=[one if isinstance(one, dict) else {"value": one} for one in details[:_MOST_DETAILS]],
    )


# Reading what an agent left, within bounds.

MOST_BYTES = 16 * 1024 * 1024
"""Of one file that is looked into."""


class UnreadableError(Exception):
    """A file that is there cannot be read as text."""


def workspace_of(workspace: Path | None) -> Path:
    """The folder, or the error that there is none."""
    if workspace is None:
        raise GraderError(
            "there is no workspace to look at. With `valkyrie grade`, name it: --workspace DIR."
        )
    if not workspace.is_dir():
        raise GraderError(f"the workspace {workspace} is not there.")
    return workspace


def is_file(path: Path) -> bool:
    """A plain file, or a link to one."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def read_text(path: Path, *, most: int | None = None) -> str:
    """A file as UTF-8 text. Raises UnreadableError when it is not that, or has more than `most` bytes."""
    most = MOST_BYTES if most is None else min(most, MOST_BYTES)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnreadableError("it is no plain file")
            content = file.read(max(most, 0) + 1)
    except OSError as error:
        raise UnreadableError(error.strerror or "it cannot be opened") from None
    if len(content) > most:
        raise UnreadableError("it is too large to be looked into")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise UnreadableError("it is not UTF-8") from None

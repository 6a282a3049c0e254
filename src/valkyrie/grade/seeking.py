"""A text or a pattern that is looked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from valkyrie.grade.base import around
from valkyrie.grade.config import Config
from valkyrie.grade.js_regex import JsRegex


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

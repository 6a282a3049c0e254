"""Graders as plain claims about a text, so that they can be held against each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from valkyrie.errors import GraderError
from valkyrie.grade.js_regex import JsRegex
from valkyrie.specs.model import GraderSpec, Stimulus

_TEXT_TYPE = re.compile(r"(output|transcript|file|diff)-(not-)?(contains|matches)")
_EXISTS_TYPE = re.compile(r"file-(not-)?exists")
DEPENDS_ON_SURROUNDINGS = re.compile(r"[\^$]|\\[bB]|\(\?[=!<]")
"""In a pattern: what it finds in a text it may not find in a longer one."""
_PROBES = ("", "a", "0 x", "\n", "The quick brown fox.\nIt jumped, 12 times!\n")


@dataclass(frozen=True, slots=True)
class Claim:
    """Something must be in a text, or must not."""

    subject: str
    """`output`, `transcript`, `diff`, or `file` with its path."""
    wanted: bool
    grader: GraderSpec
    text: str | None = None
    pattern: JsRegex | None = None
    """Of the two, the one the grader looks for."""
    source: str = ""
    """As the author wrote it."""
    case_sensitive: bool = False

    @property
    def matches_everything(self) -> bool:
        """Whether it is found in whatever there is."""
        return all(self.found_in(probe) for probe in _PROBES)

    def found_in(self, text: str) -> bool:
        """Whether a grader would find it there."""
        if self.pattern is not None:
            return found(self.pattern, text)
        return self._folded(self.text or "") in self._folded(text)

    def _folded(self, text: str) -> str:
        return text if self.case_sensitive else text.lower()

    def excludes(self, other: Claim) -> bool:
        """Whether this claim, which forbids, can never hold together with `other`, which wants."""
        if self.subject != other.subject or turn_of(self.grader) != turn_of(other.grader):
            return False
        if self.pattern is not None and other.pattern is not None:
            return self.source == other.source
        if other.text is None or (self.pattern and DEPENDS_ON_SURROUNDINGS.search(self.source)):
            return False
        if self.pattern is None and self.case_sensitive and not other.case_sensitive:
            return False  # the same word in other letters satisfies both
        return self.found_in(other.text)


def turn_of(grader: GraderSpec) -> int | None:
    """The turn it looks at; graders of diffs may say so in their config."""
    own = grader.config.get("turn") if grader.type.startswith(("diff-", "expected-diff")) else None
    return own if isinstance(own, int) else grader.turn


def claim_of(grader: GraderSpec) -> Claim | None:
    """The claim a text grader makes; None for other graders, and where its config is no good."""
    match = _TEXT_TYPE.fullmatch(grader.type)
    if match is None:
        return None
    subject, negated, how = match.groups()
    config = grader.config
    if subject == "file":
        if not isinstance(config.get("path"), str):
            return None
        subject = f"file {_plain_path(config['path'])}"
    wanted = (not negated) ^ bool(config.get("negate"))
    if how == "contains" and not (subject == "diff" and "pattern" in config):
        names = ("value", "substring", "pattern")
        said = next((config[name] for name in names if isinstance(config.get(name), str)), None)
        if said is None:
            return None
        exact = match[1] in ("file", "diff") or config.get("case_sensitive") is True
        return Claim(subject, wanted, grader, text=said, source=said, case_sensitive=exact)
    said = config.get("pattern")
    pattern = compiled(said)
    return Claim(subject, wanted, grader, pattern=pattern, source=pattern.source) if pattern else None


def compiled(pattern: object) -> JsRegex | None:
    """A spec's regex, or None where it is none; whoever makes the grader says why."""
    regex = JsRegex(pattern) if isinstance(pattern, str) else None
    return regex if regex and regex.problem is None else None


def found(regex: JsRegex, text: str) -> bool:
    """Whether it matches; one that takes too long to say matches nothing here."""
    try:
        return regex.search(text) is not None
    except GraderError:
        return False


def claims_of(stimulus: Stimulus) -> list[Claim]:
    """Every claim of its text graders."""
    claims = (claim_of(grader) for grader in stimulus.graders)
    return [claim for claim in claims if claim]


def existences(stimulus: Stimulus) -> Iterator[tuple[str, bool, GraderSpec]]:
    """Path, whether it must be there, and the grader that says so."""
    for grader in stimulus.graders:
        path = grader.config.get("path")
        match = _EXISTS_TYPE.fullmatch(grader.type)
        if match and isinstance(path, str):
            yield _plain_path(path), (not match[1]) ^ bool(grader.config.get("negate")), grader


def _plain_path(path: str) -> str:
    return path.removeprefix("./").rstrip("/")


def texts(value: object) -> list[str]:
    """The texts of a list, or of one text."""
    if isinstance(value, str):
        return [value]
    return [item for item in value if isinstance(item, str)] if isinstance(value, list | tuple) else []


def items(value: object) -> list[object]:
    """The items of a list, or the one value there is."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]

"""What graders have in common: how their config is read, and how they say what they found."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from valkyrie.domain import Json
from valkyrie.errors import GraderError, UsageError
from valkyrie.grade.js_regex import JsRegex, bounded_searching
from valkyrie.grade.protocol import GraderInput, GraderResult, Need
from valkyrie.specs.model import Finding, GraderSpec, SpecError, parse_duration
from valkyrie.text import did_you_mean

_Value = TypeVar("_Value")
_MISSING = object()


class Config:
    """Reads the keys of one grader's config; remembers which ones it knows, and every pattern it met."""

    def __init__(self, spec: GraderSpec) -> None:
        self.spec = spec
        self.known: set[str] = set()
        self.patterns: list[JsRegex] = []
        if not isinstance(spec.config, Mapping):
            raise self.wrong("config is a map of keys and values.")

    def wrong(self, message: str, code: str = "grader-config") -> SpecError:
        return SpecError([Finding(code, "error", f"{self.spec.label}: {message}", self.spec.place)])

    def has(self, key: str) -> bool:
        """Return whether the author said anything under this key."""
        self.known.add(key)
        return self.spec.config.get(key) is not None

    def value(self, *keys: str, default: Any = None) -> Any:
        """Return what stands under the first of these keys that is there, as it is."""
        self.known.update(keys)
        return next((self.spec.config[key] for key in keys if self.spec.config.get(key) is not None), default)

    def _typed(
        self, keys: Sequence[str], default: Any, what: str, read: Callable[[Any], _Value | None]
    ) -> _Value:
        found = self.value(*keys, default=_MISSING)
        if found is _MISSING:
            if default is _MISSING:
                raise self.wrong(f"`{keys[0]}` is missing.{self._slip(keys)}")
            return default  # type: ignore[no-any-return]
        value = read(found)
        if value is None:
            raise self.wrong(f"`{keys[0]}` is {_said(found)}; it must be {what}.")
        return value

    def _slip(self, wanted: Sequence[str]) -> str:
        """A key that may be the missing one, spelled wrong."""
        others = [key for key in map(str, self.spec.config) if key not in self.known]
        near = [found for key in wanted for found in get_close_matches(key, others, n=1)]
        return f" `{near[0]}` looks like it." if near else ""

    def text(self, *keys: str, default: Any = _MISSING, empty: bool = False) -> str:
        """A text; required unless there is a default."""
        what = "a text" if empty else "a text that is not empty"
        return self._typed(keys, default, what, lambda found: _text(found, empty=empty))

    def texts(self, *keys: str) -> tuple[str, ...]:
        """A text or a list of them; none when the key is missing."""
        return self._typed(keys, (), "a text or a list of texts", _texts)

    def pattern(self, *keys: str) -> JsRegex:
        return self.regex(self.text(*keys))

    def pattern_list(self, *keys: str) -> tuple[JsRegex, ...]:
        """A regex or a list of them."""
        return tuple(self.regex(source) for source in self.texts(*keys))

    def tool_patterns(self, key: str, *, required: bool = False) -> tuple[JsRegex, ...]:
        """Regexes of tools' names; an empty list is a mistake, for it would mean all tools."""
        if required and not self.has(key):
            raise self.wrong(f"`{key}` is missing.{self._slip([key])}")
        found = self.pattern_list(key)
        if self.has(key) and not found:
            raise self.wrong(f"`{key}` is empty; name at least one tool, or leave it out to count all.")
        return found

    def regex(self, source: str) -> JsRegex:
        """A regex that was found deeper in."""
        self.patterns.append(JsRegex(source))
        return self.patterns[-1]

    def flag(self, key: str, default: bool = False) -> bool:
        return self._typed((key,), default, "true or false", lambda v: v if isinstance(v, bool) else None)

    def number(self, key: str, *, low: float = 0.0, high: float = math.inf, default: Any = _MISSING) -> float:
        what = f"a number of at least {low:g}" if high == math.inf else f"a number from {low:g} to {high:g}"
        return self._typed((key,), default, what, lambda v: _number(v, low, high))

    def whole(self, key: str, *, low: int, high: int, default: Any = _MISSING) -> int:
        what = f"a whole number from {low} to {high}"
        return self._typed((key,), default, what, lambda v: _whole(v, low, high))

    def duration(self, key: str, default: Any = _MISSING) -> float:
        """Return seconds of a text such as `90s`."""
        return self._typed((key,), default, "a duration with its unit, such as `90s` or `5m`", _seconds)

    def mapping(self, key: str) -> Mapping[str, Any]:
        """A map with texts as keys; empty when missing."""
        return self._typed((key,), {}, "a map", lambda v: v if isinstance(v, Mapping) else None)

    def environment(self, key: str, reserved: Sequence[str]) -> Mapping[str, str]:
        """Environment variables; the reserved ones may not be set."""
        found: dict[str, str] = {}
        for name, value in self.mapping(key).items():
            if not isinstance(name, str) or not name or "=" in name or "\0" in name:
                raise self.wrong(f"`{key}` has {name!r}, which is no name of a variable.")
            if name.upper() in reserved:
                raise self.wrong(f"`{key}` sets {name}, which is set for the program already.")
            text = _text(value, empty=True)
            if text is None or "\0" in text:
                raise self.wrong(f"`{key}.{name}` is {_said(value)}; it must be a text.")
            found[name] = text
        return found

    def beside_spec(self, path: str) -> Path:
        """A file the author named, relative to the file that names it."""
        folder = self.spec.place.file.parent if self.spec.place else Path()
        return folder / path

    def _known(self, key: str) -> str:
        listed = f" It takes {', '.join(sorted(self.known))}." if self.known else " It takes none."
        return did_you_mean(key, self.known) or listed

    def refuse_others(self, what: str, entry: Mapping[str, Any], known: Sequence[str]) -> None:
        """Raise SpecError for a key of a part of the config that nobody reads."""
        for key in entry:
            if key not in known:
                hint = did_you_mean(str(key), known) or f" It takes {', '.join(known)}."
                raise self.wrong(f"{what} has no `{key}`.{hint}")

    def findings(self) -> list[Finding]:
        """Keys nobody reads, for a verdict may hang on them, and patterns JavaScript would not take."""
        unknown = [str(key) for key in self.spec.config if key not in self.known]
        label, place = self.spec.label, self.spec.place
        found = [
            Finding(
                "grader-config",
                "error",
                f"{label}: `{self.spec.type}` has no `config.{key}`.{self._known(key)}",
                place,
            )
            for key in unknown
        ]
        broken = [pattern.problem for pattern in self.patterns if pattern.problem]
        return found + [Finding("invalid-regex", "error", f"{label}: {one}.", place) for one in broken]


def _text(value: Any, *, empty: bool) -> str | None:
    if isinstance(value, bool):
        value = "true" if value else "false"
    if isinstance(value, int | float):
        value = str(value)
    return value if isinstance(value, str) and (value or empty) else None


def _texts(value: Any) -> tuple[str, ...] | None:
    listed = value if isinstance(value, list | tuple) else [value]
    found = [_text(one, empty=False) for one in listed]
    return None if None in found else tuple(one for one in found if one is not None)


def _number(value: Any, low: float, high: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if low <= value <= high else None


def _whole(value: Any, low: int, high: int) -> int | None:
    number = _number(value, low, high)
    return int(number) if number is not None and number.is_integer() else None


def _seconds(value: Any) -> float | None:
    try:
        return parse_duration(value) if isinstance(value, str) else None
    except UsageError:
        return None


def _said(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "…"


# What the built-in graders share: evidence, searches for texts, workspace files, reported results.

MOST_EVIDENCE = 2000
"""Characters of evidence that are kept."""


class BuiltIn:
    """One built-in grader: reads its config in `read`, speaks in `look`."""

    type: ClassVar[str] = ""
    """Set where a class stands for one type; others go by their spec's."""
    needs: ClassVar[frozenset[Need]] = frozenset()

    absence_only: bool = False
    """It only says what an agent must not have said or done."""
    turn: int | None = None
    """Of one that looks at the diff: the turn after which it looks; None is the last."""

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
    return Matching(config.pattern("pattern"))


def sought_by(config: Config, grader_type: str, *, case_sensitive: bool | None = None) -> Sought:
    """Return what a grader of this type looks for: its name says whether a text or a pattern."""
    if grader_type.endswith("matches"):
        return matching(config)
    return substring(config, case_sensitive=case_sensitive)


def wanted_by(config: Config, grader_type: str) -> bool:
    """Return whether it must be there: `-not-` and `negate` each turn that round."""
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

"""A grader's config, read with types: what is wrong is told with the place where it stands."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from valkyrie.errors import UsageError
from valkyrie.grade.js_regex import JsRegex
from valkyrie.specs.model import Finding, GraderSpec, SpecError
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
        """The error for this grader."""
        return SpecError([Finding(code, "error", f"{self.spec.label}: {message}", self.spec.place)])

    def has(self, key: str) -> bool:
        """Whether the author said anything under this key."""
        self.known.add(key)
        return self.spec.config.get(key) is not None

    def value(self, *keys: str, default: Any = None) -> Any:
        """What stands under the first of these keys that is there, as it is."""
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
        from difflib import get_close_matches

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
        """A regex; required."""
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
        """true or false."""
        return self._typed((key,), default, "true or false", lambda v: v if isinstance(v, bool) else None)

    def number(self, key: str, *, low: float = 0.0, high: float = math.inf, default: Any = _MISSING) -> float:
        """A finite number within bounds."""
        what = f"a number of at least {low:g}" if high == math.inf else f"a number from {low:g} to {high:g}"
        return self._typed((key,), default, what, lambda v: _number(v, low, high))

    def whole(self, key: str, *, low: int, high: int, default: Any = _MISSING) -> int:
        """A whole number within bounds."""
        what = f"a whole number from {low} to {high}"
        return self._typed((key,), default, what, lambda v: _whole(v, low, high))

    def duration(self, key: str, default: Any = _MISSING) -> float:
        """Seconds of a text such as `90s`."""
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
    from valkyrie.specs.fields import parse_duration

    try:
        return parse_duration(value) if isinstance(value, str) else None
    except UsageError:
        return None


def _said(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "…"

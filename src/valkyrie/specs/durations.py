"""Lengths of time as people write them: a number and its unit."""

from __future__ import annotations

import math
import re

from valkyrie.errors import UsageError

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_FORM = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|h)\s*", re.ASCII)
_PARTS = re.compile(r"\s*(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?\s*", re.ASCII)
MOST_S = 365 * 24 * 3600.0


def parse_duration(text: str) -> float:
    """Seconds of `5m`, `300s`, `30000ms`, `1.5h`, `2m40s`; the unit is not optional."""
    if (match := _FORM.fullmatch(text)) is not None:
        seconds = float(match[1]) * _SECONDS[match[2]]
    elif (match := _PARTS.fullmatch(text)) is not None and text.strip():
        seconds = sum(
            float(part) * unit for part, unit in zip(match.groups("0"), (3600, 60, 1, 0.001), strict=True)
        )
    else:
        raise UsageError(f"{text!r} is not a duration. {_hint(text)}")
    if seconds > MOST_S:
        raise UsageError(f"{text!r} is longer than a year.")
    return seconds


def _hint(text: str) -> str:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isfinite(number) and number >= 0:
        return f"Add the unit: `{text.strip()}s` for seconds (or ms, m, h)."
    return "Write a number and a unit, such as `90s`, `5m`, `2m40s`, `1.5h` or `500ms`."


def format_duration(seconds: float) -> str:
    """A short spelling that `parse_duration` reads back, to the millisecond."""
    for unit in ("h", "m", "s"):
        if seconds >= _SECONDS[unit] and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s" if seconds >= 1 else f"{seconds * 1000:g}ms"

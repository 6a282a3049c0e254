"""Typed parameters of a contract: from the words of a command line to values, and back to shell words."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Literal

ParameterType = Literal["str", "int", "float", "bool", "dict"]

TYPES: Mapping[ParameterType, str] = {
    "str": "text",
    "int": "whole number",
    "float": "number",
    "bool": "true or false",
    "dict": "JSON object",
}
_BOOLS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_INTEGER = re.compile(r"[+-]?[0-9]{1,1000}")


def coerce(text: str, type_: ParameterType) -> Any:
    """Return the value `text` stands for; ValueError names what was expected."""
    stripped = text.strip()
    if type_ == "str":
        return text
    if type_ == "int" and _INTEGER.fullmatch(stripped):
        return int(stripped)
    if type_ == "float":
        return _finite(stripped)
    if type_ == "bool" and stripped.lower() in _BOOLS:
        return _BOOLS[stripped.lower()]
    if type_ == "dict":
        return _object(stripped)
    example = " (true, false, yes, no, 1 or 0)" if type_ == "bool" else ""
    raise ValueError(f"{text!r} is no {TYPES[type_]}{example}")


def _finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or "_" in text:
        raise ValueError(f"{text!r} is no number")
    return number


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{text!r} is no JSON object ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f'{text!r} is JSON, but no object like {{"key": 1}}')
    return value


def fits(value: object, type_: ParameterType) -> bool:
    """Return whether a value written in YAML is of this type as it stands."""
    if type_ == "float":
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if type_ == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, {"str": str, "bool": bool, "dict": dict}[type_])


def as_text(value: object) -> str:
    """Write a value as a command gets it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)

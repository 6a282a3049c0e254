"""Strict reading of JSON into dataclasses: each field carries its reader, each error says where it stands."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields
from datetime import datetime
from typing import Any, TypeVar

from valkyrie.errors import UserError
from valkyrie.text import did_you_mean

T = TypeVar("T")
Reader = Callable[[Any, str], Any]
MOST_DEPTH = 50


class TrajectoryError(UserError, ValueError):
    """A trajectory is not what the format says; the message names the place."""

    default_cause = "trajectory"


def must(reader: Reader) -> Any:
    return field(metadata={"read": reader})


def may(reader: Reader) -> Any:
    """A field that may be left out, or null."""
    return field(default=None, metadata={"read": reader})


def text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise TrajectoryError(f"{where}: text is expected, not {_kind(value)}.")
    return value


def name(value: Any, where: str) -> str:
    if not text(value, where):
        raise TrajectoryError(f"{where}: may not be empty.")
    return str(value)


def flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise TrajectoryError(f"{where}: true or false is expected, not {_kind(value)}.")
    return value


def count(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TrajectoryError(f"{where}: a whole number from 0 is expected, not {_shown(value)}.")
    return value


def number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TrajectoryError(f"{where}: a number is expected, not {_shown(value)}.")
    return float(value)


def whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TrajectoryError(f"{where}: a whole number is expected, not {_shown(value)}.")
    return value


def timestamp(value: Any, where: str) -> str:
    try:
        datetime.fromisoformat(text(value, where))
    except ValueError as error:
        if isinstance(error, TrajectoryError):
            raise
        raise TrajectoryError(f"{where}: {value[:40]!r} is no ISO 8601 time.") from None
    return str(value)


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """Any JSON value, of sane depth."""
    if depth > MOST_DEPTH:
        raise TrajectoryError(f"{where}: nested deeper than {MOST_DEPTH}.")
    if isinstance(value, Mapping):
        return {text(key, where): plain(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{at}]", depth + 1) for at, item in enumerate(value)]
    if value is None or isinstance(value, str | bool | int):
        return value
    return number(value, where)


def mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TrajectoryError(f"{where}: an object is expected, not {_kind(value)}.")
    return dict(plain(value, where))


def one_of(*words: str) -> Reader:
    def read(value: Any, where: str) -> str:
        if value not in words:
            raise TrajectoryError(f"{where}: one of {', '.join(words)} is expected, not {_shown(value)}.")
        return str(value)

    return read


def sequence(reader: Reader) -> Reader:
    def read(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise TrajectoryError(f"{where}: a list is expected, not {_kind(value)}.")
        return tuple(reader(item, f"{where}[{at}]") for at, item in enumerate(value))

    return read


def record(cls: type[T], value: Any, where: str) -> T:
    """One dataclass whose fields were made with `must` and `may`; unknown fields are refused."""
    if not isinstance(value, Mapping):
        raise TrajectoryError(f"{where}: an object is expected, not {_kind(value)}.")
    known = {item.name: item for item in fields(cls)}  # type: ignore[arg-type]
    for key in value:
        if key not in known:
            hint = did_you_mean(str(key)[:60], known)
            raise TrajectoryError(f"{where}: no field is called {str(key)[:60]!r}.{hint}")
    found: dict[str, Any] = {}
    for key, item in known.items():
        if value.get(key) is not None:
            found[key] = item.metadata["read"](value[key], f"{where}.{key}")
        elif item.default is MISSING:
            raise TrajectoryError(f"{where}: {key} is missing.")
    return cls(**found)


def written(value: Any) -> Any:
    """Plain JSON data of a record; what is not set is left out."""
    if hasattr(value, "__dataclass_fields__"):
        pairs = ((item.name, getattr(value, item.name)) for item in fields(value))
        return {key: written(found) for key, found in pairs if found is not None}
    if isinstance(value, Mapping):
        return {key: written(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [written(item) for item in value]
    return value


def _kind(value: Any) -> str:
    names = {type(None): "null", str: "text", bool: "true or false", dict: "an object", list: "a list"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def _shown(value: Any) -> str:
    return repr(value)[:60] if isinstance(value, str | int | float) else _kind(value)

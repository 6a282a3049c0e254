"""What a person wrote down for the mock agent to do: `.mock-executor/<stimulus>.json`, strictly checked."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from valkyrie.errors import UserError
from valkyrie.suggest import did_you_mean
from valkyrie.trajectory.transcript import Event, Json

FOLDER = ".mock-executor"
"""In the workspace."""
MOST_BYTES = 16 * 1024 * 1024


class FixtureError(UserError, ValueError):
    """A fixture of the mock agent is not what it may be; the message names the place."""

    default_cause = "mock_fixture"


@dataclass(frozen=True, slots=True)
class FixtureFault:
    """The agent is to fail, as agents do whose model does not answer."""

    message: str
    retryable: bool = False
    times: int | None = None
    """So many attempts fail, then it works; None is always."""


@dataclass(frozen=True, slots=True)
class FixtureTurn:
    """What it does in one turn."""

    output: str | None = None
    """None: it says again what it was told."""
    events: tuple[Event, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fixture:
    """What it does in one trial."""

    turns: tuple[FixtureTurn, ...] = (FixtureTurn(),)
    """Turns beyond the last repeat what they are told."""
    metrics: Json = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    """Seconds."""
    exit_code: int = 0
    error: FixtureFault | None = None


def fixture_path(stimulus: str) -> str:
    """Where the fixture of a stimulus stands, below the workspace."""
    return f"{FOLDER}/{stimulus}.json"


def parse_fixture(text: str | bytes, where: str) -> Json:
    """The JSON of a fixture file."""
    try:
        found = json.loads(text[: MOST_BYTES + 1])
    except (ValueError, RecursionError) as error:
        raise FixtureError(f"{where}: no JSON ({error}).") from None
    return _object(found, where)


def read_fixture(data: Any, where: str, *, trial: int = 0) -> Fixture:
    """What the fixture says of this trial (from 0); `trials` beyond its last repeat the last."""
    data = _object(data, where)
    _known(data, where, (*_READERS, "output", "events", "turns", "trials"))
    if "trials" in data:
        trials = _list(data["trials"], f"{where}.trials")
        if not trials:
            raise FixtureError(f"{where}.trials: at least one trial is expected.")
        at = min(trial, len(trials) - 1)
        place = f"{where}.trials[{at}]"
        own = _object(trials[at], place)
        _known(own, place, (*_READERS, "output", "events", "turns"))
        both = {"turns"} if {"output", "events"} & own.keys() else set()
        both |= {"output", "events"} if "turns" in own else set()
        common = {key: value for key, value in data.items() if key != "trials" and key not in both}
        data, where = {**common, **own}, place
    read = {key: _READERS[key](data[key], f"{where}.{key}") for key in _READERS if key in data}
    return Fixture(turns=_turns(data, where), **read)


def _turns(data: Json, where: str) -> tuple[FixtureTurn, ...]:
    if "turns" not in data:
        # Its files are those of the whole trial, here as with turns.
        return (_turn({key: data[key] for key in ("output", "events") if key in data}, where),)
    if "output" in data or "events" in data:
        raise FixtureError(f"{where}: output and events stand in each of its turns, or turns is left out.")
    turns = _list(data["turns"], f"{where}.turns")
    return tuple(_turn(turn, f"{where}.turns[{at}]") for at, turn in enumerate(turns))


def _turn(data: Any, where: str) -> FixtureTurn:
    if isinstance(data, str):
        return FixtureTurn(data)
    data = _object(data, where)
    _known(data, where, ("output", "events", "files"))
    output = _text(data["output"], f"{where}.output") if data.get("output") is not None else None
    events = _list(data.get("events", []), f"{where}.events")
    files = _files(data.get("files", {}), f"{where}.files")
    happened = tuple(_event(event, f"{where}.events[{n}]") for n, event in enumerate(events))
    return FixtureTurn(output, happened, files)


def _event(data: Any, where: str) -> Event:
    data = _object(data, where)
    _known(data, where, ("type", "data", "timestamp"))
    if not isinstance(data.get("type"), str) or not data["type"]:
        raise FixtureError(f"{where}.type: the event's type is expected, like tool_call.")
    when = data.get("timestamp")
    said = None if when is None else _text(when, f"{where}.timestamp")
    return Event(data["type"], _object(data.get("data", {}), f"{where}.data"), said)


def _files(value: Any, where: str) -> Mapping[str, str]:
    found = {}
    for name, text in _object(value, where).items():
        path = PurePosixPath(name)
        if not name or path.is_absolute() or ".." in path.parts or "\0" in name or path == PurePosixPath("."):
            raise FixtureError(f"{where}: {name!r} is no path below the workspace.")
        found[str(path)] = _text(text, f"{where}.{name}")
    return found


def _fault(value: Any, where: str) -> FixtureFault:
    if isinstance(value, str):
        return FixtureFault(value)
    data = _object(value, where)
    _known(data, where, ("message", "retryable", "times"))
    if not isinstance(data.get("retryable", False), bool):
        raise FixtureError(f"{where}.retryable: true or false is expected.")
    times = data.get("times")
    if times is not None and (isinstance(times, bool) or not isinstance(times, int) or times < 1):
        raise FixtureError(f"{where}.times: a whole number from 1 is expected.")
    message = _text(data.get("message", "the fixture says so"), f"{where}.message")
    return FixtureFault(message, data.get("retryable", False), times)


def _seconds(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise FixtureError(f"{where}: seconds are expected, like 0.5.")
    return float(value)


def _code(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 255:
        raise FixtureError(f"{where}: an exit code of 0 to 255 is expected.")
    return value


def _object(value: Any, where: str) -> Json:
    if not isinstance(value, dict):
        raise FixtureError(f"{where}: an object is expected.")
    return value


def _list(value: Any, where: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise FixtureError(f"{where}: a list is expected.")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise FixtureError(f"{where}: text is expected.")
    return value


def _known(data: Json, where: str, names: Sequence[str]) -> None:
    for key in data:
        if key not in names:
            hint = did_you_mean(key, names) or f" Known: {', '.join(names)}."
            raise FixtureError(f"{where}: no field is called {key!r}.{hint}")


_READERS: Mapping[str, Callable[[Any, str], Any]] = {
    "metrics": _object,
    "files": _files,
    "delay": _seconds,
    "exit_code": _code,
    "error": _fault,
}

"""The agent `mock`: it says what it was told, or does what a fixture says. No process, no model."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import Any

from sandboxes.errors import SandboxFileNotFoundError
from sandboxes.protocol import TIMEOUT_EXIT_CODE
from valkyrie.agents.catalog import NeedsNothing
from valkyrie.agents.protocol import AgentCapabilities, AgentExit, AgentTrial, AgentUsage, Trouble
from valkyrie.domain import ExitReason, content_digest
from valkyrie.errors import AgentError, UserError
from valkyrie.text import did_you_mean
from valkyrie.trajectory.records import from_record, to_record
from valkyrie.trajectory.transcript import Event, Json, Transcript, measured

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
    """Return where the fixture of a stimulus stands, below the workspace."""
    return f"{FOLDER}/{stimulus}.json"


def parse_fixture(text: str | bytes, where: str) -> Json:
    """The JSON of a fixture file."""
    try:
        found = json.loads(text[: MOST_BYTES + 1])
    except (ValueError, RecursionError) as error:
        raise FixtureError(f"{where}: no JSON ({error}).") from None
    return _object(found, where)


def read_fixture(data: Any, where: str, *, trial: int = 0) -> Fixture:
    """Return what the fixture says of this trial (from 0); `trials` beyond its last repeat the last."""
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
        return (_fixture_turn({key: data[key] for key in ("output", "events") if key in data}, where),)
    if "output" in data or "events" in data:
        raise FixtureError(f"{where}: output and events stand in each of its turns, or turns is left out.")
    turns = _list(data["turns"], f"{where}.turns")
    return tuple(_fixture_turn(turn, f"{where}.turns[{at}]") for at, turn in enumerate(turns))


def _fixture_turn(data: Any, where: str) -> FixtureTurn:
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


# The agent `mock`: it says what it was told, or does what a fixture says. No process, no model, no key.

GIVEN = "mock_fixture"
"""In a task's metadata: the fixture as parsed JSON; without it the workspace is looked into."""
STIMULUS = "stimulus"
"""In a task's metadata: its name in the spec; a task without one goes by its id."""


class Mock(NeedsNothing):
    """Answers each turn with its own words, or with a fixture's; any model's name is taken."""

    name = "mock"
    capabilities = AgentCapabilities(converses=True, takes_mcp=True, takes_skills=True)
    """Every spec can be tried with it; it calls no server."""

    @property
    def digest(self) -> str:
        return content_digest(["catalog", self.name, self._options.model])

    async def run(self, trial: AgentTrial) -> AgentExit:
        fixture = await _fixture(trial)
        began = datetime.now(UTC)
        _fail(fixture, trial.attempt)
        limit = trial.task.timeouts.agent
        late = limit is not None and fixture.delay > limit
        if fixture.delay:
            await asyncio.sleep(limit if late and limit is not None else fixture.delay)
        await _write_files(fixture, trial)
        told = _told(fixture, trial.turns, began, self._options.model)
        if late:
            return AgentExit(TIMEOUT_EXIT_CODE, ExitReason.TIMEOUT, told=replace(told, end_reason="timeout"))
        if fixture.error is not None and _fails(fixture, trial.attempt):
            return AgentExit(1, trouble=Trouble("model_unreachable", fixture.error.message), told=told)
        return AgentExit(fixture.exit_code, usage=_usage(fixture, told), told=told)


async def _fixture(trial: AgentTrial) -> Fixture:
    """Return what the benchmark gives, or what lies in the workspace; without either it echoes."""
    task = trial.task
    name = str(task.metadata.get(STIMULUS, task.id))
    where = fixture_path(name)
    data = task.metadata.get(GIVEN)
    if data is None and "/" not in name:
        try:
            data = parse_fixture(await trial.sandbox.download_file(f"{task.cwd}/{where}"), where)
        except SandboxFileNotFoundError:
            data = None
    return Fixture() if data is None else read_fixture(data, where, trial=trial.k)


async def _write_files(fixture: Fixture, trial: AgentTrial) -> None:
    """Those of the trial at its beginning, those of each turn in it."""
    last = len(trial.turns) - 1
    for number in range(last + 1):
        own = fixture.turns[number].files if number < len(fixture.turns) else {}
        for path, text in (own if number else {**fixture.files, **own}).items():
            await trial.sandbox.upload_file(f"{trial.task.cwd}/{path}", text.encode())
        if number < last:
            await trial.turn_ended(number)


def _fails(fixture: Fixture, attempt: int) -> bool:
    error = fixture.error
    return error is not None and (error.times is None or attempt <= error.times)


def _fail(fixture: Fixture, attempt: int) -> None:
    """An error that may pass is the model's, and told by the exit; any other ends the trial here."""
    if fixture.error and not fixture.error.retryable and _fails(fixture, attempt):
        raise AgentError(fixture.error.message)


def _told(fixture: Fixture, turns: tuple[str, ...], began: datetime, model: str | None) -> Transcript:
    events: list[Event] = []
    output, when = "", began.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    for number, said in enumerate(turns):
        scripted = fixture.turns[number] if number < len(fixture.turns) else None
        output = said if scripted is None or scripted.output is None else scripted.output
        events += _turn(number, said, output, scripted.events if scripted else (), when)
    ended = began + timedelta(seconds=fixture.delay)
    measures = measured(events, wall_time_ms=(datetime.now(UTC) - began).total_seconds() * 1000)
    told = Transcript(
        output=output,
        events=tuple(events),
        measures=measures,
        model=model,
        executor="mock",
        started_at=when,
        completed_at=ended.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    )
    return _with_metrics(told, fixture.metrics) if fixture.metrics else told


def _turn(number: int, said: str, output: str, scripted: tuple[Event, ...], when: str) -> Iterator[Event]:
    turn = {"turnId": str(number)}
    yield Event("turn_start", turn, when)
    yield Event("user_message", {"content": said, **turn}, when)
    for event in scripted:
        numbered = event.type in ("tool_call", "tool_result") and "turnId" not in event.data
        yield replace(
            event, data={**event.data, **turn} if numbered else event.data, timestamp=event.timestamp or when
        )
    if not any(
        event.type == "assistant_message" and event.data.get("content") == output for event in scripted
    ):
        yield Event("assistant_message", {"content": output}, when)
    yield Event("turn_end", turn, when)


def _with_metrics(told: Transcript, metrics: Mapping[str, Any]) -> Transcript:
    """Numbers of the fixture over those that were counted."""
    record = to_record(told, id="", stimulus="", work_dir="")
    counted = record["metrics"]
    usage = {**counted["tokenUsage"], **metrics.get("tokenUsage", {})}
    if "totalTokens" not in metrics.get("tokenUsage", {}):
        usage.pop("totalTokens")
    return from_record({**record, "metrics": {**counted, **metrics, "tokenUsage": usage}})


def _usage(fixture: Fixture, told: Transcript) -> AgentUsage | None:
    """Return what a fixture says was used; an echo used nothing."""
    used = told.measures
    if not fixture.metrics and not used.total_tokens:
        return None
    return AgentUsage(
        input_tokens=used.input_tokens,
        cached_tokens=used.cache_read_tokens,
        output_tokens=used.output_tokens,
        cost=used.cost,
        cost_source=None if used.cost is None else "agent",
        model=told.model,
        steps=used.turn_count,
    )

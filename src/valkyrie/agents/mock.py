"""The agent `mock`: it says what it was told, or does what a fixture says. No process, no model, no key."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sandboxes.errors import SandboxFileNotFoundError
from sandboxes.values import TIMEOUT_EXIT_CODE
from valkyrie.agents.catalog import NeedsNothing
from valkyrie.agents.fixtures import Fixture, fixture_path, parse_fixture, read_fixture
from valkyrie.agents.protocol import AgentExit, AgentTrial, Trouble, Usage
from valkyrie.digest import content_digest
from valkyrie.errors import AgentError
from valkyrie.nouns import ExitReason
from valkyrie.trajectory.measuring import measured
from valkyrie.trajectory.records import from_record, to_record
from valkyrie.trajectory.transcript import Event, Transcript

GIVEN = "mock_fixture"
"""In a task's metadata: the fixture as parsed JSON; without it the workspace is looked into."""
STIMULUS = "stimulus"
"""In a task's metadata: its name in the spec; a task without one goes by its id."""


class Mock(NeedsNothing):
    """Answers each turn with its own words, or with a fixture's; any model's name is taken."""

    name = "mock"
    converses = True
    takes_mcp = True
    """Every spec can be tried with it; it calls no server."""
    takes_skills = True

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
    """What the benchmark gives, or what lies in the workspace; without either it echoes."""
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


def _usage(fixture: Fixture, told: Transcript) -> Usage | None:
    """What a fixture says was used; an echo used nothing."""
    used = told.measures
    if not fixture.metrics and not used.total_tokens:
        return None
    return Usage(
        input_tokens=used.input_tokens,
        cached_tokens=used.cache_read_tokens,
        output_tokens=used.output_tokens,
        cost=used.cost,
        cost_source=None if used.cost is None else "agent",
        model=told.model,
        steps=used.turn_count,
    )

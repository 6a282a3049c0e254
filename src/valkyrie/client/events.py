"""Events of a run or job as they happen, through restarts of the tracker."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from valkyrie.client.connection import Call, Connection, path
from valkyrie.client.faults import BusyError, TrackerUnreachableError, strange, unreachable
from valkyrie.client.lines import Message, messages
from valkyrie.client.retries import Silence, TrackerRetries
from valkyrie.job_views import JobView
from valkyrie.views import RunView, TrialView

SILENCE_S = 45.0
"""The tracker says something every 15 s, if only that it lives."""


@dataclass(frozen=True, slots=True)
class RunChanged:
    """The run as it stands now; all its trials' changes up to this version were told before."""

    version: int
    run: RunView


@dataclass(frozen=True, slots=True)
class TrialChanged:
    """One trial as it stands now."""

    version: int
    trial: TrialView


RunEvent = RunChanged | TrialChanged
Event = TypeVar("Event")


async def run_events(
    connection: Connection, ref: str, *, trials: bool, after: int | None
) -> AsyncGenerator[RunEvent, None]:
    """Events until the run ended."""
    wanted = [("trials", "true" if trials else "false")]
    call = Call("GET", path("runs", ref, "events"), params=wanted)
    events: AsyncGenerator[RunEvent, None] = _events(connection, call, _run_event, after)
    async with aclosing(events) as found:
        async for event in found:
            yield event


async def job_events(connection: Connection, ref: str, *, after: int | None) -> AsyncGenerator[JobView, None]:
    """Yield the job after every change, until it ended."""
    call = Call("GET", path("jobs", ref, "events"))
    async with aclosing(_events(connection, call, _job_event, after)) as found:
        async for job in found:
            yield job


async def _events(
    connection: Connection, call: Call, read: Callable[[Connection, Message], Event | None], after: int | None
) -> AsyncGenerator[Event, None]:
    """Events until the end. A lost connection is made again and goes on after the last whole version.

    What was told of a version that was not told to its end is told again, so a trial's event may come twice.
    """
    retries = TrackerRetries(connection.limits)
    last: object = None
    cut = False
    while True:
        silence: Silence
        try:
            async with aclosing(_listen(connection, call, after)) as heard:
                async for message in heard:
                    retries.heard()
                    if cut:
                        cut = False
                        connection.on_line(None)
                    if message is None:
                        continue
                    if message.kind == "end":
                        return
                    event = read(connection, message)
                    if isinstance(event, RunChanged | JobView):
                        after = event.version
                        if last == event:
                            continue
                        last = event
                    if event:
                        yield event
            silence = unreachable(connection.url, "it closed the stream of events", sent=False)
        except (TrackerUnreachableError, BusyError) as error:
            silence = error
        if not cut:
            cut = True
            connection.on_line(str(silence.error if isinstance(silence, BusyError) else silence))
        await retries.pause(silence)


async def _listen(
    connection: Connection, call: Call, after: int | None
) -> AsyncGenerator[Message | None, None]:
    headers = {"Accept": "text/event-stream", **({} if after is None else {"Last-Event-ID": str(after)})}
    async with connection.stream(replace(call, headers=headers), silence_s=SILENCE_S) as response:
        try:
            async for message in messages(response.aiter_bytes()):
                yield message
        except ValueError as error:
            raise strange(connection.url, str(error)) from None


def _run_event(connection: Connection, message: Message) -> RunEvent | None:
    """A message as an event; kinds a later version may add are passed over."""
    if message.kind not in ("run", "trial"):
        return None
    version, data = _read(connection, message)
    if message.kind == "run":
        return RunChanged(version, connection.view(RunView, data))
    return TrialChanged(version, connection.view(TrialView, data))


def _job_event(connection: Connection, message: Message) -> JobView | None:
    if message.kind != "job":
        return None
    return connection.view(JobView, _read(connection, message)[1])


def _read(connection: Connection, message: Message) -> tuple[int, Any]:
    try:
        return int(message.id or ""), json.loads(message.data)
    except ValueError:
        raise strange(connection.url, "an event that cannot be read") from None

"""A run's events as they happen, through restarts of the tracker."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from valkyrie.client.connection import Call, Connection, path
from valkyrie.client.faults import BusyError, TrackerUnreachableError, strange, unreachable
from valkyrie.client.lines import Message, messages
from valkyrie.client.patience import Patience, Silence
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


async def run_events(
    connection: Connection, ref: str, *, trials: bool, after: int | None
) -> AsyncGenerator[RunEvent, None]:
    """Events until the run ended. A lost connection is made again and goes on after the last whole version.

    What was told of a version that was not told to its end is told again, so a trial's event may come twice.
    """
    patience = Patience(connection.limits)
    last: RunChanged | None = None
    while True:
        silence: Silence
        try:
            async with aclosing(_listen(connection, ref, trials, after)) as heard:
                async for message in heard:
                    patience.heard()
                    if message is None:
                        continue
                    if message.kind == "end":
                        return
                    event = _event(connection, message)
                    if isinstance(event, RunChanged):
                        after = event.version
                        if last and last.run == event.run:
                            continue
                        last = event
                    if event:
                        yield event
            silence = unreachable(connection.url, "it closed the stream of events", sent=False)
        except (TrackerUnreachableError, BusyError) as error:
            silence = error
        await patience.bear(silence)


async def _listen(
    connection: Connection, ref: str, trials: bool, after: int | None
) -> AsyncGenerator[Message | None, None]:
    call = Call(
        "GET",
        path("runs", ref, "events"),
        params=[("trials", "true" if trials else "false")],
        headers={"Accept": "text/event-stream", **({} if after is None else {"Last-Event-ID": str(after)})},
    )
    async with connection.stream(call, silence_s=SILENCE_S) as response:
        try:
            async for message in messages(response.aiter_bytes()):
                yield message
        except ValueError as error:
            raise strange(connection.url, str(error)) from None


def _event(connection: Connection, message: Message) -> RunEvent | None:
    """A message as an event; kinds a later version may add are passed over."""
    if message.kind not in ("run", "trial"):
        return None
    try:
        data: Any = json.loads(message.data)
        version = int(message.id or "")
    except ValueError:
        raise strange(connection.url, "an event that cannot be read") from None
    if message.kind == "run":
        return RunChanged(version, connection.view(RunView, data))
    return TrialChanged(version, connection.view(TrialView, data))

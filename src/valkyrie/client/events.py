"""Events and logs of runs and jobs as they grow, through restarts of the tracker."""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from valkyrie.client.connection import (
    BusyError,
    Connection,
    Silence,
    TrackerCall,
    TrackerRetries,
    TrackerUnreachableError,
    strange,
    unreachable,
)
from valkyrie.views import LogLine, RunView, TrialView
from valkyrie.views.jobs import JobView

LONGEST_LINE = 64 << 20


@dataclass(frozen=True, slots=True)
class Message:
    """One server-sent event."""

    kind: str
    data: str
    id: str | None
    """Of this event; None when it has none of its own."""


async def lines(pieces: AsyncIterator[bytes]) -> AsyncGenerator[str, None]:
    """Lines without their ends. Only `\\n` ends one: texts may hold what Python takes for line breaks."""
    held = bytearray()
    async for piece in pieces:
        held += piece
        if b"\n" in piece:
            *whole, rest = held.split(b"\n")
            held = bytearray(rest)
            for line in whole:
                yield line.removesuffix(b"\r").decode("utf-8", "replace")
        elif len(held) > LONGEST_LINE:
            raise ValueError(f"a line longer than {LONGEST_LINE:,} bytes")
    if held:
        yield held.decode("utf-8", "replace")


async def messages(pieces: AsyncIterator[bytes]) -> AsyncGenerator[Message | None, None]:
    """Server-sent events; None for a comment, which says that the other side lives.

    An event that was cut off before its empty line is not given.
    """
    kind = "message"
    data: list[str] = []
    number: str | None = None
    async for line in lines(pieces):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield Message(kind, "\n".join(data), number)
            kind, data, number = "message", [], None
        elif not name:
            yield None
        elif name == "event":
            kind = value
        elif name == "data":
            data.append(value)
        elif name == "id":
            number = value


async def text(pieces: AsyncIterator[bytes]) -> AsyncGenerator[str, None]:
    """Characters; one that is cut in two waits for its other half."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    async for piece in pieces:
        if found := decoder.decode(piece):
            yield found
    if rest := decoder.decode(b"", True):
        yield rest


# Events of a run or job as they happen, through restarts of the tracker.

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


async def stream_events(
    connection: Connection,
    call: TrackerCall,
    read: Callable[[Connection, Message], Event | None],
    after: int | None,
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
    connection: Connection, call: TrackerCall, after: int | None
) -> AsyncGenerator[Message | None, None]:
    headers = {"Accept": "text/event-stream", **({} if after is None else {"Last-Event-ID": str(after)})}
    async with connection.stream(replace(call, headers=headers), silence_s=SILENCE_S) as response:
        try:
            async for message in messages(response.aiter_bytes()):
                yield message
        except ValueError as error:
            raise strange(connection.url, str(error)) from None


def read_run_event(connection: Connection, message: Message) -> RunEvent | None:
    """A message as an event; kinds a later version may add are passed over."""
    if message.kind not in ("run", "trial"):
        return None
    version, data = _read(connection, message)
    if message.kind == "run":
        return RunChanged(version, connection.view(RunView, data))
    return TrialChanged(version, connection.view(TrialView, data))


def read_job_event(connection: Connection, message: Message) -> JobView | None:
    if message.kind != "job":
        return None
    return connection.view(JobView, _read(connection, message)[1])


def _read(connection: Connection, message: Message) -> tuple[int, Any]:
    try:
        return int(message.id or ""), json.loads(message.data)
    except ValueError:
        raise strange(connection.url, "an event that cannot be read") from None


# Logs as they grow, through restarts of the tracker: what was given once is not given again.

Piece = TypeVar("Piece")


class ReadPosition:
    """How much of a text was given; asked for again, it begins anew from its first character."""

    def __init__(self) -> None:
        self._given = 0
        self._position = 0

    def begin(self) -> None:
        self._position = 0

    def fresh(self, found: str) -> str:
        """Return what of the next piece was not given before."""
        known = max(0, self._given - self._position)
        self._position += len(found)
        self._given = max(self._given, self._position)
        return found[known:]


async def log_text(connection: Connection, call: TrackerCall) -> AsyncGenerator[str, None]:
    given = ReadPosition()

    async def read(pieces: AsyncIterator[bytes]) -> AsyncGenerator[str, None]:
        given.begin()
        async for found in text(pieces):
            if fresh := given.fresh(found):
                yield fresh

    async with aclosing(_persist(connection, call, read)) as found:
        async for piece in found:
            yield piece


async def log_lines(connection: Connection, call: TrackerCall) -> AsyncGenerator[LogLine, None]:
    """Lines of many attempts' logs, in the order they come; those of one attempt are always in order."""
    given: Counter[tuple[str, int, int]] = Counter()

    async def read(pieces: AsyncIterator[bytes]) -> AsyncGenerator[LogLine, None]:
        seen: Counter[tuple[str, int, int]] = Counter()
        async for line in lines(pieces):
            if not line.strip():
                continue
            piece = _piece(connection, line)
            attempt = piece.task_id, piece.k, piece.attempt
            seen[attempt] += 1
            if seen[attempt] > given[attempt]:
                given[attempt] += 1
                yield piece

    async with aclosing(_persist(connection, call, read)) as found:
        async for piece in found:
            yield piece


async def _persist(
    connection: Connection,
    call: TrackerCall,
    read: Callable[[AsyncIterator[bytes]], AsyncGenerator[Piece, None]],
) -> AsyncGenerator[Piece, None]:
    """Yield the same question again and again, until an answer was read to its end."""
    retries = TrackerRetries(connection.limits)
    while True:
        try:
            # A log may be silent as long as its agent is.
            async with connection.stream(call, silence_s=None) as response:
                retries.heard()
                async with aclosing(read(response.aiter_bytes())) as found:
                    async for piece in found:
                        yield piece
            return
        except (TrackerUnreachableError, BusyError) as error:
            await retries.pause(error)


def _piece(connection: Connection, line: str) -> LogLine:
    try:
        return connection.view(LogLine, json.loads(line))
    except ValueError:
        raise strange(connection.url, "a line of a log that cannot be read") from None

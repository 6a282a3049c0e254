"""One watcher's event stream, sent no faster than it is taken, and what the event routes share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from fastapi import Depends, Header, Query
from starlette.datastructures import Headers
from starlette.responses import Response

from valkyrie.api.context import ApiRequest, is_welcome
from valkyrie.api.hub import Kind
from valkyrie.api.routes import errors
from valkyrie.api.streams import PIECE_BYTES, STREAMED, StuckError, cut, send_within, until_disconnected
from valkyrie.errors import UsageError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from valkyrie.api.context import Context
    from valkyrie.api.hub import EventChannel
    from valkyrie.domain import Identity


LARGEST_VERSION = 1 << 53
KEEP_ALIVE = b": keep-alive\n\n"
_PACE_S = 0.0002
"""Pause between two large pieces, for each one who watches."""


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """What one watcher asked for."""

    identity: Identity
    kind: Kind
    subject: str
    """The id of the run or job."""
    after: int = 0
    """The version they have seen; 0: nothing."""
    trials: bool = False
    """Also every trial of a run."""


def last_seen(after: int | None, last_event_id: str | None) -> int:
    """The version a watcher has seen, as it was told in the query or, which wins, in the header."""
    if not last_event_id:
        return after or 0
    if not last_event_id.isdecimal() or int(last_event_id) > LARGEST_VERSION:
        raise UsageError("Last-Event-ID is the id of an event of this stream: a whole number.")
    return int(last_event_id)


def cut_to_size(pieces: list[bytes]) -> Iterator[bytes]:
    """Small pieces as one, large ones in parts: neither many sends, nor a copy of much for every watcher."""
    if sum(map(len, pieces)) <= PIECE_BYTES:
        yield b"".join(pieces)
        return
    for piece in pieces:
        for start in range(0, len(piece), PIECE_BYTES):
            yield piece[start : start + PIECE_BYTES]


class Seen(NamedTuple):
    """How far a watcher has come."""

    number: int
    """The update."""
    version: int


class EventStream(Response):
    """`text/event-stream` of one run or job, until it ended or the watcher went away."""

    media_type = "text/event-stream"

    def __init__(self, context: Context, watch: WatchRequest) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.headers["x-accel-buffering"] = "no"
        self._context = context
        self._watch = watch
        self._woken = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[STREAMED] = True
        gone = asyncio.ensure_future(until_disconnected(receive))
        gone.add_done_callback(lambda _: self._woken.set())
        try:
            with self._context.lanes.watchers.seat():
                await self._send(scope, send, gone)
        except StuckError:
            cut(scope)
        finally:
            gone.cancel()

    async def _send(self, scope: Scope, send: Send, gone: asyncio.Future[None]) -> None:
        stuck_s = self._context.settings.stuck_s
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with contextlib.aclosing(self._news(Headers(scope=scope))) as news:
            async for pieces in news:
                for number, piece in enumerate(cut_to_size(pieces)):
                    if number:
                        # Many who begin to watch at once are given much; others are answered meanwhile.
                        await asyncio.sleep(_PACE_S * self._context.hub.watchers)
                    await send_within(stuck_s, send, piece)
                if gone.done():
                    break
        await send_within(stuck_s, send, b"", more=False)

    async def _news(self, headers: Headers) -> AsyncGenerator[list[bytes]]:
        """Yield what to send, as it comes: trials first, then the whole; a comment when nothing comes."""
        watch, hub = self._watch, self._context.hub
        async with hub.watching(watch, self._woken) as channel:
            seen: Seen | None = None
            while True:
                self._woken.clear()
                if channel.empty or (seen and seen.number == channel.latest.number):
                    yield [KEEP_ALIVE]
                else:
                    pieces, seen = await self._unseen(channel, seen)
                    yield pieces
                caught_up = channel.empty or (seen is not None and seen.number == channel.latest.number)
                if hub.closing or (channel.ended and caught_up):
                    return
                if not await is_welcome(self._context.door, headers, watch.identity):
                    return
                await self._wait()

    async def _unseen(self, channel: EventChannel, seen: Seen | None) -> tuple[list[bytes], Seen]:
        """Events the watcher has not seen, and how far it has come with them."""
        trials = channel.trials_after(seen.number) if seen and self._watch.trials else []
        if trials is None or (seen is None and self._watch.trials):
            caught = await channel.catch_up(seen.version if seen else self._watch.after)
            later = channel.trials_after(caught.number)
            if later is None:
                self._woken.set()  # too much has changed meanwhile: there is more to catch up with
                return [caught.trials], Seen(caught.number, caught.version)
            trials = [caught.trials, *later]
        latest = channel.latest
        return [*trials, latest.whole], Seen(latest.number, latest.version)

    async def _wait(self) -> None:
        """Return when there is something new, or nothing was for so long that it must be said."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._context.settings.keep_alive_s):
                await self._woken.wait()


# What the event routes of all nouns share.


async def _seen(
    after: Annotated[
        int | None, Query(description="The version you have seen.", ge=0, le=LARGEST_VERSION)
    ] = None,
    last_event_id: Annotated[
        str | None, Header(description="The same; wins over `after`.", max_length=32)
    ] = None,
) -> int:
    return last_seen(after, last_event_id)


LastSeen = Annotated[int, Depends(_seen)]
"""The version a watcher has seen; 0 is nothing."""


def described(words: str) -> dict[str, Any]:
    """Return how an event route is declared, with what its events are."""
    stream = {"content": {"text/event-stream": {}}, "description": words}
    return {"responses": {200: stream, **errors(400, 404)}, "response_class": Response}


async def watched(ask: ApiRequest, kind: Kind, ref: str, seen: int, *, trials: bool = False) -> EventStream:
    """The events of what `ref` names to the caller, from what they have seen on."""
    subject = await ask.find(kind, ref)
    return EventStream(ask.context, WatchRequest(ask.identity, kind, subject, seen, trials))

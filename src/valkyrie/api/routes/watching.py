"""What the event routes of all nouns share."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Header, Query
from starlette.responses import Response

from valkyrie.api.context import Asking
from valkyrie.api.events import LARGEST_VERSION, EventStream, Watch, last_seen
from valkyrie.api.routes import errors
from valkyrie.api.subjects import Kind


async def _seen(
    after: Annotated[
        int | None, Query(description="The version you have seen.", ge=0, le=LARGEST_VERSION)
    ] = None,
    last_event_id: Annotated[
        str | None, Header(description="The same; wins over `after`.", max_length=32)
    ] = None,
) -> int:
    return last_seen(after, last_event_id)


Seen = Annotated[int, Depends(_seen)]
"""The version a watcher has seen; 0 is nothing."""


def described(words: str) -> dict[str, Any]:
    """How an event route is declared, with what its events are."""
    stream = {"content": {"text/event-stream": {}}, "description": words}
    return {"responses": {200: stream, **errors(400, 404)}, "response_class": Response}


async def watched(ask: Asking, kind: Kind, ref: str, seen: int, *, trials: bool = False) -> EventStream:
    """The events of what `ref` names to the caller, from what they have seen on."""
    subject = await ask.find(kind, ref)
    return EventStream(ask.context, Watch(ask.identity, kind, subject, seen, trials))

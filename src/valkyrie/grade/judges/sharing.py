"""One client for all judges of an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from sandboxes.retry import Backoff
from valkyrie.grade.judges.client import BACKOFF, JudgeClient


@dataclass(slots=True)
class _Shared:
    client: JudgeClient
    users: int = 0


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()


@asynccontextmanager
async def shared_client(backoff: Backoff = BACKOFF) -> AsyncIterator[JudgeClient]:
    """The client of this event loop: opened by the first who asks, closed by the last who leaves.

    Who runs many trials holds it around them, so that connections last from one judge to the next. The
    back-off is that of who opens it.
    """
    loop = asyncio.get_running_loop()
    shared = _clients.get(loop)
    if shared is None:
        shared = _clients[loop] = _Shared(JudgeClient(backoff=backoff).opened())
    shared.users += 1
    try:
        yield shared.client
    finally:
        shared.users -= 1
        if not shared.users:
            del _clients[loop]
            await shared.client.close()

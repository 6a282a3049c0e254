"""Blocking calls of vendors' SDKs, kept off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from sandboxes.threads import uninterrupted

P = ParamSpec("P")
T = TypeVar("T")


async def run_blocking(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `call` in a thread. A cancelled caller is cancelled only once the call has ended.

    A thread cannot be interrupted: returning earlier would let the caller close what it still uses.
    """
    return await uninterrupted(asyncio.to_thread(call, *args, **kwargs))

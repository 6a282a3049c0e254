"""Connections to a service that somebody elsewhere named: only to where they may lead us."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from valkyrie.benchmarks.service.address import Reach
from valkyrie.config import tracker_networks
from valkyrie.targets import TargetError, connectable


def guard(reach: Reach) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    """Looks a host up for each new connection and gives addresses that were checked; OSError for others.

    The address was checked when the run was planned. Its name may lead elsewhere by now, and whoever owns the
    name decides where.
    """

    async def resolve(host: str, port: int) -> Sequence[str]:
        try:
            networks = tracker_networks()
            return await asyncio.to_thread(
                connectable, host, port, allow_local=reach == "loopback", networks=networks
            )
        except TargetError as error:
            raise ConnectionRefusedError(str(error)) from None

    return resolve

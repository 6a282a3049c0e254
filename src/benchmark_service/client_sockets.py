"""A client's WebSocket connections: to the addresses it may use, and never away from its service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import httpx

from benchmark_service.addresses import is_loopback, proxy_for
from benchmark_service.client_http import handshake_redirect
from benchmark_service.wire import Resolve, first_of

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

_OPEN_TIMEOUT_S = 60
_PING_INTERVAL_S = 30
# A service may keep its event loop busy for minutes while it grades; beyond this it counts as dead.
_PING_TIMEOUT_S = 600
# Whoever stops listening does not wait for a peer that goes on talking.
_CLOSE_TIMEOUT_S = 1
# Frames may be large: only a few wait in memory, the rest in the peer's socket.
_MAX_QUEUED_FRAMES = 2


async def open_socket(
    url: str, path: str, headers: Mapping[str, str], *, max_bytes: int, resolve: Resolve | None = None
) -> ClientConnection:
    """A connection to a service's stream, at an address that `resolve` gives if there is one."""
    place = httpx.URL(url)
    if resolve is None or proxy_for(place.scheme, place.host):
        way: dict[str, Any] = {"proxy": None if is_loopback(url) else True}
        return await _connect(url + path, headers, max_bytes, way)
    addresses = await resolve(place.host, place.port or (443 if place.scheme == "https" else 80))
    return await first_of(
        addresses, lambda one: _connect(url + path, headers, max_bytes, {"proxy": None, "host": one})
    )


async def _connect(
    url: str, headers: Mapping[str, str], max_bytes: int, way: Mapping[str, Any]
) -> ClientConnection:
    from websockets.asyncio.client import connect

    class FaithfulConnect(connect):
        def process_redirect(self, exc: Exception) -> Exception | str:
            return handshake_redirect(self.uri, exc) or exc

    return await FaithfulConnect(
        "ws" + url.removeprefix("http"),
        additional_headers=headers,
        open_timeout=_OPEN_TIMEOUT_S,
        ping_interval=_PING_INTERVAL_S,
        ping_timeout=_PING_TIMEOUT_S,
        close_timeout=_CLOSE_TIMEOUT_S,
        max_size=max_bytes,
        max_queue=_MAX_QUEUED_FRAMES,
        compression=None,
        **way,
    )

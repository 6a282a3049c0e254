"""The server: starts, hands out grants, ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sandboxes.protocol import SandboxProvider
from sandboxes.server.access import Access, AccessTable, Grant

if TYPE_CHECKING:
    from sandboxes.server.listener import Listener


class SandboxServer:
    """Offers providers over Daytona's REST on one address, to whoever holds a grant's key.

    `public_url` is what clients are told when they reach the server by another way, such as a tunnel: the
    scheme and host in front of `/api`.
    """

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, public_url: str | None = None) -> None:
        self._host = host
        self._port = port
        self._public_url = None if public_url is None else public_url.rstrip("/").removesuffix("/api")
        self._table = AccessTable()
        self._listener: Listener | None = None
        self._endings: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where clients find the API."""
        return f"{self._base_url()}/api"

    async def start(self) -> None:
        """Bind the address and serve it in the background, until `close`."""
        from sandboxes.server.app import create_app
        from sandboxes.server.listener import Listener

        if self._listener is not None:
            raise RuntimeError("the sandbox server runs already")
        bound = _bind(self._host, self._port)
        self._listener = Listener(create_app(self._table, self._base_url), bound)
        await self._listener.start()

    def grant(
        self,
        provider: SandboxProvider,
        *,
        labels: Mapping[str, str],
        host_image: bool = False,
        max_sandboxes: int = 100,
    ) -> Grant:
        """A key to the provider's sandboxes with these labels, and to make more of them.

        With `host_image` a sandbox that names an image gets the host's own system files instead.
        """
        access = Access(provider, labels, host_image=host_image, max_sandboxes=max_sandboxes)
        return Grant(api_key=self._table.add(access), api_url=self.url)

    def revoke(self, grant: Grant) -> None:
        """Make the key worthless, and end what was done with it. Its sandboxes stay."""
        access = self._table.remove(grant.api_key)
        if access is None:
            return
        ending = asyncio.get_running_loop().create_task(access.end())
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def close(self) -> None:
        """End all streams and sessions, then the server. The providers and their sandboxes stay."""
        listener, self._listener = self._listener, None
        for access in self._table.remove_all():
            await access.end()
        if self._endings:
            await asyncio.wait(self._endings)
        if listener is not None:
            await listener.close()

    def _base_url(self) -> str:
        if self._public_url is not None:
            return self._public_url
        if self._listener is None:
            raise RuntimeError("the sandbox server has no address before it is started")
        return self._listener.url


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(256)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound

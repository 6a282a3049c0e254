"""The server: starts, hands out grants, ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sandboxes.protocol import SandboxProvider
from sandboxes.server.access import Access, AccessTable, Grant

if TYPE_CHECKING:
    from sandboxes.web_listener import Listener

GRACE_SECONDS = 3


class SandboxServer:
    """Offers providers over Daytona's REST on one address, to whoever holds a grant's key.

    `public_url` is what clients are told when they reach the server by another way, such as a tunnel: the
    scheme and host in front of `/api`. A connection on which a request's head is not complete after `head_s`
    seconds is cut.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        public_url: str | None = None,
        head_s: float | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._public_url = None if public_url is None else public_url.rstrip("/").removesuffix("/api")
        self._head_s = head_s
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
        from sandboxes.web_listener import HEAD_S, Listener, bind

        if self._listener is not None:
            raise RuntimeError("the sandbox server runs already")
        self._listener = Listener(
            create_app(self._table, self._base_url),
            bind(self._host, self._port),
            websockets=True,
            grace_s=GRACE_SECONDS,
            head_s=HEAD_S if self._head_s is None else self._head_s,
        )
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

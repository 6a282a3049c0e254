"""A sandbox server on a real provider, and the real SDK as its client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandboxes.protocol import SandboxProvider
from sandboxes.registry import open_provider
from sandboxes.server import Grant, SandboxServer


class Serving:
    """A running server, its provider, and clients that are closed at the end."""

    def __init__(self, server: SandboxServer, provider: SandboxProvider, stack: AsyncExitStack) -> None:
        self.server = server
        self.provider = provider
        self._stack = stack

    def grant(self, run: str = "run-1", **options: Any) -> Grant:
        return self.server.grant(self.provider, labels={"Id": run}, **{"host_image": True, **options})

    async def client(self, grant: Grant | None = None) -> Any:
        from daytona import AsyncDaytona, DaytonaConfig

        grant = grant or self.grant()
        config = DaytonaConfig(api_key=grant.api_key, api_url=grant.api_url, target=grant.target)
        return await self._stack.enter_async_context(AsyncDaytona(config))

    async def sandbox(self, client: Any = None, **params: Any) -> Any:
        from daytona import CreateSandboxFromImageParams

        client = client or await self.client()
        asked = {"image": "ubuntu:24.04", "network_block_all": True, **params}
        return await client.create(CreateSandboxFromImageParams(**asked))

    async def living(self) -> list[str]:
        return [sandbox.id async for sandbox in self.provider.list_sandboxes()]


@asynccontextmanager
async def serving(name: str, state_dir: Path, **options: Any) -> AsyncIterator[Serving]:
    """Skips where the provider cannot work. Every sandbox is gone afterwards."""
    async with open_provider(name, state_dir) as provider:
        problem = provider.capabilities().problem
        if problem is not None:
            pytest.skip(problem)
        server = SandboxServer(**options)
        await server.start()
        try:
            async with AsyncExitStack() as stack:
                yield Serving(server, provider, stack)
        finally:
            await server.close()
            await provider.reap({})


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until an asynchronous condition holds."""
    async with asyncio.timeout(60):
        while not await holds():
            await asyncio.sleep(0.02)

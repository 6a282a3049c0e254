"""The Daytona provider keeps the contract over the wire: its SDK against our own server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandboxes.daytona import DaytonaSandboxProvider, rest
from sandboxes.daytona.sandbox import DaytonaSandbox
from sandboxes.protocol import Sandbox
from sandboxes.testing.contract import ProviderContract
from sandboxes.types import DaytonaProviderConfig, SandboxCreateRequest, SandboxQuery

SERVE = """
import asyncio, json, sys
from pathlib import Path
from sandboxes.registry import open_provider
from sandboxes.server import SandboxServer

async def main():
    name, folder = sys.argv[1:]
    async with open_provider(name, Path(folder)) as provider:
        server = SandboxServer()
        await server.start()
        grant = server.grant(provider, labels={"grant": "contract"})
        print(json.dumps([grant.api_key, grant.api_url, grant.target]), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await provider.reap({})
        await server.close()

asyncio.run(main())
"""


def serve(name: str, folder: Path) -> Iterator[DaytonaProviderConfig]:
    """Our server in a process of its own, as a program elsewhere would meet it."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, name, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        try:
            key, url, target = json.loads(child.stdout.readline())
            yield DaytonaProviderConfig(DAYTONA_API_KEY=key, DAYTONA_API_URL=url, DAYTONA_TARGET=target)
        finally:
            child.stdin.close()
            child.wait(60)


@pytest.fixture(scope="module")
def over_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaytonaProviderConfig]:
    yield from serve("process", tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def over_local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaytonaProviderConfig]:
    yield from serve("local", tmp_path_factory.mktemp("state"))


class DaytonaContract(ProviderContract):
    # Daytona counts memory and disk in whole gigabytes and processes not at all.
    limits_memory = False
    limits_processes = False
    limits_disk = False
    changes_users = False

    @pytest.fixture
    async def provider(self, config: DaytonaProviderConfig) -> AsyncIterator[DaytonaSandboxProvider]:
        async with DaytonaSandboxProvider(config) as provider:
            yield provider
            await provider.reap({})


@pytest.mark.slow
class TestDaytonaOverProcess(DaytonaContract):
    isolates_processes = False
    isolates_network = False

    @pytest.fixture
    def config(self, over_process: DaytonaProviderConfig) -> DaytonaProviderConfig:
        return over_process


@pytest.mark.slow
class TestDaytonaOverLocal(DaytonaContract):
    @pytest.fixture
    def config(self, over_local: DaytonaProviderConfig) -> DaytonaProviderConfig:
        return over_local


class WithoutSdkProvider(DaytonaSandboxProvider):
    """Reaches sandboxes as a service without Daytona's SDK does; the SDK makes and lists them."""

    def __init__(self, config: DaytonaProviderConfig) -> None:
        super().__init__(config)
        self._maker = DaytonaSandboxProvider(config)
        self.__dict__["_daytona"] = rest.AsyncDaytona(config.DAYTONA_API_KEY, config.DAYTONA_API_URL)

    async def create_sandbox(self, request: SandboxCreateRequest) -> Sandbox:
        made = await self._maker.create_sandbox(request)
        try:
            return await self.get_sandbox(made.id)
        except BaseException:
            await asyncio.shield(self._maker.delete_sandbox(made.id))
            raise

    def list_sandboxes(self, query: SandboxQuery | None = None) -> AsyncIterator[DaytonaSandbox]:
        return self._maker.list_sandboxes(query)

    async def close(self) -> None:
        await self._maker.close()
        await super().close()


@pytest.mark.slow
class TestWithoutSdkOverLocal(DaytonaContract):
    @pytest.fixture
    def config(self, over_local: DaytonaProviderConfig) -> DaytonaProviderConfig:
        return over_local

    @pytest.fixture
    async def provider(self, config: DaytonaProviderConfig) -> AsyncIterator[WithoutSdkProvider]:
        async with WithoutSdkProvider(config) as provider:
            yield provider
            await provider.reap({})

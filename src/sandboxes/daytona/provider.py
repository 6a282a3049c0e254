"""Makes, finds and ends Daytona sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC
from functools import cached_property
from secrets import token_hex
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

from sandboxes.daytona import errors, sdk
from sandboxes.daytona.calls import DaytonaBackoff, call
from sandboxes.daytona.creation import Creation
from sandboxes.daytona.sandbox import DaytonaSandbox
from sandboxes.errors import SandboxError, SandboxFileNotFoundError, SandboxNotFoundError
from sandboxes.installation import add_extra
from sandboxes.protocol import Sandbox, SandboxProvider
from sandboxes.threads import uninterrupted
from sandboxes.types import Capabilities, SandboxCreateRequest, SandboxQuery

if TYPE_CHECKING:
    from daytona import AsyncDaytona, AsyncSandbox

    from sandboxes.configs import DaytonaProviderConfig

T = TypeVar("T")

_DELETE_SECONDS = 60.0
"""How long a deletion is repeated while Daytona is busy with the same sandbox."""
_CLOSE_SECONDS = 10.0
"""How long sessions that nobody needs any more are waited for."""
_BUSY = frozenset({400, 409})


class DaytonaSandboxProvider(SandboxProvider):
    """Sandboxes of one Daytona account and region. The SDK is loaded by the first call that needs it."""

    def __init__(self, config: DaytonaProviderConfig, *, backoff: DaytonaBackoff | None = None) -> None:
        self._config = config
        self._backoff = backoff or DaytonaBackoff()
        self._deleted: set[str] = set()
        self._given: WeakSet[DaytonaSandbox] = WeakSet()

    @cached_property
    def _daytona(self) -> AsyncDaytona:
        return sdk.open_client(self._config)

    async def create_sandbox(self, request: SandboxCreateRequest) -> Sandbox:
        await asyncio.to_thread(sdk.load)
        await self._loaded()
        made = await Creation(self._daytona, request, token_hex(8), self._call, self._delete).run()
        sandbox = self._wrap(made)
        if request.source.type != "compose":
            return sandbox
        from sandboxes.compose import ComposeSandbox

        return ComposeSandbox(
            sandbox, service=request.source.service, compose_command=request.source.compose_command
        )

    async def get_sandbox(self, sandbox_id: str) -> DaytonaSandbox:
        sandbox = self._wrap(await self._get(sandbox_id))
        if sandbox.state == "deleted":
            raise SandboxNotFoundError(f"sandbox {sandbox_id} was deleted")
        return sandbox

    async def delete_sandbox(self, sandbox_id: str) -> None:
        try:
            sandbox = await self._get(sandbox_id)
        except SandboxNotFoundError:
            self._deleted.add(sandbox_id)
            return
        await self._delete(sandbox)

    async def list_sandboxes(self, query: SandboxQuery | None = None) -> AsyncIterator[DaytonaSandbox]:
        await asyncio.to_thread(sdk.load)
        await self._loaded()
        query = query or SandboxQuery()
        latest = query.created_at_lte
        if latest is not None and latest.tzinfo is None:
            latest = latest.replace(tzinfo=UTC)
        wanted = sdk.load().ListSandboxesQuery(labels=dict(query.labels) or None, limit=query.page_size)

        async def read_all() -> list[AsyncSandbox]:
            return [found async for found in self._daytona.list(wanted)]

        # Read to the end first: a consumer may delete what it gets, or leave, between two pages.
        for found in await self._call(read_all, "list sandboxes", repeat=True):
            sandbox = self._wrap(found)
            late = latest is not None and sandbox.created_at is not None and sandbox.created_at > latest
            carries = query.labels.items() <= (sandbox.labels or {}).items()
            if carries and not late and sandbox.state != "deleted":
                yield sandbox

    def capabilities(self) -> Capabilities:
        missing = () if sdk.installed() else (("Daytona SDK", add_extra("daytona")),)
        return Capabilities(
            provider="daytona",
            isolation="a machine of Daytona's, reached over the network",
            images=True,
            gpus=True,
            writable_system=True,
            users=False,
            networks=frozenset({"none", "public", "allowlist"}),
            enforcement={
                "cpus": "Daytona, in whole cores",
                "memory": "Daytona, in whole gigabytes",
                "disk": "Daytona, in whole gigabytes",
                "pids": "not enforced",
                "network": "Daytona",
                "processes": "found by a mark in their environment",
            },
            missing=missing,
            problem=None if sdk.installed() else sdk.missing(),
        )

    @property
    def admission_pool_id(self) -> str:
        account = self._config.DAYTONA_ORGANIZATION_ID or "account"
        return f"daytona {self._config.DAYTONA_API_URL} {self._config.DAYTONA_TARGET} {account}"

    async def close(self) -> None:
        client = self.__dict__.pop("_daytona", None)
        if client is not None:
            # Also when cancelled, as the streams of a service are when their client leaves: connections that
            # are half closed stay open.
            await uninterrupted(self._close(client))

    async def _close(self, client: AsyncDaytona) -> None:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await asyncio.gather(*(sandbox.end_sessions() for sandbox in self._given))
        finally:
            await client.close()  # type: ignore[no-untyped-call]
            # aiohttp closes its sockets in the loop's next turn.
            await asyncio.sleep(0)

    async def _loaded(self) -> None:
        if "_daytona" not in self.__dict__:
            await asyncio.to_thread(sdk.preload)

    def _wrap(self, sandbox: AsyncSandbox) -> DaytonaSandbox:
        made = DaytonaSandbox(sandbox, config=self._config, deleted=self._deleted, backoff=self._backoff)
        self._given.add(made)
        return made

    async def _get(self, sandbox_id: str) -> AsyncSandbox:
        if sandbox_id in self._deleted:
            raise SandboxNotFoundError(f"sandbox {sandbox_id} was deleted")
        await self._loaded()
        try:
            return await self._call(
                lambda: self._daytona.get(sandbox_id), f"find sandbox {sandbox_id}", repeat=True
            )
        except SandboxFileNotFoundError as error:
            raise SandboxNotFoundError(f"no sandbox {sandbox_id}") from error

    async def _delete(self, sandbox: AsyncSandbox) -> None:
        try:
            async with asyncio.timeout(_DELETE_SECONDS):
                await self._delete_when_idle(sandbox)
        except TimeoutError:
            raise SandboxError(f"cannot delete sandbox {sandbox.id}: Daytona is busy with it") from None
        self._deleted.add(str(sandbox.id))

    async def _delete_when_idle(self, sandbox: AsyncSandbox) -> None:
        delay = 0.1
        while True:
            try:
                await self._call(
                    lambda: self._daytona.delete(sandbox), f"delete sandbox {sandbox.id}", repeat=True
                )
            except SandboxFileNotFoundError:
                return
            except SandboxError as error:
                cause = error.__cause__
                if cause is None or errors.status_of(cause) not in _BUSY:
                    raise
                await asyncio.sleep(delay)
                delay = min(delay * 2, 5.0)
            else:
                return

    async def _call(self, action: Callable[[], Awaitable[T]], what: str, *, repeat: bool) -> T:
        async def judge(error: BaseException, what: str) -> SandboxError:
            return errors.translated(error, what)

        return await call(action, what, judge, self._backoff, repeat=repeat)

"""Make, find and end Daytona sandboxes, so that nothing is left behind when making one fails."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC
from functools import cached_property
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakSet

from sandboxes.compose import ComposeSandbox
from sandboxes.daytona import sdk
from sandboxes.daytona.sandbox import DaytonaSandbox
from sandboxes.daytona.sdk import DaytonaBackoff, call
from sandboxes.errors import (
    SandboxConnectionError,
    SandboxError,
    SandboxFileNotFoundError,
    SandboxNotFoundError,
    SandboxUnsupportedError,
)
from sandboxes.protocol import Sandbox, SandboxProvider
from sandboxes.registry import add_extra
from sandboxes.scripted_sandbox import check_names
from sandboxes.streams import uninterrupted
from sandboxes.types import Capabilities, SandboxCreateRequest, SandboxQuery

if TYPE_CHECKING:
    from daytona import (
        AsyncDaytona,
        AsyncSandbox,
        CreateSandboxFromImageParams,
        CreateSandboxFromSnapshotParams,
    )
    from daytona import Resources as DaytonaResources

    from sandboxes.types import DaytonaProviderConfig, SandboxSource


MADE_LABEL = "valkyrie-creation"
"""Carries a name nobody else uses, so that what a lost answer left behind is found."""
IDLE_MINUTES = 24 * 60
"""How long a sandbox may be idle when the request does not say; a silent command counts as idle."""


def creation_parameters(
    request: SandboxCreateRequest, made: str
) -> CreateSandboxFromImageParams | CreateSandboxFromSnapshotParams:
    """Return what to hand to the SDK's `create`."""
    module = sdk.load()
    check_names(request.env_vars)
    stop = IDLE_MINUTES if request.auto_stop_interval is None else request.auto_stop_interval
    common: dict[str, Any] = {
        "name": request.name,
        "labels": {**request.labels, MADE_LABEL: made},
        "env_vars": dict(request.env_vars),
        "auto_stop_interval": stop,
        "auto_delete_interval": 0,
        # A list of hosts is set afterwards; until then nothing gets out.
        "network_block_all": request.network_policy != "public",
    }
    source: SandboxSource = request.source.outer if request.source.type == "compose" else request.source
    if source.type == "image":
        resources = _resources(request)
        from_image: CreateSandboxFromImageParams = module.CreateSandboxFromImageParams(
            **common, image=source.image, resources=resources
        )
        return from_image
    if source.type == "snapshot":
        common["snapshot"] = source.snapshot
    elif source.type == "targeted_snapshot":
        common |= {"snapshot": source.snapshot, "target": source.target}
    elif source.type == "host" and source.rootfs is not None:
        raise SandboxUnsupportedError(
            "provider 'daytona' cannot use a folder of this host as root; give an image or a snapshot"
        )
    from_snapshot: CreateSandboxFromSnapshotParams = module.CreateSandboxFromSnapshotParams(**common)
    return from_snapshot


def _resources(request: SandboxCreateRequest) -> DaytonaResources | None:
    limits = request.effective_limits
    asked = request.resources
    made: DaytonaResources = sdk.load().Resources(
        cpu=_whole(limits.cpus),
        memory=_whole(None if limits.memory_mb is None else limits.memory_mb / 1024),
        disk=_whole(None if limits.disk_mb is None else limits.disk_mb / 1024),
        gpu=limits.gpus or None,
        gpu_type=_gpu_type(asked.gpu_type) if asked is not None and asked.gpu_type else None,
    )
    nothing = (made.cpu, made.memory, made.disk, made.gpu) == (None, None, None, None)
    return None if nothing else made


def _gpu_type(name: str) -> Any:
    # Called with a value it does not know, the SDK's enum makes one up.
    kinds = {kind.value: kind for kind in sdk.load().GpuType if "unknown" not in kind.value}
    if name not in kinds:
        raise SandboxError(f"Daytona has no GPU {name!r}; it has {', '.join(kinds)}")
    return kinds[name]


def _whole(amount: float | None) -> int | None:
    """Daytona counts in whole cores and gigabytes; part of one takes the whole."""
    return None if amount is None else max(1, math.ceil(amount))


# Making one sandbox so that nothing is left behind when it fails, is cancelled, or the answer is lost.

T = TypeVar("T")

UNDO_SECONDS = 30.0
"""How long a cancelled creation may still take before it is looked for instead."""
_UNUSABLE = frozenset({"destroyed", "destroying", "error", "build_failed"})


class SdkCaller(Protocol):
    """The provider's way to call the SDK."""

    async def __call__(self, action: Callable[[], Awaitable[T]], what: str, *, repeat: bool) -> T: ...


class SandboxCreation:
    """One try; `made` is a name nobody else uses."""

    def __init__(
        self,
        daytona: AsyncDaytona,
        request: SandboxCreateRequest,
        made: str,
        call: SdkCaller,
        delete: Callable[[AsyncSandbox], Awaitable[None]],
    ) -> None:
        self._daytona = daytona
        self._request = request
        self._made = made
        self._call = call
        self._delete = delete

    async def run(self) -> AsyncSandbox:
        """A started sandbox that is ours."""
        task = asyncio.ensure_future(self._create())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await uninterrupted(self._undo(task))
            raise
        except SandboxConnectionError:
            # The answer got lost, maybe not the request.
            found = await self._find()
            if found is None:
                raise
            return await self._started(found)
        except SandboxError as error:
            if sdk.status_of(error.__cause__ or error) == 409 and self._request.name:
                adopted = await self._adopt(self._request.name)
                if adopted is not None:
                    return adopted
            await uninterrupted(self._sweep())
            raise

    async def _create(self) -> AsyncSandbox:
        request = self._request
        what = f"create sandbox {request.name or ''}".rstrip()
        params: Any = creation_parameters(request, self._made)
        return await self._call(
            lambda: self._daytona.create(params, timeout=request.create_timeout), what, repeat=False
        )

    async def _started(self, sandbox: AsyncSandbox) -> AsyncSandbox:
        await self._call(
            lambda: sandbox.wait_for_sandbox_start(timeout=self._request.create_timeout),
            f"start sandbox {sandbox.id}",
            repeat=True,
        )
        return sandbox

    async def _adopt(self, name: str) -> AsyncSandbox | None:
        """The sandbox that has the name already, if it carries our labels."""
        found = await self._call(lambda: self._daytona.get(name), f"find sandbox {name}", repeat=True)
        usable = str(getattr(found.state, "value", found.state)) not in _UNUSABLE
        if not usable or not self._request.labels.items() <= (found.labels or {}).items():
            return None
        return await self._started(found)

    async def _undo(self, task: asyncio.Future[AsyncSandbox]) -> None:
        await asyncio.wait((task,), timeout=UNDO_SECONDS)
        if task.done() and not task.cancelled() and task.exception() is None:
            await self._delete(task.result())
            return
        task.cancel()
        await asyncio.wait((task,))
        await self._sweep()

    async def _sweep(self) -> None:
        """Delete what was made under our name, if anything was."""
        try:
            found = await self._find()
            if found is not None:
                await self._delete(found)
        except SandboxError:
            pass  # what stopped the creation is told; the label says whose leftover it is

    async def _find(self) -> AsyncSandbox | None:
        query = sdk.load().ListSandboxesQuery(labels={MADE_LABEL: self._made}, limit=10)

        async def ours() -> list[AsyncSandbox]:
            return [sandbox async for sandbox in self._daytona.list(query)]

        found = await self._call(ours, "look for a sandbox", repeat=True)
        return next((sandbox for sandbox in found if sandbox.labels.get(MADE_LABEL) == self._made), None)


# Makes, finds and ends Daytona sandboxes.

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
        made = await SandboxCreation(self._daytona, request, token_hex(8), self._call, self._delete).run()
        sandbox = self._wrap(made)
        if request.source.type != "compose":
            return sandbox
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
                if cause is None or sdk.status_of(cause) not in _BUSY:
                    raise
                await asyncio.sleep(delay)
                delay = min(delay * 2, 5.0)
            else:
                return

    async def _call(self, action: Callable[[], Awaitable[T]], what: str, *, repeat: bool) -> T:
        async def judge(error: BaseException, what: str) -> SandboxError:
            return sdk.translated(error, what)

        return await call(action, what, judge, self._backoff, repeat=repeat)

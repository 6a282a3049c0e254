"""Making one sandbox so that nothing is left behind when it fails, is cancelled, or the answer is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sandboxes.daytona import errors, sdk
from sandboxes.daytona.sources import MADE_LABEL, parameters
from sandboxes.errors import SandboxConnectionError, SandboxError
from sandboxes.threads import uninterrupted

if TYPE_CHECKING:
    from daytona import AsyncDaytona, AsyncSandbox

    from sandboxes.types import SandboxCreateRequest

T = TypeVar("T")

UNDO_SECONDS = 30.0
"""How long a cancelled creation may still take before it is looked for instead."""
_UNUSABLE = frozenset({"destroyed", "destroying", "error", "build_failed"})


class Call(Protocol):
    """The provider's way to call the SDK."""

    async def __call__(self, action: Callable[[], Awaitable[T]], what: str, *, repeat: bool) -> T: ...


class Creation:
    """One try; `made` is a name nobody else uses."""

    def __init__(
        self,
        daytona: AsyncDaytona,
        request: SandboxCreateRequest,
        made: str,
        call: Call,
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
            if errors.status_of(error.__cause__ or error) == 409 and self._request.name:
                adopted = await self._adopt(self._request.name)
                if adopted is not None:
                    return adopted
            await uninterrupted(self._sweep())
            raise

    async def _create(self) -> AsyncSandbox:
        request = self._request
        what = f"create sandbox {request.name or ''}".rstrip()
        params: Any = parameters(request, self._made)
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

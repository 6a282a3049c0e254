"""How verbs that wait are asked of a tracker over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from valkyrie.client import caller
from valkyrie.client.client import ValkyrieClient
from valkyrie.errors import MissingSecretError
from valkyrie.job_views import StartedJob
from valkyrie.views import RegradeView, StartedRun

Result = TypeVar("Result")
Started = TypeVar("Started", StartedRun, StartedJob, RegradeView)


class RemoteDesk:
    """What all groups of verbs share.

    One event loop is kept and run step by step. Ctrl+C comes through as KeyboardInterrupt, after the
    request under way was given up and its connection closed.
    """

    def __init__(self, url: str, api_key: str | None = None, *, client: ValkyrieClient | None = None) -> None:
        self._client = client or ValkyrieClient(url, api_key)
        self._runner = asyncio.Runner()
        self._closed = False

    def _run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return self._runner.run(coroutine)

    def _each(self, found: AsyncGenerator[Result, None]) -> Iterator[Result]:
        """One by one: between two of them nothing runs, and nothing is read ahead."""

        async def step() -> tuple[Result, ...]:
            async for one in found:
                return (one,)
            return ()

        try:
            while one := self._run(step()):
                yield one[0]
        finally:
            if not self._closed:
                self._run(found.aclose())

    def on_line(self, tell: Callable[[str | None], None]) -> None:
        """Call `tell` with why nothing is heard of the tracker, and with None when it is heard again."""
        self._client.on_line(tell)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                self._runner.run(self._client.close())
            finally:
                self._runner.close()

    async def _supplied(self, ask: Callable[[], Awaitable[Started]], *, allowed: bool) -> Started:
        """Ask; when secrets are missing that this machine has, let the tracker keep them and ask again."""
        try:
            return await ask()
        except MissingSecretError as error:
            if not error.missing:
                raise
            notices: Sequence[str] = await caller.supply(self._client, error, allowed=allowed)
        started: Started = await ask()
        return replace(started, notices=[*notices, *started.notices])

"""The public client."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from valkyrie.client.connection import Call, Connection, path
from valkyrie.client.jobs import JobCalls
from valkyrie.client.library import LibraryCalls
from valkyrie.client.outputs import write_outputs
from valkyrie.client.retries import PATIENT_S, SilenceLimits
from valkyrie.client.runs import RunCalls, changed
from valkyrie.errors import UsageError
from valkyrie.nouns import DEFAULT_ORG, Json
from valkyrie.views import OutputsWanted

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom the tracker takes us for."""

    org_id: str = DEFAULT_ORG
    org: str = DEFAULT_ORG
    """The organisation's name."""
    person: str | None = None
    key_id: str | None = None
    mode: str = "self-hosted"
    """self-hosted or hosted."""


class ValkyrieClient(RunCalls, JobCalls, LibraryCalls):
    """A tracker's verbs as coroutines and async iterators; made for `async with`.

    Errors are those of `valkyrie.errors`, of the class the tracker raised. Requests that may be done twice
    are repeated when the connection breaks; a start carries a key that makes it one of them.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        timeout: float = TIMEOUT_S,
        patience: float = PATIENT_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`timeout`: seconds one answer may take to begin. `patience`: seconds a stream waits for a tracker
        that went away before it gives up."""
        self._connection = Connection(
            url, api_key, timeout=timeout, limits=SilenceLimits.within(patience), transport=transport
        )

    def on_line(self, tell: Callable[[str | None], None]) -> None:
        """Call `tell` with why a stream of events is not heard any more, and with None when it is again."""
        self._connection.on_line = tell

    @classmethod
    def from_config(cls, *, timeout: float = TIMEOUT_S, patience: float = PATIENT_S) -> Self:
        """Return the tracker of environment or config file: `tracker_url` and `api_key`."""
        from valkyrie import config

        url = config.effective("tracker_url").value
        if not url:
            raise UsageError(
                "No tracker is configured: `valk config set tracker_url URL`, or set TRACKER_SERVICE_URL."
            )
        key = config.effective("api_key").value
        return cls(str(url), str(key) if key else None, timeout=timeout, patience=patience)

    def __repr__(self) -> str:
        return f"ValkyrieClient({self.url!r})"

    @property
    def url(self) -> str:
        """Return the tracker's address."""
        return self._connection.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._connection.close()

    async def health(self) -> Json:
        """Return what the tracker says of itself; needs no key."""
        return await self._connection.get(dict[str, Any], Call("GET", "/health"))

    async def me(self) -> Caller:
        """Whom the key stands for."""
        return await self._connection.get(Caller, Call("GET", path("me")))

    async def init(self) -> Json:
        """Hosted mode: make the organisation of the key's tenant known."""
        return await self._connection.get(dict[str, Any], Call("POST", path("init"), repeatable=True))

    async def outputs(
        self,
        ref: str,
        destination: Path,
        *,
        task_ids: Sequence[str] | None = None,
        files: Sequence[str] | None = None,
    ) -> Sequence[Path]:
        """Write what was kept of each trial's last attempt to `destination/<task>/…`, archives unpacked.

        `files` names some of them, as patterns (`agent/*`). Everything is on disk, whole, before the first
        file of it appears.
        """
        call = Call(
            "POST",
            await self._path(ref, "outputs"),
            body=changed(OutputsWanted(task_ids, files)),
            repeatable=True,
        )
        with tempfile.TemporaryDirectory(prefix=".valkyrie-", dir=_existing(destination)) as folder:
            archive = Path(folder) / "outputs.tar"
            await self._connection.download(call, archive)
            return await asyncio.to_thread(write_outputs, archive, destination)


def _existing(folder: Path) -> Path:
    """Return the nearest folder above that exists: the archive is unpacked on the same disk."""
    return next(one for one in (folder.absolute(), *folder.absolute().parents) if one.is_dir())

"""Serve sandboxes of a provider: start and end, hand out grants, remember what each token may see and its
commands print, and word errors for clients."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from secrets import token_urlsafe
from typing import TYPE_CHECKING

from sandboxes.errors import (
    SandboxCapacityError,
    SandboxConnectionError,
    SandboxError,
    SandboxFileNotFoundError,
    SandboxFullError,
    SandboxNotFoundError,
)
from sandboxes.protocol import Sandbox, SandboxProvider, StreamName
from sandboxes.types import SandboxQuery

if TYPE_CHECKING:
    from sandboxes.server.ptys import Pty
    from sandboxes.server.sessions import ShellSession
    from sandboxes.web_listener import Listener


MAX_BYTES = 64 << 20
MAX_TOTAL_BYTES = 512 << 20
_PIECE_OVERHEAD = 128
"""What keeping one piece costs beside its text, so that a million single letters count for what they are."""


class OutputBudget:
    """How much the logs of one grant may hold together; beyond it each keeps less."""

    def __init__(self, limit: int = MAX_TOTAL_BYTES) -> None:
        self.limit = limit
        self.used = 0


class AnswerRoom:
    """How much one grant's large answers may take together; those that do not fit wait for the others."""

    def __init__(self, limit: int = MAX_TOTAL_BYTES) -> None:
        self._limit = limit
        self._used = 0
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """Hold room for `size` bytes; one answer always fits."""
        async with self._freed:
            await self._freed.wait_for(lambda: not self._used or self._used + size <= self._limit)
            self._used += size
        try:
            yield
        finally:
            self._used -= size
            async with self._freed:
                self._freed.notify_all()


class OutputLog:
    """What a command printed, in the order it came."""

    def __init__(self, limit: int = MAX_BYTES, budget: OutputBudget | None = None) -> None:
        self._limit = limit
        self._budget = budget or OutputBudget()
        self._pieces: deque[tuple[StreamName, bytes]] = deque()
        self._dropped = 0
        self._held = 0
        self._closed = False
        self._changed = asyncio.Event()

    def __call__(self, stream: StreamName, text: str) -> None:
        """Take one piece; the oldest ones go when there is too much."""
        data = text.encode("utf-8", "replace")
        self._pieces.append((stream, data))
        self._count(len(data) + _PIECE_OVERHEAD)
        while self._held > self._limit or self._budget.used > self._budget.limit:
            if not self._pieces:
                break
            self._drop_oldest()
        self._wake()

    @property
    def held(self) -> int:
        """How many bytes are kept."""
        return self._held

    def clear(self) -> None:
        """Give everything back."""
        while self._pieces:
            self._drop_oldest()
        self.close()

    def close(self) -> None:
        """No more will come: followers end."""
        self._closed = True
        self._wake()

    def text(self, stream: StreamName | None = None) -> str:
        """Return all that is kept, of one stream or of both."""
        wanted = [data for name, data in self._pieces if stream is None or name == stream]
        return b"".join(wanted).decode("utf-8", "replace")

    async def follow(self) -> AsyncIterator[tuple[StreamName, bytes]]:
        """Every piece, from the first kept on, until the command has ended."""
        position = self._dropped
        while True:
            changed = self._changed
            while position - self._dropped < len(self._pieces):
                # A follower too slow for the limit goes on with the oldest piece there is.
                position = max(position, self._dropped)
                piece = self._pieces[position - self._dropped]
                position += 1
                yield piece
            if self._closed:
                return
            await changed.wait()

    def _drop_oldest(self) -> None:
        _, oldest = self._pieces.popleft()
        self._dropped += 1
        self._count(-len(oldest) - _PIECE_OVERHEAD)

    def _count(self, change: int) -> None:
        self._held += change
        self._budget.used += change

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


# Errors as Daytona's clients read them: a status, and a body whose message is for people.

DEFAULT_RETRY_SECONDS = 5


class ApiError(Exception):
    """The answer to a request that cannot be met."""

    def __init__(self, status: int, message: str, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers or {}


def error_body(status: int, message: str, path: str = "") -> dict[str, object]:
    """The JSON body of an error."""
    phrase = HTTPStatus(status).phrase
    return {
        "statusCode": status,
        "message": message,
        "error": phrase,
        "code": phrase.upper().replace(" ", "_"),
        "source": "VALKYRIE_SANDBOXES",
        "timestamp": datetime.now(UTC).isoformat(),
        "path": path,
    }


def retry_later(message: str, seconds: float | None = None) -> ApiError:
    """No room now."""
    wait = max(1, round(seconds or DEFAULT_RETRY_SECONDS))
    return ApiError(429, message, headers={"Retry-After": str(wait)})


def api_error(error: SandboxError) -> ApiError:
    """Return what a provider's error means to a client."""
    if isinstance(error, SandboxNotFoundError | SandboxFileNotFoundError):
        return ApiError(404, str(error))
    if isinstance(error, SandboxCapacityError):
        return retry_later(str(error), error.retry_after)
    if isinstance(error, SandboxConnectionError):
        return ApiError(502, str(error))
    if isinstance(error, SandboxFullError):
        return ApiError(507, str(error))
    return ApiError(400, str(error))


# Who may see what: each token opens one provider's sandboxes that carry the token's labels.

TOKEN_BYTES = 32
# What goes to a provider as an id; it must not look like a path.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class Grant:
    """What a program needs to reach its sandboxes: the three values of Daytona's configuration."""

    api_key: str = field(repr=False)
    api_url: str
    target: str = "local"


@dataclass(slots=True)
class SandboxNote:
    """What the server remembers of one sandbox, beside what its provider knows."""

    labels: dict[str, str] | None = None
    """Set when the caller replaced them."""
    settings: dict[str, object] = field(default_factory=dict)
    """Fields of the sandbox's JSON that the caller chose."""
    user: str | None = None
    stopped: bool = False
    sessions: dict[str, ShellSession] = field(default_factory=dict)
    ptys: dict[str, Pty] = field(default_factory=dict)
    home: tuple[str, str] | None = None
    """Its working folder and home, once asked for."""


class Access:
    """One grant as the server holds it."""

    def __init__(
        self, provider: SandboxProvider, labels: Mapping[str, str], *, host_image: bool, max_sandboxes: int
    ) -> None:
        self.provider = provider
        self.labels = dict(labels)
        self.host_image = host_image
        self.max_sandboxes = max_sandboxes
        self.notes: dict[str, SandboxNote] = {}
        self.names_in_creation: list[str | None] = []
        self.tasks: set[asyncio.Task[object]] = set()
        """Requests and streams under way."""
        self.revoked = False
        self.budget = OutputBudget()
        self.room = AnswerRoom()

    def note(self, sandbox_id: str) -> SandboxNote:
        """Return what is remembered of that sandbox."""
        return self.notes.setdefault(sandbox_id, SandboxNote())

    def effective_labels(self, sandbox: Sandbox) -> dict[str, str]:
        """The sandbox's labels as the caller sees them; the grant's are always among them."""
        note = self.notes.get(sandbox.id)
        own = note.labels if note is not None and note.labels is not None else dict(sandbox.labels or {})
        return {**own, **self.labels}

    async def sandboxes(self) -> AsyncIterator[Sandbox]:
        """Yield all that this token may see."""
        async for sandbox in self.provider.list_sandboxes(SandboxQuery(labels=self.labels, page_size=100)):
            if self._is_ours(sandbox):
                yield sandbox

    async def find(self, id_or_name: str) -> Sandbox:
        """The sandbox of that id or name; one that this token may not see is not there."""
        if _ID.fullmatch(id_or_name):
            try:
                sandbox = await self.provider.get_sandbox(id_or_name)
            except SandboxNotFoundError:
                pass
            else:
                if sandbox.id == id_or_name and self._is_ours(sandbox) and sandbox.state != "deleted":
                    return sandbox
        async for sandbox in self.sandboxes():
            if sandbox.name == id_or_name:
                return sandbox
        gone = self.notes.pop(id_or_name, None)
        if gone is not None:
            await end_sandbox_note(gone)
        raise ApiError(404, f"Sandbox {id_or_name[:128]} not found")

    async def running(self, id_or_name: str) -> Sandbox:
        """The sandbox, which must not be stopped."""
        sandbox = await self.find(id_or_name)
        if self.note(sandbox.id).stopped:
            raise ApiError(400, f"Sandbox {sandbox.id} is stopped; start it first")
        return sandbox

    def _is_ours(self, sandbox: Sandbox) -> bool:
        return self.labels.items() <= dict(sandbox.labels or {}).items()

    async def end(self) -> None:
        """End every request, stream and session under way. The sandboxes stay."""
        self.revoked = True
        here = asyncio.current_task()
        under_way = [task for task in self.tasks if task is not here]
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)
        notes, self.notes = list(self.notes.values()), {}
        for note in notes:
            await end_sandbox_note(note)


async def end_sandbox_note(note: SandboxNote) -> None:
    """End what ran on behalf of a sandbox's clients."""
    sessions, note.sessions = list(note.sessions.values()), {}
    ptys, note.ptys = list(note.ptys.values()), {}
    for pty in ptys:
        await pty.end()
    for session in sessions:
        await session.end()


class AccessTable:
    """The live tokens. Only their digests are kept, so finding one tells nothing about the others."""

    def __init__(self) -> None:
        self._by_digest: dict[bytes, Access] = {}

    def add(self, access: Access) -> str:
        """A new token for `access`."""
        token = token_urlsafe(TOKEN_BYTES)
        self._by_digest[_digest(token)] = access
        return token

    def find(self, token: str) -> Access | None:
        """Return whose token that is."""
        return self._by_digest.get(_digest(token))

    def remove(self, token: str) -> Access | None:
        """Forget a token; it opens nothing from here on."""
        return self._by_digest.pop(_digest(token), None)

    def remove_all(self) -> list[Access]:
        """Forget all tokens."""
        gone, self._by_digest = list(self._by_digest.values()), {}
        return gone


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


# The server: starts, hands out grants, ends.

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

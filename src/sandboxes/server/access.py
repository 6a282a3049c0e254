"""Who may see what: each token opens one provider's sandboxes that carry the token's labels."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from secrets import token_urlsafe
from typing import TYPE_CHECKING

from sandboxes.errors import SandboxNotFoundError
from sandboxes.protocol import Sandbox, SandboxProvider
from sandboxes.server.errors import ApiError
from sandboxes.server.output import AnswerRoom, OutputBudget

if TYPE_CHECKING:
    from sandboxes.server.ptys import Pty
    from sandboxes.server.sessions import Session

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
class Note:
    """What the server remembers of one sandbox, beside what its provider knows."""

    labels: dict[str, str] | None = None
    """Set when the caller replaced them."""
    settings: dict[str, object] = field(default_factory=dict)
    """Fields of the sandbox's JSON that the caller chose."""
    user: str | None = None
    stopped: bool = False
    sessions: dict[str, Session] = field(default_factory=dict)
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
        self.notes: dict[str, Note] = {}
        self.names_in_creation: list[str | None] = []
        self.tasks: set[asyncio.Task[object]] = set()
        """Requests and streams under way."""
        self.revoked = False
        self.budget = OutputBudget()
        self.room = AnswerRoom()

    def note(self, sandbox_id: str) -> Note:
        """What is remembered of that sandbox."""
        return self.notes.setdefault(sandbox_id, Note())

    def effective_labels(self, sandbox: Sandbox) -> dict[str, str]:
        """The sandbox's labels as the caller sees them; the grant's are always among them."""
        note = self.notes.get(sandbox.id)
        own = note.labels if note is not None and note.labels is not None else dict(sandbox.labels or {})
        return {**own, **self.labels}

    async def sandboxes(self) -> AsyncIterator[Sandbox]:
        """All that this token may see."""
        from sandboxes.types import SandboxQuery

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
            await end_note(gone)
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
            await end_note(note)


async def end_note(note: Note) -> None:
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
        """Whose token that is."""
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

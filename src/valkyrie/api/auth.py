"""Who asks: from the headers of a request to an identity."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from starlette.datastructures import Headers

from sandboxes.web_gate import bearer_token
from valkyrie.api.together import Together
from valkyrie.errors import AccessError, UsageError, ValkyrieError
from valkyrie.nouns import Identity

if TYPE_CHECKING:
    from valkyrie.api.lanes import Lane
    from valkyrie.organisation.access import Authenticator, Joined, Mode

REMEMBER_S = 5.0
"""A revoked key opens nothing after so long."""
_MOST_REMEMBERED = 2048
_PERSON = "x-valkyrie-person"
_LONGEST_PERSON = 200


class Credential(NamedTuple):
    """What a request shows, as it was sent."""

    api_key: str | None
    bearer: str | None

    @property
    def mark(self) -> bytes:
        """What it is remembered by."""
        return hashlib.sha256(f"{self.api_key}\0{self.bearer}".encode()).digest()

    @classmethod
    def of(cls, headers: Headers) -> Credential:
        return cls(headers.get("x-api-key", "").strip() or None, bearer_token(headers) or None)


def access_key(headers: Headers) -> str | None:
    """The key a hosted caller showed; None for a session's token, which is good for this tracker only."""
    shown = Credential.of(headers)
    key = shown.api_key or shown.bearer
    return key if key and key.count(".") != 2 else None


class Door(Protocol):
    """Says who sent a request."""

    @property
    def mode(self) -> Mode: ...

    async def identify(self, headers: Headers) -> Identity:
        """Who sent these headers; AccessError when nobody we know did."""
        ...

    async def init(self, headers: Headers) -> Joined:
        """Make the caller's organisation, in hosted mode."""
        ...


class Doorkeeper:
    """Asks the authenticator, and remembers its good answers for a few seconds."""

    def __init__(
        self, authenticator: Authenticator, lane: Lane, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.mode: Mode = authenticator.mode
        self._authenticator = authenticator
        self._lane = lane
        self._clock = clock
        self._known: dict[bytes, tuple[Identity, float]] = {}
        self._asking: Together[bytes, Identity] = Together()

    async def identify(self, headers: Headers) -> Identity:
        shown = Credential.of(headers)
        mark = shown.mark
        identity, until = self._known.get(mark, (None, 0.0))
        if identity is not None and self._clock() < until:
            return identity
        self._known.pop(mark, None)
        if shown == (None, None):
            raise AccessError("An API key is needed: `Authorization: Bearer KEY`, or `X-Api-Key: KEY`.")
        identity = await self._asking.look(
            mark, lambda: self._lane.run(lambda: self._authenticator.identify(*shown))
        )
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.pop(next(iter(self._known)))
        self._known[mark] = (identity, self._clock() + REMEMBER_S)
        return identity

    async def init(self, headers: Headers) -> Joined:
        shown = Credential.of(headers)
        return await self._lane.run(lambda: self._authenticator.init(*shown))


async def is_welcome(door: Door, headers: Headers, known: Identity) -> bool:
    """Whether the key of a long answer is still good; a door remembers, so asking costs little."""
    try:
        identity = await door.identify(headers)
    except AccessError:
        return False
    except ValkyrieError:
        return True  # whoever knows keys cannot be asked now; that says nothing about this one
    return identity.org_id == known.org_id


async def until_unwelcome(door: Door, headers: Headers, known: Identity, every_s: float) -> None:
    """Return when the key of a long answer is no longer good."""
    while await is_welcome(door, headers, known):  # noqa: ASYNC110 - of a key that was revoked nobody tells us
        await asyncio.sleep(every_s)


class OpenDoor:
    """`--no-auth`, on loopback only: everyone is the default organisation, as whoever they say they are."""

    @property
    def mode(self) -> Mode:
        return "self-hosted"

    async def identify(self, headers: Headers) -> Identity:
        person = headers.get(_PERSON, "").strip()
        plain = person.isprintable() and len(person) <= _LONGEST_PERSON
        return Identity(person=person if person and plain else None)

    async def init(self, headers: Headers) -> Joined:  # noqa: ARG002 - nobody is anybody here
        raise UsageError("This tracker asks for no keys; there is no organisation to make.")

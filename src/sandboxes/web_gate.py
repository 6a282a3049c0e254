"""Check requests before any route sees them: who asks, how much they send and how slowly.

The tracker, the sandbox server and benchmark services each say whom they admit, what the limit is and what
their errors look like; `RequestGate` does the rest. `sandboxes.web_listener` bounds what comes before a body.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.websockets import WebSocket

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LINGER_BYTES = 4 << 20
_LINGER_S = 2.0


def bearer_token(headers: Mapping[str, str]) -> str:
    """Return the token of `Authorization: Bearer TOKEN`, or nothing if the header says something else."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class BodyError(HTTPException):
    """A request's body is too large, comes too slowly, or has no clear length."""

    def __init__(self, status: int, message: str, cause: str) -> None:
        super().__init__(status, message)
        self.cause = cause
        """A short stable code."""


@dataclass(frozen=True, slots=True)
class BodyPace:
    """How slowly a body may come."""

    pause_s: float = 20.0
    """Longest wait for the next piece."""
    rate: int = 4096
    """Bytes a second that must come on average, after a first wait of `pause_s`."""


class RequestBody:
    """Count a request's body, and do not wait for it without end."""

    def __init__(self, receive: Receive, headers: Headers, limit: int, pace: BodyPace) -> None:
        self._receive = receive
        self._limit = limit
        self._pace = pace
        self._length = headers.get("content-length", "0")
        self._ambiguous = "content-length" in headers and "transfer-encoding" in headers
        self._asks_first = headers.get("expect", "").lower() == "100-continue"
        self._taken = 0
        self._waited = 0.0
        self._complete = False
        self._failed: BodyError | None = None

    def check_announced(self) -> None:
        """Raise BodyError if the announced length is too large or ambiguous, before a byte of it is read.

        A proxy that believes the other one of two lengths would take the rest for somebody's next request.
        """
        if self._ambiguous:
            message = "A request's length is told by Content-Length or by Transfer-Encoding, not by both"
            raise BodyError(400, message, "usage")
        if self._length.isdecimal() and int(self._length) > self._limit:
            raise self._too_large()

    async def receive(self) -> Message:
        """Return the next piece, or raise BodyError if it is too much or too slow."""
        if self._complete:
            return await self._receive()  # returns when the client goes away, whenever that is
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._patience()):
                message = await self._receive()
        except TimeoutError:
            self._failed = BodyError(408, "The request's body came too slowly", "slow")
            raise self._failed from None
        self._waited += time.monotonic() - began
        self._note(message)
        if self._taken > self._limit:
            self._failed = self._too_large()
            raise self._failed
        return message

    def _note(self, message: Message) -> None:
        self._taken += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)

    def _patience(self) -> float:
        """Return the seconds the next piece may take, so that the whole keeps its pace.

        Only time spent waiting counts: an application that is slow to read is not its client's fault.
        """
        left = self._pace.pause_s + self._taken / self._pace.rate - self._waited
        return max(0.0, min(self._pace.pause_s, left))

    def _too_large(self) -> BodyError:
        size = f"{self._limit >> 20} MiB" if self._limit >= 1 << 20 else f"{self._limit} bytes"
        return BodyError(413, f"The request is larger than {size}", "too_large")

    async def refuse(self, response: Response, scope: Scope, send: Send) -> None:
        """Answer with an error; cut off whoever goes on sending all the same."""
        await self._linger()
        if self._ambiguous or not self._complete:
            response.headers["connection"] = "close"
        await response(scope, self._receive, send)

    def closing(self, send: Send) -> Send:
        """Return a `send` that ends the connection with the answer if reading the body failed."""

        async def sending(message: Message) -> None:
            if self._failed is not None and message["type"] == "http.response.start":
                if self._failed.status_code == 413:
                    await self._linger()
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        return sending

    async def _linger(self) -> None:
        """Read on a little: a client that is still sending would otherwise not see why it was refused."""
        most = self._taken + _LINGER_BYTES
        try:
            async with asyncio.timeout(_LINGER_S):
                while not (self._complete or self._asks_first or self._taken > most):
                    self._note(await self._receive())
        except TimeoutError:
            return


class RequestGate:
    """Let requests through to the application that `admit` does not refuse, and bound their bodies.

    `admit` raises HTTPException for requests and websockets it refuses, before a byte of a body is read;
    `answer` makes the error's response; `limit` says how many bytes a request's body may have.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        admit: Callable[[Scope, Headers], Awaitable[None]],
        answer: Callable[[Scope, HTTPException], Response],
        limit: Callable[[Scope], int],
        pace: BodyPace | None = None,
    ) -> None:
        self._app = app
        self._admit = admit
        self._answer = answer
        self._limit = limit
        self._pace = pace or BodyPace()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._check_request(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._check_websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _check_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        body = RequestBody(receive, headers, self._limit(scope), self._pace)
        try:
            body.check_announced()
            await self._admit(scope, headers)
        except HTTPException as error:
            await body.refuse(self._answer(scope, error), scope, send)
        else:
            await self._app(scope, body.receive, body.closing(send))

    async def _check_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._admit(scope, Headers(scope=scope))
        except HTTPException as error:
            await WebSocket(scope, receive, send).send_denial_response(self._answer(scope, error))
        else:
            await self._app(scope, receive, send)

"""In front of every route: which host was meant, who asks, how much they send and how slowly."""

from __future__ import annotations

import asyncio
import hmac
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from valkyrie.api.answers import refuse
from valkyrie.api.errors import Refusal, refusal, refused
from valkyrie.api.lanes import ask_for
from valkyrie.api.roles import check_role
from valkyrie.api.settings import ApiSettings, is_loopback
from valkyrie.errors import ValkyrieError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from valkyrie.api.auth import Door

OPEN_PATHS = frozenset({"/health", "/openapi.json", "/v1/init"})
"""`/v1/init` asks for a key itself: whoever shows one has no organisation yet."""
METRICS = "/metrics"
_ARCHIVES = ("/v1/agents/", "/v1/uploads/", "/v1/ingest")
_LINGER_BYTES = 4 << 20
_LINGER_S = 2.0


class RefusedError(HTTPException):
    """A request ends here, with this answer."""

    def __init__(self, told: Refusal) -> None:
        super().__init__(told.status, told.detail.message, told.headers)
        self.told = told


class Gate:
    """Strangers get no further than here: they are answered before a body is read or a name looked up."""

    def __init__(self, app: ASGIApp, settings: ApiSettings, door: Door) -> None:
        self._app = app
        self._settings = settings
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # a websocket: uvicorn closes what nobody accepts
        headers = Headers(scope=scope)
        body = Body(receive, self._settings, self._limit(scope), headers)
        scope["body"] = body
        try:
            self._check_host(headers)
            body.check_announced()
            await self._let_in(scope, headers)
        except RefusedError as error:
            await body.refuse(error.told, scope, send)
        except ValkyrieError as error:
            await body.refuse(refusal(error), scope, send)
        else:
            await self._app(scope, body.receive, send)

    def _check_host(self, headers: Headers) -> None:
        """A web page must not reach a server on this machine, by a name of its own or in its user's name."""
        host = _host_of(headers.get("host", ""))
        if self._settings.loopback and not is_loopback(host) and host != self._settings.host:
            raise RefusedError(
                refused(
                    400,
                    "This tracker listens on loopback and answers no other Host. A proxy before it sends "
                    f"`Host: {self._settings.host}`.",
                )
            )
        origin = headers.get("origin")
        if origin is not None and not _is_of(origin, headers.get("host", "")):
            raise RefusedError(refused(403, "Pages of other sites may not call this tracker."))

    def _limit(self, scope: Scope) -> int:
        archive = scope["method"] == "PUT" and scope["path"].startswith(_ARCHIVES)
        return self._settings.upload_limit if archive else self._settings.json_limit

    async def _let_in(self, scope: Scope, headers: Headers) -> None:
        path = scope["path"]
        ask_for(None)  # a connection's next request begins in the context of the one before
        if path in OPEN_PATHS:
            return
        token = self._settings.metrics_token
        if path == METRICS and token is not None:
            shown = headers.get("authorization", "").encode("utf-8", "replace")
            if not hmac.compare_digest(shown, f"Bearer {token}".encode()):
                unknown = refused(
                    401, "Metrics need their own token.", headers={"WWW-Authenticate": "Bearer"}
                )
                raise RefusedError(unknown)
            return
        identity = await self._door.identify(headers)
        check_role(identity, scope["method"], path)
        ask_for(identity.org_id)
        scope["identity"] = identity


def _is_of(origin: str, host: str) -> bool:
    """Whether a page's origin is this very server; another port of the same machine is another site."""
    scheme, _, netloc = origin.lower().partition("://")
    usual = {"http": ":80", "https": ":443"}.get(scheme, "")
    return bool(netloc) and netloc.removesuffix(usual) == host.lower().removesuffix(usual)


def _host_of(netloc: str) -> str:
    """The host of `host`, `host:port` or `[v6]:port`."""
    try:
        return (urlsplit(f"//{netloc}").hostname or "").lower()
    except ValueError:
        return ""


class Body:
    """A request's body: counted, and not waited for without end."""

    def __init__(self, receive: Receive, settings: ApiSettings, limit: int, headers: Headers) -> None:
        self._receive = receive
        self._settings = settings
        self._limit = limit
        self._length = headers.get("content-length", "0")
        self._ambiguous = "content-length" in headers and "transfer-encoding" in headers
        self._asks_first = headers.get("expect", "").lower() == "100-continue"
        self._taken = 0
        self._began: float | None = None
        self._complete = False

    def check_announced(self) -> None:
        """Refuse a length that is too much before a byte of it is read, and one that is told in two ways: a
        proxy that believes the other one would take the rest for somebody's next request."""
        if self._ambiguous:
            told = "A request's length is told by Content-Length or by Transfer-Encoding, not by both."
            raise RefusedError(refused(400, told, headers={"Connection": "close"}))
        if self._length.isdecimal() and int(self._length) > self._limit:
            raise self._too_large()

    async def receive(self) -> Message:
        """The next piece; RefusedError when it is too much, or too slow."""
        if self._complete:
            return await self._receive()  # the client's going away, whenever that is
        try:
            async with asyncio.timeout(self._patience()):
                message = await self._receive()
        except TimeoutError:
            raise RefusedError(refused(408, "The request's body came too slowly.", cause="slow")) from None
        self._note(message)
        if self._taken > self._limit:
            raise self._too_large()
        return message

    def _note(self, message: Message) -> None:
        self._taken += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)

    def _patience(self) -> float:
        """Seconds the next piece may take, so that the whole keeps a certain pace."""
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        due = self._began + self._settings.body_pause_s + self._taken / self._settings.body_rate
        return max(0.0, min(self._settings.body_pause_s, due - now))

    def _too_large(self) -> RefusedError:
        size = f"{self._limit >> 20} MiB" if self._limit >= 1 << 20 else f"{self._limit} bytes"
        return RefusedError(refused(413, f"The request is larger than {size}.", cause="too_large"))

    async def refuse(self, told: Refusal, scope: Scope, send: Send) -> None:
        """Answer with an error; whoever goes on sending all the same is cut off."""
        await self.linger()
        response = refuse(told)
        if not self._complete:
            response.headers["connection"] = "close"
        await response(scope, self._receive, send)

    async def linger(self) -> None:
        """Read on a little: a client that is still sending would otherwise not see why it was refused."""
        most = self._taken + _LINGER_BYTES
        try:
            async with asyncio.timeout(_LINGER_S):
                while not (self._complete or self._asks_first or self._taken > most):
                    self._note(await self._receive())
        except TimeoutError:
            return

"""Around every request: its id, one line in the log, its measurement, and a plain answer to our mistakes."""

from __future__ import annotations

import logging
import re
import time
import uuid
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from valkyrie.api.answers import refuse
from valkyrie.api.errors import broken
from valkyrie.api.streams import STREAMED, cut

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from valkyrie.api.metrics import Metrics

log = logging.getLogger("valkyrie.api")
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LONGEST_PATH = 200
_ALWAYS = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


class Journal:
    """The outermost layer. Query strings, headers and bodies are in no line of it: they may hold secrets."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        scope["request_id"] = request_id
        began, status = time.perf_counter(), 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [*_ALWAYS, (b"x-request-id", request_id.encode())]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception:
            log.exception("request %s failed: %s %s", request_id, scope["method"], _path(scope))
            if not status:
                await refuse(broken(request_id))(scope, receive, noting)
            elif not cut(scope):
                raise  # half an answer cannot be taken back: the server must close the connection
        finally:
            self._note(scope, status, time.perf_counter() - began)

    def _note(self, scope: Scope, status: int, took: float) -> None:
        method = scope["method"]
        self._metrics.observe(method, route_of(scope), status, took, streamed=STREAMED in scope)
        identity = scope.get("identity")
        who = f" org={identity.org} key={identity.key_id or '-'}" if identity else ""
        log.info(
            "%s %s %d %.1fms request=%s%s",
            method,
            _path(scope),
            status,
            took * 1000,
            scope["request_id"],
            who,
        )


def route_of(scope: Scope) -> str:
    """The template of the route that answers, of which there are few; `other` for no route."""
    route = scope.get("route")
    return str(getattr(route, "path", "other"))


def _path(scope: Scope) -> str:
    """The path as it came, still percent-encoded: nobody writes lines of their own into the log."""
    raw: bytes = scope.get("raw_path") or b"?"
    return raw.partition(b"?")[0].decode("ascii", "replace")[:_LONGEST_PATH]

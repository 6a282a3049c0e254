"""What a tracker answers to those who set themselves up: a small web server for tests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "vk_0123456789ab_" + "k" * 43
ME = {"org_id": "o1", "org": "research", "person": "ada@example.com", "key_id": "k1", "mode": "self-hosted"}


class TrackerServer:
    """Answers by `METHOD /path`: (status, body); without a good key 401, but for /health."""

    def __init__(self) -> None:
        self.key: str | None = KEY
        """None: it asks for no key."""
        self.answers: dict[str, tuple[int, Any]] = {
            "GET /health": (200, {"status": "ok", "version": "9.9", "database": "ok"}),
            "GET /v1/me": (200, ME),
            "POST /v1/init": (200, {"org_name": "Acme", "created": True, "person": "ada@example.com"}),
            "GET /v1/organisation": (
                200,
                {"role_arn": None, "credentials": False, "external_id": "valkyrie-o1"},
            ),
            "PATCH /v1/organisation": (200, {}),
            "PUT /v1/organisation/credentials": (204, None),
        }
        self.asked: list[tuple[str, Any]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def refuse(self, ask: str, status: int, kind: str, message: str) -> None:
        """Answer with an error as the tracker words it."""
        error = {"type": kind, "cause": "x", "message": message, "exit_code": 1, "retry_after": None}
        self.answers[ask] = (status, {"error": error})

    @contextmanager
    def running(self) -> Iterator[TrackerServer]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def said(self, ask: str) -> list[Any]:
        """The bodies sent with this."""
        return [body for asked, body in self.asked if asked == ask]


def _handler(door: TrackerServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            ask = f"{self.command} {self.path}"
            sent = self.rfile.read(int(self.headers.get("content-length") or 0))
            door.asked.append((ask, json.loads(sent) if sent else None))
            shown = self.headers.get("authorization", "").removeprefix("Bearer ")
            status, body = door.answers.get(ask, (404, {}))
            if ask != "GET /health" and door.key is not None and shown != door.key:
                error = {"type": "AccessError", "cause": "unauthorized", "message": "This key is unknown."}
                status, body = 401, {"error": error}
            content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_PUT = _answer

        def log_message(self, format: str, *args: object) -> None:
            """Nothing on stderr."""

    return Handler

"""A small web server for tests: canned answers by path, and a memory of what was asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Answer(NamedTuple):
    """What a path answers."""

    body: bytes = b""
    status: int = 200
    type: str = "text/plain"
    location: str | None = None


class Web:
    """Answers by path; `silent` paths never answer until the server ends."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.silent: set[str] = set()
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.ended = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            self.ended.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()


def _handler(web: Web) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            headers = {name.lower(): value for name, value in self.headers.items()}
            web.asked.append((self.path, headers))
            if path in web.silent:
                web.ended.wait()
                return
            answer = web.answers.get(path, Answer(b"nothing here", 404))
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.type)
            self.send_header("Content-Length", str(len(answer.body)))
            if answer.location:
                self.send_header("Location", answer.location)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing on stderr."""

    return Handler

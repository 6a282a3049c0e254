"""The agent in plain Python that `agent init` writes: how it waits for a busy model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from valkyrie.agents import model_agent


class BusyOnce(ThreadingHTTPServer):
    """A model's server that is busy at the first request."""

    retry_after: str | None = None
    asked = 0


class _Request(BaseHTTPRequestHandler):
    server: BusyOnce

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked += 1
        self.send_response(200 if self.server.asked > 1 else 429)
        if self.server.retry_after is not None:
            self.send_header("Retry-After", self.server.retry_after)
        self.end_headers()
        self.wfile.write(b'{"said": "yes"}')

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BusyOnce]:
    made = BusyOnce(("127.0.0.1", 0), _Request)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    monkeypatch.setenv("VALKYRIE_MODEL_URL", f"http://127.0.0.1:{made.server_port}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.mark.parametrize(
    ("said", "seconds"),
    [(None, 1), ("7", 7), ("600", 60), ("Wed, 21 Oct 2015 07:28:00 GMT", 1), ("-5", 1), ("nan", 1), ("²", 1)],
)
def test_a_busy_model_is_asked_again(
    server: BusyOnce, monkeypatch: pytest.MonkeyPatch, said: str | None, seconds: float
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(model_agent.time, "sleep", slept.append)
    server.retry_after = said if said != "²" else "\xb2"
    assert model_agent.ask("m", []) == {"said": "yes"}
    assert slept == [seconds]

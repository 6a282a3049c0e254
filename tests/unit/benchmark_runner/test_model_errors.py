"""What becomes of a model's server that fails, refuses, breaks off or talks nonsense."""

from __future__ import annotations

import json
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from benchmark_runner.chat import (
    ChatError,
    ChatModel,
    ChatRefusalError,
    ChatTooLongError,
    ChatUnavailableError,
)
from benchmark_runner.models import client
from sandboxes.retry import Backoff
from tests.unit.benchmark_runner.canned import answering, http
from tests.unit.benchmark_runner.test_chat_model import KEY, WAYS, config
from valkyrie.testing import Fault, ModelServer, Say, Script

ANSWER = http(json.dumps({"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]}).encode())


class Pauses(list[float]):
    """Remembers how long a pause would have been."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)

    def backoff(self, attempts: int = 4, max_wait_s: float = 600) -> Backoff:
        return Backoff(
            first_s=0.5, longest_s=max_wait_s, attempts=attempts, jitter=1.0, sleep=self, draw=lambda: 0.5
        )


@pytest.mark.parametrize("kind", ["rate_limit", "overloaded", "server_error", "cut"])
@pytest.mark.parametrize(("model", "native", "stream"), WAYS)
async def test_what_may_pass_is_tried_again(
    model: str, native: bool, stream: bool, kind: Any, tmp_path: Path
) -> None:
    pauses = Pauses()
    async with ModelServer(Script.of(Fault(kind, times=2), Say("There."))) as server:
        chosen = config(server.url, native=native, stream=stream)
        async with ChatModel(model, chosen, log_dir=tmp_path, backoff=pauses.backoff()) as chat:
            assert (await chat.ask("Hi.")).text == "There."
    assert pauses == [0.25, 0.5]
    assert len(json.loads((tmp_path / "chat.jsonl").read_text())["failed_tries"]) == 2


async def test_a_server_says_when_to_come_back() -> None:
    pauses = Pauses()
    until = formatdate(time.time() + 100, usegmt=True)
    busy = [
        http(b"{}", "429 Too Many Requests", retry_after="7"),
        http(b"{}", "503 Service Unavailable", retry_after=until),
    ]
    async with answering(*busy, ANSWER) as server:
        async with ChatModel("llama", config(server.url), backoff=pauses.backoff()) as chat:
            assert (await chat.ask("Hi.")).text == "ok"
    assert pauses[0] == 7.25
    assert 90 < pauses[1] <= 101


async def test_a_wait_that_is_too_long_is_not_waited_for() -> None:
    pauses = Pauses()
    async with ModelServer(Script.of(Fault("rate_limit", retry_after=3600))) as server:
        async with ChatModel("llama", config(server.url), backoff=pauses.backoff()) as chat:
            with pytest.raises(ChatUnavailableError, match=r"429.*wait 3600 s\. Tried 1 time\."):
                await chat.ask("Hi.")
    assert not pauses


@pytest.mark.parametrize(("model", "native", "stream"), WAYS)
async def test_what_stays_broken_is_said_in_the_end(model: str, native: bool, stream: bool) -> None:
    async with ModelServer(Script.of(Fault("overloaded", message=f"too much for {KEY}"))) as server:
        chosen = config(server.url, native=native, stream=stream)
        async with ChatModel(model, chosen, backoff=Pauses().backoff(attempts=3)) as chat:
            with pytest.raises(ChatUnavailableError) as caught:
                await chat.ask("Hi.")
    said = str(caught.value)
    assert chat.endpoint.place in said and "too much for ***" in said and "Tried 3 times." in said
    assert caught.value.status in (503, 529)
    assert len(server.requests) == 3


async def test_a_server_that_is_not_there() -> None:
    async with answering() as server:
        gone = server.url
    async with ChatModel("llama", config(gone), backoff=Pauses().backoff(attempts=2)) as chat:
        with pytest.raises(ChatUnavailableError, match=r"cannot be reached .*Connect call failed"):
            await chat.ask("Hi.")


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("context_overflow", ChatTooLongError, "refused (400)"),
        ("refusal", ChatRefusalError, "declined to answer: I can't help with that."),
        ("unauthorized", ChatError, "Look at the key: --custom-api-key"),
        ("unknown_model", ChatError, "Look at the model's name"),
    ],
)
@pytest.mark.parametrize(("model", "native", "stream"), WAYS)
async def test_what_will_not_pass_is_said_at_once(
    model: str, native: bool, stream: bool, kind: Any, error: type[ChatError], words: str
) -> None:
    async with ModelServer(Script.of(Fault(kind))) as server:
        chosen = config(server.url, native=native, stream=stream)
        async with ChatModel(model, chosen, backoff=Pauses().backoff()) as chat:
            with pytest.raises(error) as caught:
                await chat.ask("Hi.")
    assert words in str(caught.value)
    assert chat.endpoint.place in str(caught.value) and KEY not in str(caught.value)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (http(b'{"error": {"code": "insufficient_quota"}}', "429 Too Many Requests"), r"refused \(429\)"),
        (http(f"<p>who is {KEY}?</p>".encode(), "403 Forbidden"), r"refused \(403\): who is \*\*\*\?"),
        (http(b"", "302 Found", location="http://elsewhere/"), "Redirects are not followed"),
        (http(b'{"error": "no such thing"}', "400 Bad Request"), "no such thing"),
        (
            http(
                b'data: {"error": {"type": "invalid_request_error", "message": "no"}}\n\n',
                kind="text/event-stream",
            ),
            "failed while it answered: no",
        ),
    ],
)
async def test_final_answers_of_other_kinds(answer: bytes, words: str) -> None:
    async with answering(answer, ANSWER) as server:
        async with ChatModel("llama", config(server.url), backoff=Pauses().backoff()) as chat:
            with pytest.raises(ChatError, match=words) as caught:
                await chat.ask("Hi.")
    assert KEY not in str(caught.value)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "nonsense",
    [
        http(b"<html>Welcome!</html>", kind="text/html"),
        http(b"[1]"),
        http(b'{"choices": []}'),
        http(b'{"choices": "none"}'),
        http(b"[" * 100_000),
        http(b"data: {oops\n\n", kind="text/event-stream"),
        http(b'data: {"choices": [{"delta": {"content": "half"}}]}\n\n', kind="text/event-stream"),
        http(b'data: {"error": {"type": "server_error"}}\n\n', kind="text/event-stream"),
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 50\r\n\r\n{",
        b"what?\r\nconnection: close\r\n\r\n",
        http(b"not gzip", content_encoding="gzip"),
    ],
)
async def test_nonsense_is_tried_again(nonsense: bytes) -> None:
    async with answering(nonsense, ANSWER) as server:
        async with ChatModel("llama", config(server.url), backoff=Pauses().backoff()) as chat:
            assert (await chat.ask("Hi.")).text == "ok"


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_an_endless_answer_is_not_read_to_its_end(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_BYTES", 1000)
    async with answering(http(b"x" * 5000, kind=kind)) as server:
        async with ChatModel("llama", config(server.url), backoff=Pauses().backoff(attempts=1)) as chat:
            with pytest.raises(ChatUnavailableError, match="more than 1000 bytes"):
                await chat.ask("Hi.")


async def test_events_may_come_in_any_pieces() -> None:
    chunks = [{"choices": [{"delta": {"content": piece}}]} for piece in ("Grüße", " an", " alle")]
    chunks.append({"choices": [{"delta": {}, "finish_reason": "length"}]})
    events = "".join(
        f": ping\r\n\r\ndata: {json.dumps(c, ensure_ascii=False)}\r\n\r\n" for c in chunks
    ).encode()
    events += b"data: [DONE]\n\n"
    body = b"".join(b"1\r\n" + events[at : at + 1] + b"\r\n" for at in range(len(events))) + b"0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    async with answering(head + body, ANSWER) as server:
        async with ChatModel("llama", config(server.url), backoff=Pauses().backoff()) as chat:
            reply = await chat.ask("Hi.")
            assert (reply.text, reply.finish_reason) == ("Grüße an alle", "length")
            await chat.ask("Hi.")
    assert server.connections == 1

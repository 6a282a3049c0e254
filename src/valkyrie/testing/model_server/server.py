"""A loopback server that plays a model for agents, by a script, with connections it can cut."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

from valkyrie.testing.model_server.dialects import (
    ScriptedChatCompletions,
    ScriptedGenerateContent,
    ScriptedMessages,
    ScriptedResponses,
)
from valkyrie.testing.model_server.script import (
    LAST,
    Fault,
    OfferedTool,
    ReceivedRequest,
    Say,
    Script,
    ScriptedAnswer,
    ScriptedApi,
    ScriptedUsage,
    Shell,
    ToolRequest,
    ToolUse,
    Turn,
    rough_tokens,
    shell_arguments,
    shell_tool,
)

MOST_HEAD = 256 * 1024
MOST_BODY = 256 * 1024 * 1024


class BadRequestError(Exception):
    """What came is no HTTP request this server reads."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request; the names of headers are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body as an object; an empty one for what is none."""
        try:
            found = json.loads(self.body or b"{}")
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class HttpReply:
    """What is answered: a whole body, or pieces as they come."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    pieces: AsyncIterator[bytes] | None = None
    cut: bool = False
    """The connection breaks before the end of the body."""

    @classmethod
    def of(cls, data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpReply:
        """Plain data as JSON."""
        return cls(status, json.dumps(data).encode(), headers=headers or {})


Handler = Callable[[Request], Awaitable[HttpReply]]


async def serve_connection(
    handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer the requests of one connection until it ends."""
    try:
        while request := await _read(reader):
            reply = await handler(request)
            await _write(writer, request, reply)
            if reply.cut:
                writer.transport.abort()
                return
            if request.headers.get("connection", "").lower() == "close":
                return
    except (ConnectionError, asyncio.IncompleteReadError, BadRequestError):
        return
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError:
        raise BadRequestError("head too long") from None
    first, *lines = head.rstrip("\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3:
        raise BadRequestError(first[:100])
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    body = await _body(reader, headers)
    if headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    path, _, query = words[1].partition("?")
    return Request(words[0], path, query, headers, body)


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        length = int(headers.get("content-length") or 0)
        if not 0 <= length <= MOST_BODY:
            raise BadRequestError("body too long")
        return await reader.readexactly(length)
    found = bytearray()
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        if len(found) + size > MOST_BODY:
            raise BadRequestError("body too long")
        found += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return bytes(found)


async def _write(writer: asyncio.StreamWriter, request: Request, reply: HttpReply) -> None:
    length = ("transfer-encoding", "chunked") if reply.pieces else ("content-length", str(len(reply.body)))
    headers = {"content-type": reply.content_type, length[0]: length[1], **reply.headers}
    head = f"HTTP/1.1 {reply.status} {_phrase(reply.status)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(head.encode("latin-1") + b"\r\n")
    if request.method != "HEAD" and reply.pieces is None:
        writer.write(reply.body[: len(reply.body) // 2] if reply.cut else reply.body)
    await writer.drain()
    if reply.pieces is not None:
        async for piece in reply.pieces:
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
        if not reply.cut:
            writer.write(b"0\r\n\r\n")
            await writer.drain()


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Overloaded" if status == 529 else "Unknown"


# A loopback server that plays a model for agents, by a script.

LOOPBACK = "127.0.0.1"
ASIDE = "ok"
"""The answer to requests without tools in a conversation that is about using them: titles and the like."""
REFUSAL = "I can't help with that."
MUSING = "Let me think about this first. " * 8
_APIS: Mapping[str, ScriptedApi] = {
    "/messages": ScriptedMessages(),
    "/responses": ScriptedResponses(),
    "/chat/completions": ScriptedChatCompletions(),
    ":generateContent": ScriptedGenerateContent(),
    ":streamGenerateContent": ScriptedGenerateContent(),
}


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request to a model, and what became of it."""

    api: str
    """messages, responses, chat or gemini."""
    conversation: str
    turn: Turn
    """Of the script; `Say("ok")` for a request beside it."""
    aside: bool
    body: Mapping[str, Any] = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    spent: ScriptedUsage
    """Nothing, for a fault."""


class ModelServer:
    """Serves Anthropic Messages, OpenAI Responses and Chat Completions, and Gemini, on a port of its own.

    A request's place in its conversation is read from the history it brings, so conversations at the same
    time do not mix, and none has to be announced.
    """

    def __init__(self, script: Script, *, host: str = LOOPBACK, port: int = 0) -> None:
        self.script = script
        self.requests: list[Recorded] = []
        self._host, self._port = host, port
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._faults: Counter[tuple[str, str, int]] = Counter()
        self._ids = itertools.count(1)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, self._host, self._port, limit=MOST_HEAD)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        """Where it is; `url + "/c/NAME"` is the conversation of that name."""
        assert self._server is not None, "the server is not started"
        return f"http://{self._host}:{self._server.sockets[0].getsockname()[1]}"

    async def serve_forever(self) -> None:
        assert self._server is not None
        await self._server.serve_forever()

    def spent(self, conversation: str | None = None) -> ScriptedUsage:
        """Tokens of all answers so far, or of one conversation's."""
        chosen = [r.spent for r in self.requests if conversation in (None, r.conversation)]
        return ScriptedUsage(
            sum(s.input for s in chosen), sum(s.output for s in chosen), sum(s.cached for s in chosen)
        )

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await serve_connection(self._answer, reader, writer)
        except asyncio.CancelledError:
            # The server ends; the streams machinery would report the cancellation as a failure.
            writer.transport.abort()
        finally:
            self._open.discard(task)

    async def _answer(self, request: Request) -> HttpReply:
        name, path = _conversation(request.path)
        if path == request.path and self.script.by_text:
            text = json.dumps(request.json(), ensure_ascii=False)
            name = next((named for part, named in self.script.by_text.items() if part in text), name)
        if name not in self.script.conversations:
            return HttpReply.of({"error": {"message": f"the script has no conversation {name!r}"}}, 404)
        if request.method in ("GET", "HEAD"):
            return _looked_at(path)
        if path.endswith("/count_tokens"):
            return HttpReply.of({"input_tokens": rough_tokens(request.json())})
        if path.endswith(":countTokens"):
            return HttpReply.of({"totalTokens": rough_tokens(request.json())})
        for end, api in _APIS.items():
            if path.endswith(end):
                return await self._play(api, name, path, request)
        return HttpReply.of({"error": {"message": f"nothing is served at {request.method} {path}"}}, 404)

    async def _play(self, api: ScriptedApi, name: str, path: str, request: Request) -> HttpReply:
        body = request.json()
        asked = api.asked(path, body, request.headers)
        turns = self.script.conversations[name]
        aside = not asked.tools and any(isinstance(turn, ToolRequest | Shell) for turn in turns)
        turn = Say(ASIDE) if aside else self._turn(name, asked)
        await asyncio.sleep(turn.delay)
        answer = None
        if not isinstance(turn, Fault) or turn.kind in ("refusal", "cut"):
            answer = _made(turn, asked, next(self._ids), body)
        spent = (
            answer.spent
            if answer and not (isinstance(turn, Fault) and turn.kind == "cut")
            else ScriptedUsage()
        )
        self.requests.append(Recorded(api.name, name, turn, aside, body, request.headers, spent))
        if answer is None:
            assert isinstance(turn, Fault)
            return _failed(api, turn)
        return _spoken(api, answer, stream=asked.stream, cut=isinstance(turn, Fault) and turn.kind == "cut")

    def _turn(self, name: str, asked: ReceivedRequest) -> Turn:
        """The script's turn for a request: faults stand between turns and leave no trace in a history."""
        before = 0
        for at, turn in enumerate(self.script.conversations[name]):
            if isinstance(turn, Fault):
                if before == asked.turn and self._still(turn, (name, _key(asked), at)):
                    return turn
            elif before == asked.turn:
                return turn
            else:
                before += 1
        return LAST

    def _still(self, fault: Fault, place: tuple[str, str, int]) -> bool:
        if fault.every is not None:
            place = (place[0], "", place[2])
            self._faults[place] += 1
            return (self._faults[place] - 1) % fault.every == 0
        self._faults[place] += 1
        return fault.times is None or self._faults[place] <= fault.times


def _key(asked: ReceivedRequest) -> str:
    """Return whose fault is counted: the program's own conversation, or else those with the same history."""
    text = asked.session or json.dumps(asked.history, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _conversation(path: str) -> tuple[str, str]:
    if not path.startswith("/c/"):
        return "default", path
    name, _, rest = path.removeprefix("/c/").partition("/")
    return name, f"/{rest}"


def _looked_at(path: str) -> HttpReply:
    if path.endswith("/models"):
        return HttpReply.of({"object": "list", "data": [], "models": [], "has_more": False})
    return HttpReply.of({"status": "ok"})


def _made(turn: Turn, asked: ReceivedRequest, number: int, body: Mapping[str, Any]) -> ScriptedAnswer:
    """The turn as an answer to what was asked, with the tool it needs."""
    text, use, refused = "", None, False
    if isinstance(turn, Say):
        text = turn.text
    elif isinstance(turn, Fault):
        refused = turn.kind == "refusal"
        text = turn.message or (
            "I can't help with that." if refused else "Let me think about this first. " * 8
        )
    else:
        text, use = turn.text, _use(turn, asked, number)
        if use is None:
            offered = ", ".join(tool.name for tool in asked.tools)
            text = f"No tool that runs {turn!r} is offered, only: {offered}"
    told = ScriptedUsage() if isinstance(turn, Fault) else turn.tokens
    spent = ScriptedUsage(
        told.input if told.input else rough_tokens(dict(body)),
        told.output if told.output else rough_tokens(text + (json.dumps(dict(use.arguments)) if use else "")),
        told.cached,
    )
    return ScriptedAnswer(f"scripted{number}", asked.model, text, use, spent, refused)


def _use(turn: ToolRequest | Shell, asked: ReceivedRequest, number: int) -> ToolUse | None:
    if isinstance(turn, Shell):
        tool = shell_tool(asked.tools)
        return ToolUse(f"call_{number}", tool, shell_arguments(tool, turn.command)) if tool else None
    named = [tool for tool in asked.tools if tool.name == turn.tool]
    return ToolUse(f"call_{number}", named[0] if named else OfferedTool(turn.tool), turn.arguments)


def _failed(api: ScriptedApi, fault: Fault) -> HttpReply:
    failure = api.failure(fault)
    asked = {} if fault.retry_after is None else {"retry-after": f"{fault.retry_after:g}"}
    return HttpReply.of(failure.body, failure.status, {**failure.headers, **asked})


def _spoken(api: ScriptedApi, answer: ScriptedAnswer, *, stream: bool, cut: bool) -> HttpReply:
    if not stream:
        return HttpReply(body=json.dumps(api.whole(answer)).encode(), cut=cut)
    events: Iterator[bytes] = api.events(answer)
    if cut:
        whole = list(events)
        events = iter(whole[: len(whole) // 2])
    return HttpReply(content_type="text/event-stream", pieces=_each(events), cut=cut)


async def _each(events: Iterator[bytes]) -> AsyncIterator[bytes]:
    for item in events:
        yield item
        await asyncio.sleep(0)

"""A loopback server that plays a model for agents, by a script."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from valkyrie.testing.model_server.anthropic import Messages
from valkyrie.testing.model_server.chat import ChatCompletions
from valkyrie.testing.model_server.gemini import GenerateContent
from valkyrie.testing.model_server.http import MOST_HEAD, HttpReply, Request, serve_connection
from valkyrie.testing.model_server.responses import Responses
from valkyrie.testing.model_server.script import LAST, Call, Fault, Say, Script, Shell, Turn
from valkyrie.testing.model_server.shape import (
    Api,
    Asked,
    OfferedTool,
    ScriptedAnswer,
    Spent,
    ToolUse,
    rough_tokens,
)
from valkyrie.testing.model_server.shells import shell_arguments, shell_tool

LOOPBACK = "127.0.0.1"
ASIDE = "ok"
"""The answer to requests without tools in a conversation that is about using them: titles and the like."""
REFUSAL = "I can't help with that."
MUSING = "Let me think about this first. " * 8
_APIS: Mapping[str, Api] = {
    "/messages": Messages(),
    "/responses": Responses(),
    "/chat/completions": ChatCompletions(),
    ":generateContent": GenerateContent(),
    ":streamGenerateContent": GenerateContent(),
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
    spent: Spent
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
        """Until it is cancelled."""
        assert self._server is not None
        await self._server.serve_forever()

    def spent(self, conversation: str | None = None) -> Spent:
        """Tokens of all answers so far, or of one conversation's."""
        chosen = [r.spent for r in self.requests if conversation in (None, r.conversation)]
        return Spent(
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

    async def _play(self, api: Api, name: str, path: str, request: Request) -> HttpReply:
        body = request.json()
        asked = api.asked(path, body, request.headers)
        turns = self.script.conversations[name]
        aside = not asked.tools and any(isinstance(turn, Call | Shell) for turn in turns)
        turn = Say(ASIDE) if aside else self._turn(name, asked)
        await asyncio.sleep(turn.delay)
        answer = None
        if not isinstance(turn, Fault) or turn.kind in ("refusal", "cut"):
            answer = _made(turn, asked, next(self._ids), body)
        spent = answer.spent if answer and not (isinstance(turn, Fault) and turn.kind == "cut") else Spent()
        self.requests.append(Recorded(api.name, name, turn, aside, body, request.headers, spent))
        if answer is None:
            assert isinstance(turn, Fault)
            return _failed(api, turn)
        return _spoken(api, answer, stream=asked.stream, cut=isinstance(turn, Fault) and turn.kind == "cut")

    def _turn(self, name: str, asked: Asked) -> Turn:
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


def _key(asked: Asked) -> str:
    """Whose fault is counted: the program's own conversation, or else those with the same history."""
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


def _made(turn: Turn, asked: Asked, number: int, body: Mapping[str, Any]) -> ScriptedAnswer:
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
    told = Spent() if isinstance(turn, Fault) else turn.tokens
    spent = Spent(
        told.input if told.input else rough_tokens(dict(body)),
        told.output if told.output else rough_tokens(text + (json.dumps(dict(use.arguments)) if use else "")),
        told.cached,
    )
    return ScriptedAnswer(f"scripted{number}", asked.model, text, use, spent, refused)


def _use(turn: Call | Shell, asked: Asked, number: int) -> ToolUse | None:
    if isinstance(turn, Shell):
        tool = shell_tool(asked.tools)
        return ToolUse(f"call_{number}", tool, shell_arguments(tool, turn.command)) if tool else None
    named = [tool for tool in asked.tools if tool.name == turn.tool]
    return ToolUse(f"call_{number}", named[0] if named else OfferedTool(turn.tool), turn.arguments)


def _failed(api: Api, fault: Fault) -> HttpReply:
    failure = api.failure(fault)
    asked = {} if fault.retry_after is None else {"retry-after": f"{fault.retry_after:g}"}
    return HttpReply.of(failure.body, failure.status, {**failure.headers, **asked})


def _spoken(api: Api, answer: ScriptedAnswer, *, stream: bool, cut: bool) -> HttpReply:
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

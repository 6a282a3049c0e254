"""Commands in a session, one at a time: followed as they run, found again when the line drops."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from secrets import token_hex
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from sandboxes.daytona import sdk
from sandboxes.errors import (
    SandboxConnectionError,
    SandboxError,
    SandboxFileNotFoundError,
    SandboxNotFoundError,
)
from sandboxes.retry import Backoff
from sandboxes.scripted_sandbox import reporting, wrapped
from sandboxes.threads import uninterrupted
from sandboxes.types import TIMEOUT_EXIT_CODE, Command, OutputSink, StreamName

if TYPE_CHECKING:
    from daytona import AsyncSandbox

T = TypeVar("T")

KILL_SECONDS = 20.0
"""How long killing may take before it is given up."""
DRAIN_SECONDS = 5.0
"""How long the log may still bring output after a kill."""
_CODE_DELAYS = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Between looks for the exit code, which may be written just after the log has ended."""
_DROPS = 30
"""Lost log streams in a row, without anything new in between, before the command is given up."""

_REUSED_TIMES = 100
_REUSED_CHARS = 1 << 20
"""The other side keeps what a session's commands printed for as long as the session lives."""
_ENDED = frozenset({400, 404, 410})
"""Answers of a session that is over, to a command it has not begun."""


class Calls(Protocol):
    """What a command needs of the sandbox around it."""

    async def call(self, action: Callable[[], Awaitable[T]], what: str, *, repeat: bool) -> T: ...

    async def kill_marked(self, mark: str) -> None: ...

    async def has_marked(self, mark: str) -> bool: ...


@runtime_checkable
class _Paced(Protocol):
    """A sink that asks the reading side to wait while it is full."""

    full: bool

    async def room(self) -> None: ...


class Report:
    """What follows a command's own stderr: found there, and taken out of it."""

    _LONGEST = 100

    def __init__(self) -> None:
        self.token = token_hex(8)
        self._start = f"\036{self.token}:"
        self._held = ""

    def feed(self, text: str) -> str:
        """The part of `text`, and of what was held back before, that cannot be the report."""
        text = self._held + text
        at = text.find(self._start)
        if at < 0:
            ends = range(max(0, len(text) - len(self._start) + 1), len(text))
            at = next((at for at in ends if self._start.startswith(text[at:])), len(text))
        elif len(text) - at > self._LONGEST:
            at = len(text)
        self._held = text[at:]
        return text[:at]

    def read(self) -> tuple[int, bool] | None:
        """Exit code, and whether processes are left; None when the command did not live to tell."""
        found = re.fullmatch(f"{self._start}([0-9]{{1,3}}):([01])\036", self._held)
        return None if found is None else (int(found[1]), found[2] == "1")


class DaytonaSession:
    """Runs one command after another, for as long as each leaves it `reusable`."""

    def __init__(self, sandbox: AsyncSandbox, calls: Calls, backoff: Backoff) -> None:
        self._sandbox_id = sandbox.id
        self._process = sandbox.process
        self._calls = calls
        self._backoff = backoff
        self._id = ""
        self._times = self._chars = 0
        self.reusable = False
        self._renew()

    def _renew(self) -> None:
        self._mark = f"{self._sandbox_id}.{token_hex(8)}"
        self._seen: dict[StreamName, int] = {"stdout": 0, "stderr": 0}
        self._report = Report()
        self._timed_out = False
        self._kept = False
        self._sink_error: Exception | None = None
        self.reusable = False

    async def run(self, command: Command, sink: OutputSink | None) -> int:
        """The exit code: the command's own, or 124 after its timeout."""
        self._renew()
        text = reporting(wrapped(command, self._mark), self._mark, self._report.token)
        follow: asyncio.Task[int] | None = None
        try:
            started = await self._open_and_start(text)
            follow = asyncio.create_task(self._follow(started, sink))
            await asyncio.wait((follow,), timeout=command.timeout)
            if follow.done():
                code = follow.result()
                await self._judge_leftovers()
                return code
            self._timed_out = True
            await self._calls.kill_marked(self._mark)
            await asyncio.wait((follow,), timeout=DRAIN_SECONDS)
            return TIMEOUT_EXIT_CODE
        except BaseException as error:
            if not isinstance(error, SandboxNotFoundError):
                await uninterrupted(self._end_all())
            raise
        finally:
            await uninterrupted(self._leave(follow))

    async def _judge_leftovers(self) -> None:
        report = self._report.read()
        # Deleting the session would end what the command left in the background as well, and the output
        # of that would mix with the next command's.
        self._kept = report[1] if report else await self._calls.has_marked(self._mark)
        self._times += 1
        self._chars += sum(self._seen.values())
        spent = self._times >= _REUSED_TIMES or self._chars >= _REUSED_CHARS
        self.reusable = not (self._kept or spent)

    async def _open_and_start(self, text: str) -> str:
        if self._id:
            try:
                return await self._start(text)
            except SandboxError as error:
                cause = error.__cause__
                if cause is None or sdk.status_of(cause) not in _ENDED:
                    raise
        self._times = self._chars = 0
        self._id = session = f"{self._sandbox_id}-{token_hex(8)}"
        await self._calls.call(lambda: self._process.create_session(session), "open a session", repeat=False)
        return await self._start(text)

    async def _start(self, text: str) -> str:
        request = sdk.reaching().SessionExecuteRequest(command=text, run_async=True)
        response = await self._calls.call(
            lambda: self._process.execute_session_command(self._id, request), "start a command", repeat=False
        )
        return response.cmd_id

    async def _follow(self, command_id: str, sink: OutputSink | None) -> int:
        """Hand on the log to its end, over as many connections as it takes."""
        drops = 0
        while True:
            before = sum(self._seen.values())
            lost: BaseException | None = None
            try:
                await self._read_log(command_id, sink)
            except sdk.failures() as error:
                if self._sink_error is not None:
                    raise self._sink_error from None
                lost = error
            report = self._report.read()
            code = report[0] if report else await self._exit_code(command_id, wait=lost is None)
            if code is not None and lost is None:
                return code
            drops = drops + 1 if sum(self._seen.values()) == before else 1
            if drops > _DROPS or self._timed_out:
                raise SandboxConnectionError(f"cannot follow a command: its log broke off ({lost})")
            await self._backoff.sleep(self._backoff.delay(drops))

    async def _read_log(self, command_id: str, sink: OutputSink | None) -> None:
        # Each connection tells the log from its beginning: what is known already is passed over.
        told: dict[StreamName, int] = {"stdout": 0, "stderr": 0}

        async def hear(stream: StreamName, text: str) -> None:
            known = self._seen[stream] - told[stream]
            told[stream] += len(text)
            fresh = text[known:] if known > 0 else text
            self._seen[stream] += len(fresh)
            if stream == "stderr":
                fresh = self._report.feed(fresh)
            if not fresh or sink is None:
                return
            try:
                sink(stream, fresh)
            except Exception as error:
                self._sink_error = error  # the SDK would raise it as one of its own
                raise
            if isinstance(sink, _Paced) and sink.full:
                await sink.room()

        await self._process.get_session_command_logs_async(
            self._id, command_id, lambda text: hear("stdout", text), lambda text: hear("stderr", text)
        )

    async def _exit_code(self, command_id: str, *, wait: bool) -> int | None:
        for delay in (*_CODE_DELAYS, None) if wait else (None,):
            try:
                found = await self._calls.call(
                    lambda: self._process.get_session_command(self._id, command_id),
                    "read an exit code",
                    repeat=True,
                )
            except SandboxFileNotFoundError as error:
                raise SandboxError("the command is lost: its session was ended from elsewhere") from error
            if found.exit_code is not None or delay is None:
                return found.exit_code
            await asyncio.sleep(delay)
        return None

    async def _end_all(self) -> None:
        try:
            async with asyncio.timeout(KILL_SECONDS):
                await self._calls.kill_marked(self._mark)
        except (SandboxError, TimeoutError):
            pass  # the reason for ending it is already on its way up

    async def _leave(self, follow: asyncio.Task[int] | None) -> None:
        if follow is not None and not follow.done():
            follow.cancel()
            await asyncio.wait((follow,))
        if follow is not None and not follow.cancelled():
            follow.exception()
        if not (self._kept or self.reusable):
            await self.close()

    async def close(self) -> None:
        """End the session, if there is one."""
        session, self._id = self._id, ""
        if not session:
            return
        try:
            async with asyncio.timeout(KILL_SECONDS):
                await self._process.delete_session(session)
        except sdk.failures():
            pass  # it goes with the sandbox at the latest

"""One Daytona sandbox, behind the protocol every provider speaks, and the sessions its commands run in."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar
from urllib.parse import urlsplit

from sandboxes.daytona import sdk
from sandboxes.daytona.sdk import DaytonaBackoff, call
from sandboxes.errors import (
    SandboxCommandError,
    SandboxConnectionError,
    SandboxError,
    SandboxFileNotFoundError,
    SandboxNotFoundError,
    SandboxUnsupportedError,
)
from sandboxes.retry import Backoff
from sandboxes.scripted_sandbox import (
    FIND_MARKED,
    KILL_MARKED,
    MARK,
    RESERVED,
    ScriptedSandbox,
    check_names,
    quoted,
    reporting,
    wrapped,
)
from sandboxes.streams import PacedSink, stream_output, uninterrupted
from sandboxes.types import TIMEOUT_EXIT_CODE, Command, ExecResult, OutputSink, StreamName

if TYPE_CHECKING:
    from daytona import AsyncSandbox

    from sandboxes.types import DaytonaProviderConfig


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
            if isinstance(sink, PacedSink) and sink.full:
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


# One Daytona sandbox, behind the protocol every provider speaks.


_DOMAIN = re.compile(r"(\*\.)?([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]*[a-z0-9])?")


class EgressSettings(TypedDict, total=False):
    """Keywords of the SDK's `update_network_settings`."""

    network_allow_list: str
    domain_allow_list: str


def egress_settings(rules: list[str]) -> EgressSettings:
    """URLs, hosts or IPv4 networks as one list of either kind; mixing the kinds is refused."""
    if not rules:
        raise SandboxError("an empty list of egress rules allows nothing; block the network instead")
    domains: list[str] = []
    networks: list[str] = []
    for rule in rules:
        text = rule.strip()
        host = (urlsplit(text).hostname or "") if "://" in text else text
        network = _network(host, rule)
        if network is not None:
            networks.append(network)
        elif _DOMAIN.fullmatch(host.lower()):
            domains.append(host.lower())
        else:
            raise SandboxError(f"{rule!r} is no URL, host or IPv4 network")
    if domains and networks:
        raise SandboxError("Daytona takes domains or networks as egress rules, not both at once")
    return {"domain_allow_list": ",".join(domains)} if domains else {"network_allow_list": ",".join(networks)}


def _network(host: str, rule: str) -> str | None:
    try:
        network = ipaddress.ip_network(host, strict=False)
    except ValueError:
        if ":" in host:
            raise SandboxError(f"{rule!r}: egress rules take neither IPv6 nor ports") from None
        return None
    if network.version == 6:
        raise SandboxError(f"{rule!r}: Daytona takes no IPv6 in egress rules")
    return str(network)


HELPER_SECONDS = 300
"""How long one of our own little scripts may take."""
IDLE_SECONDS = 120
"""How long a transfer may stand still: reading a fifo in place of a file would never end."""
SESSIONS_KEPT = 4
"""Sessions that wait for the next command: opening one costs more than most commands."""
GONE = frozenset({"destroyed", "destroying"})


class DaytonaSandbox(ScriptedSandbox):
    """A sandbox of Daytona's. What the protocol does not know is the SDK's object's (`fs`, `process`, …)."""

    def __init__(
        self,
        sandbox: AsyncSandbox,
        *,
        config: DaytonaProviderConfig | None = None,
        deleted: set[str] | None = None,
        backoff: DaytonaBackoff | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._config = config
        self._deleted = deleted if deleted is not None else set()
        self._backoff = backoff or DaytonaBackoff()
        self._sessions: list[DaytonaSession] = []
        self._sessions_kept = SESSIONS_KEPT if config is not None else 0
        # Tests of services hand in objects of their own, which have what the test is about.
        self.labels = dict(getattr(sandbox, "labels", None) or {})
        self.created_at = moment(getattr(sandbox, "created_at", None))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_sandbox":
            raise AttributeError(name)
        return getattr(self._sandbox, name)

    @property
    def id(self) -> str:
        return str(self._sandbox.id)

    @property
    def name(self) -> str:
        return str(self._sandbox.name or self._sandbox.id)

    @property
    def state(self) -> str:
        """`started`, `stopped` or `deleted` as far as is known here; Daytona's own word for others."""
        state = self._sandbox.state
        value = str(getattr(state, "value", state) or "unknown")
        if value in GONE or self.id in self._deleted:
            return "deleted"
        return "stopped" if value in ("archived", "paused") else value

    async def run(self, command: Command, sink: OutputSink | None = None) -> int:
        self._check()
        own = self._sandbox.user
        if command.user is not None and command.user not in (own, "0" if own == "root" else own):
            raise SandboxUnsupportedError(
                f"commands of this Daytona sandbox run as {own}, not {command.user}; leave the user out"
            )
        check_names(command.env)
        session = (
            self._sessions.pop()
            if self._sessions
            else DaytonaSession(self._sandbox, self, self._backoff.lost)
        )
        code = await session.run(command, sink)
        if session.reusable and len(self._sessions) < self._sessions_kept:
            self._sessions.append(session)
        elif session.reusable:
            await session.close()
        return code

    async def end_sessions(self) -> None:
        """Give up the sessions that wait for commands; from here on none are kept."""
        self._sessions_kept = 0
        waiting, self._sessions = self._sessions, []
        if self.state != "deleted":
            await asyncio.gather(*(session.close() for session in waiting))

    async def exec(self, command: str, *, cwd: str | None = None, timeout: float | None = None) -> ExecResult:
        pieces: list[str] = []

        def keep(_stream: StreamName, text: str) -> None:
            pieces.append(text)

        code = await self.run(_merged(command, cwd, timeout, {}), keep)
        return ExecResult(exit_code=code, output="".join(pieces))

    async def command(
        self,
        command: str,
        *,
        cwd: str | None = None,
        timeout: float | None = None,
        env_vars: Mapping[str, str] | None = None,
    ) -> AsyncIterator[str]:
        env = dict(env_vars or {})
        check_names(env, reserved=RESERVED)
        async with aclosing(stream_output(self, _merged(command, cwd, timeout, env))) as items:
            async for item in items:
                if isinstance(item, str):
                    yield item
                elif item != 0:
                    raise SandboxCommandError(f"Command failed with exit code {item}", exit_code=item)

    async def upload_file(self, path: str, content: bytes) -> None:
        await self.call(lambda: self._sandbox.fs.upload_file(content, path), f"write {path}", repeat=True)

    async def upload_stream(self, path: str, chunks: AsyncIterator[bytes], *, mode: int = 0o644) -> None:
        await self.call(
            lambda: self._sandbox.fs.upload_file_stream(chunks, path), f"write {path}", repeat=False
        )
        if mode != 0o644:
            await self.call(
                lambda: self._sandbox.fs.set_file_permissions(path, mode=f"{mode & 0o1777:o}"),
                f"set the mode of {path}",
                repeat=True,
            )

    async def download_file(self, path: str) -> bytes:
        return b"".join([chunk async for chunk in self.stream_download(path)])

    async def stream_download(self, path: str) -> AsyncIterator[bytes]:
        what = f"read {path}"
        chunks = await self.call(
            lambda: self._sandbox.fs.download_file_stream(path, timeout=IDLE_SECONDS), what, repeat=False
        )
        received = False
        try:
            async for chunk in chunks:
                received = True
                yield chunk
        except sdk.failures() as error:
            # The SDK takes an empty file for a failure, without a status.
            if received or sdk.status_of(error) is not None or not await self._is_empty_file(path):
                raise await self._judge(error, what) from error

    async def upload_folder(self, source: Path, path: str) -> None:
        self._check()
        await super().upload_folder(source, path)

    async def kill_all(self) -> None:
        await self.kill_marked(f"{self.id}.")

    def shell_argv(self, cwd: str = "/") -> list[str]:
        self._check()
        if self._config is None:
            raise SandboxUnsupportedError("a sandbox made without a provider has no shell to offer")
        # The key comes from the shell's environment, where few can see it.
        place = (self._config.DAYTONA_API_URL, self._config.DAYTONA_TARGET)
        return [sys.executable, "-P", "-m", "sandboxes.daytona.shell", self.id, cwd, *place]

    async def modify_egress_rules(self, rules: list[str]) -> None:
        settings = egress_settings(rules)
        await self.call(
            lambda: self._sandbox.update_network_settings(**settings), "restrict the network", repeat=True
        )

    async def clear_egress_rules(self) -> None:
        await self.call(
            lambda: self._sandbox.update_network_settings(network_block_all=False),
            "lift network rules",
            repeat=True,
        )

    async def kill_marked(self, mark: str) -> None:
        """End the processes of ours whose mark begins like this."""
        await self.must(KILL_MARKED, f"{MARK}={mark}", what="kill processes")

    async def has_marked(self, mark: str) -> bool:
        """Return whether processes of ours with that mark live."""
        _, output = await self.helper(FIND_MARKED, f"{MARK}={mark}", what="look for processes")
        return output.strip() != "no"

    async def helper(self, script: str, *arguments: str, what: str) -> tuple[int, str]:
        """One of our own scripts: exit code and output. They may be run twice."""
        line = quoted("sh", "-c", script, "sh", *arguments)
        response = await self.call(
            lambda: self._sandbox.process.exec(line, timeout=HELPER_SECONDS), what, repeat=True
        )
        return int(response.exit_code), response.result or ""

    async def _is_empty_file(self, path: str) -> bool:
        try:
            info = await self._sandbox.fs.get_file_info(path)
        except sdk.failures():
            return False
        return info.size == 0 and not info.is_dir and info.mode.startswith("-")

    async def call(self, action: Callable[[], Awaitable[T]], what: str, *, repeat: bool) -> T:
        """A call of the SDK on this sandbox, its failures in the protocol's terms."""
        self._check()
        return await call(action, what, self._judge, self._backoff, repeat=repeat)

    async def _judge(self, error: BaseException, what: str) -> SandboxError:
        verdict = sdk.translated(error, f"{what} in sandbox {self.id}")
        if sdk.is_missing_file(error) or not (
            isinstance(verdict, SandboxFileNotFoundError) or sdk.is_connection_failure(error)
        ):
            return verdict
        # Neither a 404 nor a gateway's error tells whether it is about the sandbox as a whole.
        try:
            await self._sandbox.refresh_data()
        except sdk.failures() as second:
            return self._gone() if sdk.status_of(second) == 404 else verdict
        return self._gone() if self.state == "deleted" else verdict

    def _check(self) -> None:
        if self.id in self._deleted:
            raise self._gone()

    def _gone(self) -> SandboxNotFoundError:
        return SandboxNotFoundError(f"sandbox {self.id} was deleted")


def moment(text: str | datetime | None) -> datetime | None:
    """An API's time as an aware datetime."""
    if text is None or text == "":
        return None
    value = text if isinstance(text, datetime) else datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


def _merged(script: str, cwd: str | None, timeout: float | None, env: Mapping[str, str]) -> Command:
    # One stream keeps the order in which the command wrote, which two followed apart do not.
    return Command.shell(f"exec 2>&1; {script}", cwd=cwd, timeout=timeout, env=env)

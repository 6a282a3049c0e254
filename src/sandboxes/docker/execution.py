"""One command in a container, followed as it runs."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import TYPE_CHECKING

from sandboxes.docker import engine
from sandboxes.docker.engine import EngineClient, status_of
from sandboxes.errors import (
    SandboxConnectionError,
    SandboxError,
    SandboxImageError,
    SandboxNotFoundError,
    SandboxUserError,
)
from sandboxes.protocol import ImageDefaults
from sandboxes.scripted_sandbox import MARK, check_names
from sandboxes.streams import PacedSink, uninterrupted, utf8_decoder
from sandboxes.types import KILLED_EXIT_CODE, TIMEOUT_EXIT_CODE, Command, OutputSink, StreamName

if TYPE_CHECKING:
    from aiodocker.stream import Stream

DRAIN_SECONDS = 5.0
"""How long output may still come after a kill."""
_NO_USER = b"unable to find user"
_SAID_BYTES = 500
_CODE_DELAYS = (0.0, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
"""Between looks for the exit code, which the engine may write after the output has ended."""

WRAPPER = r"""
( if [ -n "$2" ]; then cd -- "$2" || exit 126; else cd -- "$3" 2>/dev/null || :; fi
  shift 3; own=$(command -v setsid || :)
  exec $own "$@" </dev/null )
code=$?
printf '\036%s:%d\036' "$1" "$code"
printf '\036%s:%d\036' "$1" "$code" >&2
exit "$code"
"""
"""Runs the words from `$4` on in the folder `$2`, else in `$3` if that is there, then tells its end on both
streams: a process left in the background may hold them open for as long as it lives, and the engine would
wait for it."""

IDLE = r"""
printf '\036%s:0\036' "$1"; exec >/dev/null 2>&1
sleep infinity || while :; do sleep 86400; done
"""
"""What an entrypoint is given to run: tells that it has come so far, and does nothing."""
ENTRYPOINT_SECONDS = 10.0
"""So long an entrypoint is waited for: one that serves in the foreground never runs its command."""

BytesSink = Callable[[StreamName, bytes], Awaitable[None]]


class ExitCodeReader:
    """Takes the told end out of one stream."""

    _LONGEST = 24

    def __init__(self, token: str) -> None:
        self._start = b"\x1e" + token.encode() + b":"
        self._whole = re.compile(re.escape(self._start) + rb"([0-9]{1,3})\x1e")
        self._held = b""
        self.code: int | None = None

    def feed(self, data: bytes) -> bytes:
        """Return what of `data`, and of what was held back before, is the command's own."""
        if self.code is not None:
            return b""
        data = self._held + data
        found = self._whole.search(data)
        if found is not None:
            self.code = int(found[1])
            self._held = b""
            return data[: found.start()]
        keep = len(self._start) + self._LONGEST
        at = data.find(b"\x1e", max(0, len(data) - keep))
        at = len(data) if at < 0 else at
        self._held = data[at:]
        return data[:at]

    def rest(self) -> bytes:
        """Return what was held back and turned out to be the command's own."""
        held, self._held = self._held, b""
        return held


class Execution:
    """Runs one command to its end; `kill` ends everything that carries its mark, `check` raises when the
    sandbox itself has ended, `check_users` when its list of users is none."""

    def __init__(
        self,
        client: EngineClient,
        container: str,
        kill: Callable[[str, str | None], Awaitable[None]],
        check: Callable[[], Awaitable[None]],
        check_users: Callable[[], Awaitable[None]],
        workdir: str,
    ) -> None:
        self._client = client
        self._workdir = workdir
        self._container = container
        self._kill = kill
        self._check_container = check
        self._check_users = check_users
        self._token = token_hex(8)
        self.mark = f"{container}.{token_hex(8)}"

    async def run(self, command: Command, sink: OutputSink | None) -> int:
        """The exit code: the command's own, or 124 after its timeout."""
        return await self.run_bytes(command, _Decoding(sink) if sink is not None else None)

    async def run_bytes(self, command: Command, sink: BytesSink | None) -> int:
        """As `run`, with output as it is."""
        exec_id = await self._create(command)
        follow = asyncio.create_task(self._follow(exec_id, sink))
        try:
            await asyncio.wait((follow,), timeout=command.timeout)
            if follow.done():
                return follow.result()
            await self._kill(self.mark, command.user)
            await asyncio.wait((follow,), timeout=DRAIN_SECONDS)
            error = follow.exception() if follow.done() and not follow.cancelled() else None
            if isinstance(error, SandboxNotFoundError) or (error and not isinstance(error, SandboxError)):
                raise error
            return TIMEOUT_EXIT_CODE
        except BaseException as error:
            if not isinstance(error, SandboxNotFoundError):
                await uninterrupted(self._end(command))
            raise
        finally:
            if not follow.done():
                follow.cancel()
                await uninterrupted(asyncio.wait((follow,)))
            if not follow.cancelled():
                follow.exception()

    async def _end(self, command: Command) -> None:
        with suppress(SandboxError):  # the reason for ending it is already on its way up
            await self._kill(self.mark, command.user)

    async def _create(self, command: Command) -> str:
        check_names(command.env)
        settings = {"LANG": "C.UTF-8", "TERM": "dumb", **command.env, MARK: self.mark}
        body = {
            "Cmd": [
                *("/bin/sh", "-c", WRAPPER, "sh", self._token, command.cwd or "", self._workdir),
                *command.argv,
            ],
            "Env": [f"{name}={value}" for name, value in settings.items()],
            "WorkingDir": "/",
            # Without one it is the container's, which is root.
            "User": command.user or "",
            "AttachStdout": True,
            "AttachStderr": True,
        }
        path, what = f"containers/{self._container}/exec", f"run a command in {self._container}"
        try:
            made = await self._client.call("POST", path, what=what, body=body)
        except SandboxError as error:
            gone = isinstance(error, SandboxNotFoundError)
            if not gone and (error.__cause__ is None or not engine.is_not_running(error.__cause__)):
                raise
            await self._check_container()
            made = await self._client.call("POST", path, what=what, body=body)
        return str(made["Id"])

    async def _follow(self, exec_id: str, sink: BytesSink | None) -> int:
        ends: dict[StreamName, ExitCodeReader] = {
            name: ExitCodeReader(self._token) for name in ("stdout", "stderr")
        }
        said = b""
        stream = self._client.attach(exec_id)
        try:
            while any(end.code is None for end in ends.values()):
                message = await stream.read_out()
                if message is None:
                    break
                name: StreamName = "stderr" if message.stream == 2 else "stdout"
                own = ends[name].feed(message.data)
                said = (said + own)[-_SAID_BYTES:]
                if own and sink is not None:
                    await sink(name, own)
        except self._client.failures() as error:
            raise await self._judged(error) from error
        finally:
            await _close(stream)
        for name, end in ends.items():
            rest = end.rest() if end.code is None else b""
            if sink is not None:
                await sink(name, rest)
                await sink(name, b"")
        told = [end.code for end in ends.values() if end.code is not None]
        return told[0] if told else await self._exit_code(exec_id, said)

    async def _judged(self, error: BaseException) -> SandboxError:
        await self._check_container()
        return engine.translated(error, f"run a command in {self._container}")

    async def _exit_code(self, exec_id: str, said: bytes) -> int:
        code, started = await exit_code(self._client, exec_id)
        # Forgotten with the container, because the container was started anew, or told before its end.
        await self._check_container()
        if not started and _NO_USER in said:
            await self._check_users()
            words = " ".join(said.decode("utf-8", "replace").split())
            raise SandboxUserError(f"cannot run a command in {self._container}: {words}")
        return KILLED_EXIT_CODE if code is None else code


async def run_entrypoint(
    client: EngineClient,
    container: str,
    image: ImageDefaults,
    env: Mapping[str, str],
    sink: OutputSink | None,
) -> None:
    """Run an image's entrypoint with a command that does nothing, and wait until it starts that, or is late.

    It goes on in the background. SandboxImageError when it ends instead.
    """
    check_names(env)
    token = token_hex(8)
    body = {
        "Cmd": [*image.entrypoint, "/bin/sh", "-c", IDLE, "sh", token],
        "Env": [f"{name}={value}" for name, value in env.items()],
        "WorkingDir": image.workdir,
        "User": image.user or "",
        "AttachStdout": True,
        "AttachStderr": True,
    }
    what = f"run the image's ENTRYPOINT in {container}"
    made = await client.call("POST", f"containers/{container}/exec", what=what, body=body)
    said = _Last(_Decoding(sink) if sink is not None else None)
    stream = client.attach(str(made["Id"]))
    try:
        async with asyncio.timeout(ENTRYPOINT_SECONDS):
            if await _reaches_command(stream, ExitCodeReader(token), said):
                return
    except TimeoutError:
        if sink is not None:
            words = (
                f"the image's ENTRYPOINT did not run its command within {ENTRYPOINT_SECONDS:g} s; going on"
            )
            sink("stderr", f"{words}\n")
        return
    except client.failures() as error:
        raise engine.translated(error, what) from error
    finally:
        await _close(stream)
    code, _ = await exit_code(client, str(made["Id"]))
    raise SandboxImageError(
        f"the image's ENTRYPOINT {shlex.join(image.entrypoint)[:200]} ended with exit code {code} and did "
        f'not run the command it is given (as `exec "$@"` does){said}'
    )


async def _reaches_command(stream: Stream, ending: ExitCodeReader, said: _Last) -> bool:
    """Hand on what is printed until the command starts; False when the output ends before."""
    while (message := await stream.read_out()) is not None:
        name: StreamName = "stderr" if message.stream == 2 else "stdout"
        own = ending.feed(message.data) if name == "stdout" else message.data
        if own:
            await said.take(name, own)
        if ending.code is not None:
            return True
    return False


class _Last:
    """Hands output on and keeps its end."""

    def __init__(self, sink: BytesSink | None) -> None:
        self._sink = sink
        self._kept = b""

    async def take(self, stream: StreamName, data: bytes) -> None:
        self._kept = (self._kept + data)[-_SAID_BYTES:]
        if self._sink is not None:
            await self._sink(stream, data)

    def __str__(self) -> str:
        words = " ".join(self._kept.decode("utf-8", "replace").split())
        return f": {words}" if words else ""


async def run_program(client: EngineClient, container: str, argv: Sequence[str]) -> int | None:
    """Run a program as root in `/`, with no shell around it: its exit code, or None when it is unknown."""
    body = {"Cmd": list(argv), "WorkingDir": "/", "AttachStdout": True, "AttachStderr": True}
    what = f"run {argv[0]} in {container}"
    made = await client.call("POST", f"containers/{container}/exec", what=what, body=body)
    stream = client.attach(str(made["Id"]))
    try:
        while await stream.read_out() is not None:
            pass
    except client.failures() as error:
        raise engine.translated(error, what) from error
    finally:
        await _close(stream)
    return (await exit_code(client, str(made["Id"])))[0]


async def exit_code(client: EngineClient, exec_id: str) -> tuple[int | None, bool]:
    """Return how a command ended whose output has, None when the engine has forgotten it; and whether it was
    ever started."""
    for delay in _CODE_DELAYS:
        await asyncio.sleep(delay)
        try:
            found = await client.call("GET", f"exec/{exec_id}/json", what="read an exit code")
        except SandboxError as error:
            if status_of(error) not in (404, 500):
                raise
            return None, True
        if not found.get("Running") and found.get("ExitCode") is not None:
            return int(found["ExitCode"]) % 256, bool(found.get("Pid"))
    raise SandboxConnectionError(f"command {exec_id[:12]} is lost: its output ended, it did not")


class _Decoding:
    """Hands bytes on as text."""

    def __init__(self, sink: OutputSink) -> None:
        self._sink = sink
        self._decoders = {"stdout": utf8_decoder(), "stderr": utf8_decoder()}

    async def __call__(self, stream: StreamName, data: bytes) -> None:
        text = self._decoders[stream].decode(data, final=not data)
        if text:
            self._sink(stream, text)
        if isinstance(self._sink, PacedSink) and self._sink.full:
            await self._sink.room()


async def _close(stream: Stream) -> None:
    # The library asserts that the connection is there, which it is not once the engine has hung up.
    if stream._resp is not None and stream._resp.connection is None:
        stream._closed = True
    await stream.close()

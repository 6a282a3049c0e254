"""One service of a compose project that runs inside another sandbox."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from secrets import token_hex
from typing import Any, cast

from sandboxes.errors import SandboxCommandError, SandboxError, SandboxFileNotFoundError
from sandboxes.protocol import Sandbox
from sandboxes.scripted_sandbox import KILL_MARKED, MARK, RESERVED, ScriptedSandbox, check_names, quoted
from sandboxes.streams import uninterrupted
from sandboxes.types import TIMEOUT_EXIT_CODE, Command, ExecResult, OutputSink

_WRITE = 'mkdir -p -- "$1" && rm -rf -- "$2" && cat > "$2" && chmod "$3" "$2"'
_READ = '[ -f "$1" ] && [ ! -L "$1" ] || exit 3; cat -- "$1"'
_NO_FILE = 3


class ComposeSandbox(ScriptedSandbox):
    """Commands and files of the service `service`; everything goes through `docker compose exec`.

    Files pass through `staging`, a folder of the outer sandbox. Of variables only the names are in the
    command line: the values travel in the environment of the outer command.
    """

    def __init__(
        self,
        outer: Sandbox,
        service: str = "main",
        compose_command: str = "docker compose",
        *,
        staging: str = "/var/tmp",
    ) -> None:
        self.outer = outer
        self._service = service
        self._compose = compose_command
        self._staging = staging
        self.labels = outer.labels
        self.created_at = outer.created_at

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "outer":
            raise AttributeError(name)
        return getattr(self.outer, name)

    @property
    def id(self) -> str:
        return self.outer.id

    @property
    def place(self) -> str:
        return f"service {self._service}"

    @property
    def name(self) -> str:
        return self.outer.name

    @property
    def state(self) -> str:
        return self.outer.state

    async def run(self, command: Command, sink: OutputSink | None = None) -> int:
        mark = self._new_mark()
        check_names(command.env)
        line = self._line(command.argv, cwd=command.cwd, names=command.env, mark=mark, user=command.user)
        spec = Command.shell(line, env=command.env, timeout=command.timeout)
        try:
            code = await self.outer.run(spec, sink)
        except BaseException:
            await uninterrupted(self._kill(mark))
            raise
        if code == TIMEOUT_EXIT_CODE:
            await self._kill(mark)
        return code

    async def exec(self, command: str, *, cwd: str | None = None, timeout: float | None = None) -> ExecResult:
        mark = self._new_mark()
        line = self._line(("sh", "-lc", command), cwd=cwd, mark=mark)
        try:
            result = await self.outer.exec(line, timeout=timeout)
        except BaseException:
            await uninterrupted(self._kill(mark))
            raise
        if result.exit_code == TIMEOUT_EXIT_CODE:
            await self._kill(mark)
        return result

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
        mark = self._new_mark()
        line = self._line(("sh", "-lc", command), cwd=cwd, names=env, mark=mark)
        pieces = cast("AsyncGenerator[str, None]", self.outer.command(line, timeout=timeout, env_vars=env))
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece
        except BaseException as error:
            if not isinstance(error, SandboxCommandError) or error.exit_code == TIMEOUT_EXIT_CODE:
                await uninterrupted(self._kill(mark))
            raise

    async def upload_file(self, path: str, content: bytes) -> None:
        staged = self._staged()
        try:
            await self.outer.upload_file(staged, content)
            await self._write(staged, path, 0o644)
        finally:
            await uninterrupted(self._discard(staged))

    async def upload_stream(self, path: str, chunks: AsyncIterator[bytes], *, mode: int = 0o644) -> None:
        staged = self._staged()
        try:
            await self.outer.upload_stream(staged, chunks)
            await self._write(staged, path, mode)
        finally:
            await uninterrupted(self._discard(staged))

    async def download_file(self, path: str) -> bytes:
        return b"".join([chunk async for chunk in self.stream_download(path)])

    async def stream_download(self, path: str) -> AsyncIterator[bytes]:
        staged = self._staged()
        line = f"{self._line(('sh', '-c', _READ, 'sh', path))} > {shlex.quote(staged)}"
        try:
            result = await self.outer.exec(line)
            if result.exit_code == _NO_FILE:
                raise SandboxFileNotFoundError(f"no file {path} in service {self._service}")
            if result.exit_code != 0:
                raise self._failure(f"read {path}", result)
            async for chunk in self.outer.stream_download(staged):
                yield chunk
        finally:
            await uninterrupted(self._discard(staged))

    async def kill_all(self) -> None:
        await self.must(KILL_MARKED, f"{MARK}=compose.{self.id}.", what="kill processes")

    async def modify_egress_rules(self, rules: list[str]) -> None:
        await self.outer.modify_egress_rules(rules)

    async def clear_egress_rules(self) -> None:
        await self.outer.clear_egress_rules()

    async def helper(self, script: str, *arguments: str, what: str) -> tuple[int, str]:
        """One of our own scripts in the service: exit code and output."""
        _ = what
        result = await self.outer.exec(self._line(("sh", "-c", script, "sh", *arguments)))
        return result.exit_code, result.output

    def _line(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        names: Mapping[str, str] | None = None,
        mark: str | None = None,
        user: str | None = None,
    ) -> str:
        options = ["-T"]
        if cwd is not None:
            options += ["-w", cwd]
        if user is not None:
            options += ["-u", user]
        for name in names or ():
            options += ["-e", name]
        if mark is not None:
            options += ["-e", f"{MARK}={mark}"]
        return f"{self._compose} exec {quoted(*options, self._service, *argv)}"

    async def _write(self, staged: str, path: str, mode: int) -> None:
        argv = ("sh", "-c", _WRITE, "sh", posixpath.dirname(path) or ".", path, f"{mode & 0o1777:o}")
        result = await self.outer.exec(f"{self._line(argv)} < {shlex.quote(staged)}")
        if result.exit_code != 0:
            raise self._failure(f"write {path}", result)

    async def _kill(self, mark: str) -> None:
        try:
            await self.helper(KILL_MARKED, f"{MARK}={mark}", what="kill processes")
        except SandboxError:
            pass  # the outer sandbox is gone, and with it what ran there

    async def _discard(self, staged: str) -> None:
        try:
            await self.outer.exec(quoted("rm", "-f", "--", staged))
        except SandboxError:
            pass

    def _staged(self) -> str:
        return f"{self._staging}/.valkyrie-{token_hex(8)}"

    def _new_mark(self) -> str:
        return f"compose.{self.id}.{token_hex(8)}"

    def _failure(self, what: str, result: ExecResult) -> SandboxError:
        said = result.output.strip()[-300:] or f"exit {result.exit_code}"
        return SandboxError(f"cannot {what} in service {self._service}: {said}")

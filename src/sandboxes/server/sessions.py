"""Sessions: one long-lived shell each, whose commands run one after another and share its state.

The shell waits at a pipe inside the sandbox for the number of the next command. What it prints between two
marks is that command's output; a process left in the background goes on printing into the latest command's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from secrets import token_hex
from typing import NamedTuple

from sandboxes.errors import SandboxError
from sandboxes.protocol import Sandbox
from sandboxes.server.errors import ApiError, api_error
from sandboxes.server.output import OutputBudget, OutputLog
from sandboxes.server.shells import MAX_ARGUMENT_BYTES
from sandboxes.values import KILLED_EXIT_CODE, Command, StreamName

MAX_COMMANDS = 10_000

_BOOT = """mkdir -p "$1" && chmod 700 "$1" && mkfifo -m 600 "$1/queue" || exit 125
if command -v bash >/dev/null 2>&1; then exec bash -c "$3" session "$1" "$2"; fi
exec sh -c "$3" session "$1" "$2"
"""
_LOOP = """exec 7>&1 8>&2 9<>"$1/queue"
__session_folder=$1 __session_mark=$2
set --
printf '\\036%s:0:0\\036' "$__session_mark" >&7
printf '\\036%s:0:0\\036' "$__session_mark" >&8
while IFS= read -r __session_next <&9; do
  . "$__session_folder/$__session_next" </dev/null 7>&- 8>&- 9<&-
  __session_code=$?
  exec 1>&7 2>&8
  printf '\\036%s:%s:%d\\036' "$__session_mark" "$__session_next" "$__session_code" >&7
  printf '\\036%s:%s:%d\\036' "$__session_mark" "$__session_next" "$__session_code" >&8
  rm -f "$__session_folder/$__session_next"
done
"""
_SUBMIT = """[ -p "$1/queue" ] || exit 3
if [ $# -gt 2 ]; then printf '%s\\n' "$3" > "$1/$2" || exit 4; fi
echo "$2" 1<>"$1/queue"
"""


class SessionCommand:
    """One command of a session."""

    def __init__(self, text: str, budget: OutputBudget) -> None:
        self.id = token_hex(8)
        self.text = text
        self.log = OutputLog(budget=budget)
        self.exit_code: int | None = None
        self.ended = asyncio.Event()
        self._streams_open = 2

    def end_stream(self, code: int) -> None:
        """One of its two streams is at its end."""
        self._streams_open -= 1
        if self._streams_open == 0:
            self.end(code)

    def end(self, code: int) -> None:
        """It has ended; what comes from now on is of its background processes."""
        if self.exit_code is None:
            self.exit_code = code
            self.log.close()
            self.ended.set()


class Session:
    """A shell in a sandbox and the commands it was given."""

    def __init__(self, session_id: str, sandbox: Sandbox, user: str | None, budget: OutputBudget) -> None:
        self.id = session_id
        self.commands: list[SessionCommand] = []
        self._sandbox = sandbox
        self._user = user
        self._budget = budget
        self._mark = token_hex(12)
        self._folder = f"/tmp/.session-{token_hex(8)}"
        self._streams = {name: _MarkedStream(self._mark) for name in ("stdout", "stderr")}
        self._ready = asyncio.Event()
        self._submitting = asyncio.Lock()
        self._failure: ApiError | None = None
        self._shell: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the shell and wait until it takes commands."""
        self._shell = asyncio.get_running_loop().create_task(self._run_shell())
        await self._ready.wait()
        if self._failure is not None:
            raise self._failure

    async def submit(self, text: str) -> SessionCommand:
        """Queue a command."""
        if "\0" in text:
            raise ApiError(400, "A command cannot hold a zero byte")
        async with self._submitting:
            if self._failure is not None:
                raise self._failure
            if len(self.commands) >= MAX_COMMANDS:
                raise ApiError(400, f"Session {self.id} had {MAX_COMMANDS} commands; create another")
            command = SessionCommand(text, self._budget)
            number = str(len(self.commands) + 1)
            self.commands.append(command)
            try:
                await self._pass_on(number, text)
            except BaseException:
                # The shell may or may not have got it: from here on the count would be wrong.
                self._fail(ApiError(400, f"Session {self.id} lost a command; create another"))
                raise
            return command

    async def _pass_on(self, number: str, text: str) -> None:
        arguments = [self._folder, number, text]
        if len(text.encode()) >= MAX_ARGUMENT_BYTES:
            await self._sandbox.upload_file(f"{self._folder}/{number}", text.encode() + b"\n")
            arguments.pop()
        code = await self._sandbox.run(Command(("/bin/sh", "-c", _SUBMIT, "sh", *arguments), user=self._user))
        if code != 0:
            raise ApiError(
                400, f"Session {self.id} takes no commands: its files in /tmp are gone or /tmp is full"
            )

    def find(self, command_id: str) -> SessionCommand:
        """The command of that id."""
        for command in reversed(self.commands):
            if command.id == command_id:
                return command
        raise ApiError(404, f"Session {self.id} has no command {command_id[:64]}")

    async def end(self) -> None:
        """Kill the shell and whatever it started."""
        if self._shell is not None:
            self._shell.cancel()
            await asyncio.wait((self._shell,))
        self._fail(ApiError(404, f"Session {self.id} was deleted"))
        for command in self.commands:
            command.log.clear()
        with suppress(SandboxError):
            await self._sandbox.remove(self._folder)

    async def _run_shell(self) -> None:
        argv = ("/bin/sh", "-c", _BOOT, "session", self._folder, self._mark, _LOOP)
        try:
            code = await self._sandbox.run(Command(argv, user=self._user), self._receive)
        except SandboxError as error:
            self._fail(api_error(error))
        else:
            told = f"The shell of session {self.id} ended with exit code {code}; create another session"
            self._fail(ApiError(400, told), code)
        finally:
            self._fail(ApiError(400, f"The shell of session {self.id} was killed"))

    def _fail(self, failure: ApiError, code: int = KILLED_EXIT_CODE) -> None:
        """Nothing runs any more. The command that was running ended as the shell did."""
        self._failure = self._failure or failure
        for command in self.commands:
            if command.exit_code is None:
                command.end(code)
                code = KILLED_EXIT_CODE
        self._ready.set()

    def _receive(self, name: StreamName, text: str) -> None:
        stream = self._streams[name]
        for item in stream.split(text):
            if isinstance(item, str):
                if self.commands:
                    latest = len(self.commands) - 1
                    self.commands[min(max(stream.marks - 1, 0), latest)].log(name, item)
            # Mark 0 says that the shell is ready. A command can print marks too: one out of turn is ignored.
            elif item.number == stream.marks <= len(self.commands):
                stream.marks += 1
                if item.number:
                    self.commands[item.number - 1].end_stream(item.code)
        if all(each.marks for each in self._streams.values()):
            self._ready.set()


class _Mark(NamedTuple):
    """The end of the command of that number."""

    number: int
    code: int


class _MarkedStream:
    """Finds the marks in one stream, also where one comes in two pieces."""

    def __init__(self, mark: str) -> None:
        self._start = f"\036{mark}:"
        self._whole = re.compile(re.escape(self._start) + "([0-9]{1,6}):([0-9]{1,3})\036")
        self._cut = re.compile("([0-9]{1,6}(:[0-9]{0,3})?)?")
        self._held = ""
        self.marks = 0
        """How many came in turn."""

    def split(self, text: str) -> Iterator[str | _Mark]:
        """Yield the text between marks, and the marks."""
        rest = self._held + text
        while (found := self._whole.search(rest)) is not None:
            if found.start():
                yield rest[: found.start()]
            rest = rest[found.end() :]
            yield _Mark(int(found[1]), int(found[2]))
        cut = self._start_of_mark(rest)
        self._held = rest[cut:]
        if cut:
            yield rest[:cut]

    def _start_of_mark(self, text: str) -> int:
        """Where a mark begins whose end has not come yet; the end of the text if there is none."""
        at = text.rfind("\036")
        tail = text[at:] if at >= 0 else ""
        began = tail.startswith(self._start) and self._cut.fullmatch(tail, len(self._start)) is not None
        return at if tail and (began or self._start.startswith(tail)) else len(text)

"""One headless command in a sandbox: its prompt, its home, its output."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self

from sandboxes.errors import SandboxError
from sandboxes.protocol import Sandbox
from sandboxes.types import Command, OutputSink, StreamName
from valkyrie.domain import TaskSpec
from valkyrie.errors import SandboxFailedError

HOME = "/var/tmp/valkyrie-agent"
"""A folder in the sandbox for the program's own settings and state, nobody else's."""
LOG_LIMIT = 64 * 1024 * 1024
SAME_TIME_S = 0.02
STDERR_KEPT = 16_000
Prompt = Literal["stdin", "argument", "none"]

_MAKE_HOME = """
umask 077
rm -rf -- "$1" && mkdir -p -- "$1" || exit 1
[ -d "$2" ] || { umask 022; mkdir -p -- "$2" && { [ -z "$3" ] || chown -- "$3" "$2"; }; }
"""
_GIVE_HOME = '[ -z "$2" ] || chown -R -- "$2" "$1"'

# $0 is the problem's path, $1 the private home, $2 folders for the PATH, the rest is the command. The
# prompt is never a word of a script. A home that cannot be written (a user without one) is replaced.
_RUN = """
problem=$0 private=$1
[ -z "$2" ] || PATH="$PATH:$2"
shift 2
[ -w "${HOME:-/nowhere}" ] || HOME=$private
export HOME PATH
if [ -d "$problem" ]; then
  printf 'The task is described by the files in the folder %s. Read them, then do the task.\\n' \\
    "$problem" >"$private/prompt" || exit 1
  problem=$private/prompt
fi
"""
_ENDS: Mapping[Prompt, str] = {
    "stdin": 'exec "$@" <"$problem"',
    "argument": 'exec "$@" "$(cat -- "$problem")" </dev/null',
    "none": 'exec "$@" </dev/null',
}


@dataclass(frozen=True, slots=True)
class Headless:
    """What is run for one task."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    prompt: Prompt = "stdin"
    """How it is told the task; `argument` adds it as the last word."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Settings, written below HOME first: path → text."""
    path: Sequence[str] = ()
    """Folders behind those of the sandbox's PATH."""

    def command(self, task: TaskSpec, timeout: float | None) -> Command:
        """As the task's user, in the task's folder, within that time."""
        script = _RUN + _ENDS[self.prompt]
        words = ("/bin/sh", "-c", script, task.problem_path, HOME, ":".join(self.path), *self.argv)
        return Command(words, cwd=task.cwd, env=self.env, user=task.user, timeout=timeout)


async def make_home(sandbox: Sandbox, task: TaskSpec, files: Mapping[str, str], log: OutputSink) -> None:
    """An empty private folder with the program's settings; the task's folder is made if it is missing."""
    user = task.user or ""
    code = await sandbox.run(Command(("/bin/sh", "-c", _MAKE_HOME, "sh", HOME, task.cwd, user)), log)
    if code == 0:
        for name, text in files.items():
            await sandbox.upload_file(f"{HOME}/{name}", text.encode())
        code = await sandbox.run(Command(("/bin/sh", "-c", _GIVE_HOME, "sh", HOME, user)), log)
    if code != 0:
        raise SandboxFailedError(f"the agent's folder {HOME} could not be made (exit code {code}).")


async def bring_out(sandbox: Sandbox, source: str, target: Path, most: int = LOG_LIMIT) -> bool:
    """Copy one regular file of the sandbox to the host, cut at `most` bytes; False when there is none."""
    target.parent.mkdir(parents=True, exist_ok=True)
    room = most
    try:
        with target.open("wb") as sink:
            async for piece in sandbox.stream_download(source):
                sink.write(piece[:room])
                room -= len(piece)
                if room <= 0:
                    break
    except (SandboxError, OSError):
        target.unlink(missing_ok=True)
        return False
    return True


class LogFile:
    """Stdout into a file, whole lines up to a limit; stderr goes on to the attempt's log, its end is kept."""

    def __init__(self, path: Path, log: OutputSink, limit: int = LOG_LIMIT) -> None:
        self.path = path
        self._log = log
        self._room = limit
        self._file: IO[bytes] | None = None
        self.stderr = ""
        self.arrived: list[tuple[int, float]] = []
        """Up to which byte it had come by when."""

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file:
            self._file.close()

    def write(self, stream: StreamName, text: str) -> None:
        """An OutputSink."""
        if stream == "stderr":
            self._log(stream, text)
            self.stderr = (self.stderr + text)[-STDERR_KEPT:]
        elif self._file and self._room > 0:
            data = text.encode("utf-8", "replace")
            self._file.write(data[: self._room])
            self._file.flush()
            self._room -= len(data)
            self._date(self._file.tell(), time.time())
            if self._room <= 0:
                self._log("stderr", f"\n… the agent's output beyond {LOG_LIMIT >> 20} MiB is not kept …\n")

    def _date(self, upto: int, now: float) -> None:
        """Remember when this much had come; what comes at about the same time has one time."""
        if self.arrived and now - self.arrived[-1][1] < SAME_TIME_S:
            now = self.arrived.pop()[1]
        self.arrived.append((upto, now))

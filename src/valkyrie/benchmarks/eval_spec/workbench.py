"""Run graders' programs, each on its own copy of the workspace, with bounded output."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path, PurePosixPath

from sandboxes.errors import SandboxUnsupportedError
from sandboxes.protocol import TIMEOUT_EXIT_CODE, Command, Sandbox, StreamName
from valkyrie.benchmarks.eval_spec.layout import lay_out, placed
from valkyrie.benchmarks.eval_spec.source import WORKSPACE
from valkyrie.errors import GraderError
from valkyrie.grade.protocol import Need, Program, ProgramResult, built_in
from valkyrie.specs.model import Stimulus

MOST_OUTPUT = 2 << 20
"""Characters kept of each stream: the first half and the last half."""
_CUT = "\n[… a part of the output is left out here …]\n"


class ProgramOutput:
    """An output sink. With a `token`, what comes before the line that holds it is not the program's."""

    def __init__(self, token: str | None = None) -> None:
        self._token = token
        self._kept: dict[StreamName, _Ends] = {"stdout": _Ends(), "stderr": _Ends()}
        self._first = ""
        self.on_start: Callable[[], None] = lambda: None
        self.started = token is None

    def __call__(self, stream: StreamName, text: str) -> None:
        if not self.started and stream == "stdout":
            self._first += text
            line, ended, rest = self._first.partition("\n")
            if not ended or line != self._token:
                return
            self.started = True
            self.on_start()
            text = rest
        self._kept[stream].add(text)

    @property
    def stdout(self) -> str:
        return self._kept["stdout"].text()

    @property
    def stderr(self) -> str:
        return self._kept["stderr"].text()


class _Ends:
    """The first and the last of a text of any length."""

    def __init__(self) -> None:
        self._head: list[str] = []
        self._room = MOST_OUTPUT // 2
        self._tail: deque[str] = deque()
        self._tail_chars = 0
        self._cut = False

    def add(self, text: str) -> None:
        if self._room:
            self._head.append(text[: self._room])
            text, self._room = text[self._room :], max(0, self._room - len(text))
        if not text:
            return
        self._tail.append(text)
        self._tail_chars += len(text)
        while self._tail_chars - len(self._tail[0]) >= MOST_OUTPUT // 2:
            self._tail_chars -= len(self._tail.popleft())
            self._cut = True

    def text(self) -> str:
        tail = "".join(self._tail)
        if self._cut or len(tail) > MOST_OUTPUT // 2:
            tail = _CUT + tail[-(MOST_OUTPUT // 2) :]
        return "".join(self._head) + tail


# Where graders' programs run: each on a copy of the workspace of its own, in the sandbox that grading has.
#
# That is a fresh sandbox, into which the agent's workspace was carried as data: the shell, `cp` and `tar`
# that make the copies are the image's own, and so is everything a program finds by its name. With `--verify
# shared` it is the agent's sandbox with its processes dead and the image's tools put back.
#
# A program is root of the sandbox, and so is what it starts of the agent's code. Therefore each further
# program gets a fresh sandbox of its own. Where there is only one, it gets its copy from what was kept of
# the workspace on this machine before the first one ran, and starts when nothing of the first one is left;
# what that did to the system stays.

ROOM = "/tests"
"""Where copies are. It has room of its own where the task names it among its `grading_folders`."""
COPY_TIMEOUT_S = 300.0
MOST_VERDICT = 1 << 20

_COPY = """\
fail() { echo "$1" >&2; exit 125; }
room=$1 token=$2 from=$3 sub=$4
shift 4
umask 022
if [ -d "$from" ] && [ ! -L "$from" ]; then
  said=$(cp -a -- "$from" "$room/$token" 2>&1) || fail "$said"
else
  mkdir -- "$room/$token" || fail "no room for a copy"
  if [ "$from" = "$room/$token.tar" ]; then
    said=$(tar -xpf "$from" -C "$room/$token" 2>&1) || fail "$said"
    rm -f -- "$from"
  fi
fi
if [ $# -eq 0 ]; then exit 0; fi
"""
_RUN = """\
cd -P -- "$room/$token" || fail "the copy is gone"
EVALUATE_WORKSPACE=$PWD
export EVALUATE_WORKSPACE
printf '%s\\n' "$token"
if [ -n "$sub" ]; then
  cd -P -- "./$sub" 2>/dev/null || { echo "the workspace has no folder '$sub'" >&2; exit 127; }
  case $PWD/ in
    "$EVALUATE_WORKSPACE"/*) ;;
    *) echo "'$sub' leads out of the workspace" >&2; exit 127 ;;
  esac
fi
if [ -f "$room/$token.verdict" ]; then
  read -r name < "$room/$token.verdict"
  rm -f -- "$room/$token.verdict"
  mkdir -m 700 -- "$room/$name" || fail "no room for a verdict"
  # Said once, over a pipe: what the program starts finds it neither in a list of processes nor in a variable.
  printf '%s\\n' "$room/$name/verdict.json" | { exec "$@"; }
  exit
fi
exec "$@"
"""
_RUN_ONLY = 'fail() { echo "$1" >&2; exit 125; }\nroom=$1 token=$2 sub=$4\nshift 4\n' + _RUN
_PACK = """\
if [ ! -d "$1" ] || [ -L "$1" ]; then mkdir -- "$2.empty" && set -- "$2.empty" "$2"; fi
exec tar -cf "$2" -C "$1" .
"""


class SandboxWorkbench:
    """The programs of one trial's graders, one at a time.

    `start` is the attempt's folder on this machine. The stimulus' grading files are put into the copies and
    nowhere else: other graders look at the workspace as the agent left it.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        stimulus: Stimulus,
        start: Path,
        *,
        renew: Callable[[], Awaitable[Sandbox]] | None = None,
        workspace: str = WORKSPACE,
        room: str = ROOM,
    ) -> None:
        self._sandbox = sandbox
        self._renew = renew
        self._stimulus = stimulus
        self._start = start
        self._workspace = workspace
        self._room = room
        self._several = _programs_of(stimulus) > 1
        self._kept: Path | None = None
        self._ran = False
        self._one_at_a_time = asyncio.Lock()

    async def run(self, program: Program) -> ProgramResult:
        """Run it to its end or its time limit. Raises GraderError when it cannot be started.

        A program that is not there, or a folder it should run in, is exit code 127, as in a shell.
        """
        _check(program)
        async with self._one_at_a_time:
            try:
                return await self._run_on_copy(program)
            except SandboxUnsupportedError as error:
                raise GraderError(f"programs cannot run here: {error}") from error

    async def _run_on_copy(self, program: Program) -> ProgramResult:
        token = f"copy-{secrets.token_hex(8)}"
        origin = await self._origin(token)
        if program.input is not None:
            await self._sandbox.upload_file(f"{self._room}/{token}.json", program.input)
        verdict = f"verdict-{secrets.token_hex(16)}"
        if program.asks_verdict:
            await self._sandbox.upload_file(f"{self._room}/{token}.verdict", f"{verdict}\n".encode())
        words = (self._room, token, origin, program.sub_path)
        script = _COPY + _RUN
        if self._stimulus.grading_files:
            await self._copy_only(words, token)
            script = _RUN_ONLY
        argv = [*program.argv]
        if program.env:
            # Not the script's own: a PATH of the grader's must not decide what copies the workspace.
            argv = ["env", *(f"{name}={value}" for name, value in program.env.items()), *argv]
        command = Command(
            ("/bin/sh", "-c", script, "grader", *words, *argv), cwd="/", env=self._environment(program, token)
        )
        ran = await self._run_watched(command, token, program.timeout)
        if not program.asks_verdict or ran.timed_out:
            return ran
        await self._sandbox.kill_all()
        return replace(ran, verdict=await self._read_verdict(f"{self._room}/{verdict}/verdict.json"))

    async def _read_verdict(self, path: str) -> str | None:
        """Return the first of what a program wrote, None when there is no such file."""
        read = b""
        try:
            async with asyncio.timeout(COPY_TIMEOUT_S), aclosing(self._pieces_of(path)) as pieces:
                async for piece in pieces:
                    read += piece
                    if len(read) > MOST_VERDICT:
                        raise GraderError(f"the verdict is longer than {MOST_VERDICT >> 10} KiB")
        except FileNotFoundError:
            return None
        except TimeoutError:
            raise GraderError(f"the verdict was not read within {COPY_TIMEOUT_S:g} s") from None
        return read.decode("utf-8", "replace")

    async def _pieces_of(self, path: str) -> AsyncGenerator[bytes]:
        async for piece in self._sandbox.stream_download(path):
            yield piece

    def _environment(self, program: Program, token: str) -> dict[str, str]:
        given = program.input is not None
        return {"EVALUATE_GRADER_INPUT": f"{self._room}/{token}.json"} if given else {}

    async def _origin(self, token: str) -> str:
        """Return what the next copy is made from: the workspace itself, or what was kept of it."""
        packed = f"{self._room}/{token}.tar"
        if self._ran and self._renew is not None:
            self._sandbox = await self._renew()
        elif self._ran:
            await self._sandbox.kill_all()
        # Whoever ran before may have filled the room, or put something in the way of every program.
        await self._sandbox.clear((self._room,), removed=("/etc/ld.so.preload",))
        if self._ran and self._kept is not None:
            await self._sandbox.upload_stream(packed, _pieces(self._kept))
            return packed
        if self._several and not self._ran and self._renew is None:
            self._kept = await self._keep_workspace(packed)
        self._ran = True
        return self._workspace

    async def _keep_workspace(self, packed: str) -> Path:
        """Bring the workspace to this machine as an archive, which is never unpacked here."""
        output = ProgramOutput()
        command = Command(
            ("/bin/sh", "-c", _PACK, "pack", self._workspace, packed), cwd="/", timeout=COPY_TIMEOUT_S
        )
        if (code := await self._sandbox.run(command, output)) != 0:
            raise _not_copied(code, output)
        self._start.mkdir(parents=True, exist_ok=True)
        kept = self._start / "workspace.tar"
        with kept.open("wb") as file:
            async for piece in self._sandbox.stream_download(packed):
                await asyncio.to_thread(file.write, piece)
        await self._sandbox.remove(packed)
        return kept

    async def _copy_only(self, words: tuple[str, ...], token: str) -> None:
        """Make the copy, then put the grading files into it from outside: no planted link is followed."""
        output = ProgramOutput()
        command = Command(("/bin/sh", "-c", _COPY, "copy", *words), cwd="/", timeout=COPY_TIMEOUT_S)
        if (code := await self._sandbox.run(command, output)) != 0:
            raise _not_copied(code, output)
        staged = self._start / "grading"
        if not staged.exists():
            await asyncio.to_thread(lay_out, staged, placed(self._stimulus.grading_files))
        await self._sandbox.upload_folder(staged, f"{self._room}/{token}")

    async def _run_watched(self, command: Command, token: str, timeout: float) -> ProgramResult:
        """The time limit is the program's own: it begins when the copy is made."""
        loop = asyncio.get_running_loop()
        output = ProgramOutput(token)
        try:
            async with asyncio.timeout(COPY_TIMEOUT_S) as limit:
                output.on_start = lambda: limit.reschedule(loop.time() + timeout)
                code = await self._sandbox.run(command, output)
        except TimeoutError:
            if not output.started:
                raise GraderError(f"the workspace was not copied within {COPY_TIMEOUT_S:g} s") from None
            return ProgramResult(TIMEOUT_EXIT_CODE, output.stdout, output.stderr, timed_out=True)
        if not output.started:
            raise _not_copied(code, output)
        return ProgramResult(code, output.stdout, output.stderr)


def _programs_of(stimulus: Stimulus) -> int:
    """Return how many programs may run; a plugin's grader may run any number."""
    count = 0
    for spec in stimulus.graders:
        grader = built_in(spec.type)
        if grader is None:
            count += 2
        elif Need.PROGRAMS in grader.needs:
            count += 1
    return count


def _check(program: Program) -> None:
    sub_path = PurePosixPath(program.sub_path)
    if sub_path.is_absolute() or ".." in sub_path.parts or "\0" in program.sub_path:
        raise GraderError(f"sub_path {program.sub_path!r} must be a folder below the workspace")
    if not program.argv or any("\0" in word for word in program.argv):
        raise GraderError("there is no program to run")
    for name in program.env:
        if not name or name.startswith("-") or "=" in name:
            raise GraderError(f"{name!r} is no name of an environment variable")


def _not_copied(code: int, output: ProgramOutput) -> GraderError:
    said = output.stderr.strip()[-500:] or "it printed nothing; do programs run in this sandbox?"
    return GraderError(f"the workspace could not be copied for a program (exit code {code}): {said}")


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while piece := await asyncio.to_thread(file.read, 1 << 20):
            yield piece

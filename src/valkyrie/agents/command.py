"""One headless command of an agent in a sandbox: run it, and read what it logged within bounds."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal, Self

from sandboxes.errors import SandboxError
from sandboxes.protocol import Sandbox
from sandboxes.types import Command, OutputSink, StreamName
from valkyrie.agents.protocol import AgentUsage, Trouble
from valkyrie.domain import TaskSpec
from valkyrie.errors import SandboxFailedError
from valkyrie.trajectory import AgentInfo, FinalMetrics, Step, StepMetrics, Trajectory, TrajectoryBuilder
from valkyrie.trajectory.conversion import ERROR, TURN, at, dollars, items, parsed, tokens, word

if TYPE_CHECKING:
    from valkyrie.agents.installed import InstalledAgent


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


async def run_in_reach(
    sandbox: Sandbox, command: Command, sink: OutputSink, rules: Sequence[str] | None
) -> int:
    """Run a command that meanwhile reaches only what `rules` allow; None is everything."""
    if rules is None:
        return await sandbox.run(command, sink)
    await sandbox.modify_egress_rules(list(rules))
    try:
        return await sandbox.run(command, sink)
    finally:
        await sandbox.clear_egress_rules()


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


# Read what an agent's program logged, within bounds: steps, usage, failures of its model, turns.


MOST_LINE = 8 * 1024 * 1024
MOST_LINES = 200_000


@dataclass(frozen=True, slots=True)
class AgentCommandResult:
    """How an agent's command went, for who reads its log."""

    log: Path
    """Its stdout, cut at a limit."""
    exit_code: int
    stderr: str = ""
    """The end of it."""
    instruction: str = ""
    kept: Path | None = None
    """The folder with what else was brought out of the sandbox."""
    seen: int = 0
    """Bytes of the session's own record that tell of earlier turns."""
    before: AgentUsage | None = None
    """What earlier turns used, for programs that count from the beginning of the session."""
    began: float | None = None
    """When the command began, by our clock."""
    arrived: Sequence[tuple[int, float]] = ()
    """Up to which byte the log had come by when; most programs print no times of their own."""

    def events(self, built: TrajectoryBuilder) -> Iterator[dict[str, Any]]:
        """The JSON objects of the log; while one is read, `built` dates steps with the time it arrived."""
        arrived = iter(self.arrived)
        upto, when = next(arrived, (0, None))
        for end, event in _objects(self.log):
            while upto < end and when is not None:
                upto, when = next(arrived, (end, None))
            if when is not None:
                built.now = iso_time(when)
            yield event

    def begin(self, built: TrajectoryBuilder) -> None:
        """Begin with what the agent was told."""
        built.now = None if self.began is None else iso_time(self.began)
        built.user(self.instruction)


@dataclass(frozen=True, slots=True)
class LogSummary:
    """What a log says."""

    trajectory: Trajectory | None = None
    usage: AgentUsage | None = None
    trouble: Trouble | None = None


def iso_time(moment: float) -> str:
    """A moment as trajectories have it: `2026-11-17T04:26:23.120Z`."""
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def json_lines(path: Path, start: int = 0) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, one a line, from a byte on; lines that are none, or too long, are passed
    over."""
    return (found for _, found in _objects(path, start))


def _objects(path: Path, start: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """The same, each with the byte its line ends at."""
    with path.open("rb") as source:
        source.seek(start)
        for _ in range(MOST_LINES):
            line = source.readline(MOST_LINE)
            if not line:
                return
            if len(line) == MOST_LINE and not line.endswith(b"\n"):
                while (rest := source.readline(MOST_LINE)) and not rest.endswith(b"\n"):
                    pass
                continue
            found = parsed(line)
            if isinstance(found, dict):
                yield source.tell(), found


# Adds up what an agent's log says of each step.


class Counted:
    """Tokens and costs so far."""

    def __init__(self) -> None:
        self.input = self.output = self.cached = self.steps = 0
        self.cost: float | None = None
        self.model: str | None = None

    def step(
        self, prompt: int, completion: int, cached: int, cost: float | None = None
    ) -> StepMetrics | None:
        """One answer of the model; `prompt` has the cached ones in it. None when it used nothing."""
        self.steps += 1
        self.input += prompt
        self.output += completion
        self.cached += cached
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost
        if not (prompt or completion):
            return None
        return StepMetrics(prompt, completion, cached_tokens=cached, cost_usd=cost)

    def reading(
        self, built: TrajectoryBuilder, agent: InstalledAgent, session: str | None = None
    ) -> LogSummary:
        """Trajectory and usage; a log that names no tokens says nothing of what was used."""
        if not (self.input or self.output):
            return LogSummary(built.build(self._info(agent), session_id=session))
        usage = AgentUsage(
            input_tokens=self.input,
            cached_tokens=min(self.cached, self.input),
            output_tokens=self.output,
            cost=self.cost,
            cost_source=None if self.cost is None else "agent",
            model=self.model or agent.model,
            steps=self.steps,
        )
        final = FinalMetrics(
            total_prompt_tokens=self.input,
            total_completion_tokens=self.output,
            total_cached_tokens=usage.cached_tokens,
            total_cost_usd=self.cost,
        )
        return LogSummary(built.build(self._info(agent), session_id=session, final=final), usage)

    def _info(self, agent: InstalledAgent) -> AgentInfo:
        return AgentInfo(name=agent.name, version=agent.version, model_name=self.model or agent.model)


# From what an agent says went wrong with its model to a cause of schedule.policy's table.

MOST_MESSAGE = 500
_STATUS = re.compile(r"(?:\b(?:status|error|code|http)\b\D{0,12}|^\s*)([45]\d\d)\b", re.IGNORECASE)
_AFTER = re.compile(
    r"(?:retry|try again)[-\s_]*(?:after|in)\W{0,3}(\d{1,5}(?:\.\d+)?)\s*(ms|s|sec|seconds?|m|minutes?)?\b",
    re.I,
)

_WORDS: tuple[tuple[str, str], ...] = (
    (
        "context_overflow",
        r"prompt (?:is|as) too long|context[ _]?(?:length|window)|maximum context|too many (?:input )?tokens"
        r"|input (?:is|was) too long|exceeds? the (?:maximum|max)(?: number of)? (?:input )?tokens"
        r"|input token count|request_too_large",
    ),
    (
        "model_unauthorized",
        r"credit balance|insufficient[_ ]quota|billing|exceeded your current quota"
        r"|invalid[ _-](?:x-)?api[ _-]?key|incorrect api key|authentication|unauthori[sz]ed"
        r"|permission[_ ](?:error|denied)|not logged in"
        r"|api[ _]key not valid|forbidden|/login\b",
    ),
    ("model_rate_limited", r"rate[ _-]?limit|too many requests|resource_exhausted|slow down|usage limit"),
    (
        "model_unknown",
        r"model[_ ]not[_ ]found|model .{0,80}(?:does not exist|not found|may not exist|is not supported)"
        r"|models/\S+ is not found|unknown model|not_found_error|no such model|not found \(404\)",
    ),
    (
        "model_refused",
        r"refusal|refused to|content[_ ]?filter|usage polic|safety|violat\w+ .{0,40}polic|prohibited_content"
        r"|unable to respond to this request|invalid_prompt|flagged|(?:cyber|bio)_policy",
    ),
    (
        "model_unreachable",
        r"overloaded|disconnected|connection (?:reset|refused|error|closed|aborted)|econnre|socket hang up"
        r"|fetch failed|timed? ?out|network error|unexpected (?:eof|end)|stream (?:closed|ended|error)"
        r"|internal server error|bad gateway|service unavailable|server_error|api_error|terminated"
        r"|unable to connect|error sending request|incomplete|premature|high demand|connection .{0,30}lost",
    ),
)
_PATTERNS = tuple((cause, re.compile(pattern, re.IGNORECASE)) for cause, pattern in _WORDS)


def trouble(message: str, status: int | None = None, retry_after: float | None = None) -> Trouble:
    """Return why an agent gave up, from the words of its error and the model server's status, if it is
    known."""
    said = " ".join(message.split())[:MOST_MESSAGE] or "the agent did not say why it gave up"
    found = status if status is not None else _status_in(said)
    cause = _by_words(said, found) or "agent_gave_up"
    wait = retry_after if retry_after is not None else _asked(said)
    return Trouble(cause, said, wait if cause == "model_rate_limited" else None)


def _by_words(said: str, status: int | None) -> str | None:
    by_status = _of_status(status)
    matching = [cause for cause, pattern in _PATTERNS if pattern.search(said)]
    # A 400, 403 or 429 may mean several things; the words decide between them.
    if "context_overflow" in matching and status in (None, 400, 413, 422):
        return "context_overflow"
    if status == 429:
        no_credit = "model_unauthorized" in matching and re.search(r"quota|credit|billing", said, re.I)
        return "model_unauthorized" if no_credit else "model_rate_limited"
    return by_status or (matching[0] if matching else None)


def _of_status(status: int | None) -> str | None:
    if status is None:
        return None
    if status in (401, 402, 403):
        return "model_unauthorized"
    if status == 404:
        return "model_unknown"
    return "model_unreachable" if status in (408, 409, 425) or status >= 500 else None


def _status_in(said: str) -> int | None:
    match = _STATUS.search(said)
    return int(match[1]) if match else None


def _asked(said: str) -> float | None:
    match = _AFTER.search(said)
    if match is None:
        return None
    unit = (match[2] or "s").lower()
    return float(match[1]) * (0.001 if unit == "ms" else 60.0 if unit.startswith("m") else 1.0)


# A conversation of several turns: each is a command of its own, and together they are one story.


class Clock:
    """What is left of the time all turns have together."""

    def __init__(self, limit: float | None) -> None:
        self._end = None if limit is None else time.monotonic() + limit

    def left(self) -> float | None:
        """Seconds; None is no limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())


def together(readings: Sequence[LogSummary], masked: Callable[[str], str], *, ended: bool) -> LogSummary:
    """Return what was read of each turn as one: steps in order, usage added up, the last turn's trouble,
    masked.

    One that did not end by itself is in no trouble of its own.
    """
    if not readings:
        return LogSummary()
    trouble = readings[-1].trouble if ended else None
    if trouble:
        trouble = replace(trouble, message=masked(trouble.message))
    told = _joined([one.trajectory for one in readings])
    if told and trouble:
        told = replace(told, extra={**(told.extra or {}), ERROR: trouble.message})
    return LogSummary(told, used_in(readings), trouble)


def append(log: Path, more: Path) -> None:
    """Put one turn's log behind those before it."""
    with log.open("ab") as target, more.open("rb") as source:
        while piece := source.read(1 << 20):
            target.write(piece)
    more.unlink()


def _joined(trajectories: Sequence[Trajectory | None]) -> Trajectory | None:
    found = [(turn, one) for turn, one in enumerate(trajectories) if one is not None]
    if not found:
        return None
    steps: list[Step] = []
    for turn, one in found:
        steps += _numbered(one.steps, turn, len(steps))
    first = found[0][1]
    finals = [one.final_metrics for _, one in found if one.final_metrics]
    return replace(first, steps=tuple(steps), final_metrics=_final(finals, len(steps)))


def _numbered(steps: Sequence[Step], turn: int, before: int) -> list[Step]:
    """The steps of one turn behind those before it; what the user said first begins the turn."""
    found = [replace(step, step_id=before + at + 1) for at, step in enumerate(steps)]
    for index, step in enumerate(found):
        if step.source == "user":
            found[index] = replace(step, extra={**(step.extra or {}), TURN: turn})
            break
    return found


def _final(finals: Sequence[FinalMetrics], steps: int) -> FinalMetrics:
    costs = [one.total_cost_usd for one in finals if one.total_cost_usd is not None]
    if not any(one.total_prompt_tokens or one.total_completion_tokens for one in finals):
        return FinalMetrics(total_steps=steps)
    return FinalMetrics(
        total_prompt_tokens=sum(one.total_prompt_tokens or 0 for one in finals),
        total_completion_tokens=sum(one.total_completion_tokens or 0 for one in finals),
        total_cached_tokens=sum(one.total_cached_tokens or 0 for one in finals),
        total_cost_usd=sum(costs) if costs else None,
        total_steps=steps,
    )


def used_in(readings: Sequence[LogSummary]) -> AgentUsage | None:
    """Return what these turns used together; None when none of them says."""
    usages = [one.usage for one in readings if one.usage]
    return reduce(AgentUsage.plus, usages) if usages else None


__all__ = [
    "AgentCommandResult",
    "LogSummary",
    "at",
    "dollars",
    "iso_time",
    "items",
    "json_lines",
    "parsed",
    "tokens",
    "word",
]

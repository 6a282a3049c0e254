"""One attempt under way, how it ended, and which category, cause and message a failure has."""

from __future__ import annotations

import asyncio
import errno
import json
import re
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from sandboxes.errors import (
    SandboxCapacityError,
    SandboxConnectionError,
    SandboxCrowdedError,
    SandboxDiedError,
    SandboxError,
    SandboxFullError,
    SandboxImageError,
    SandboxNotFoundError,
    SandboxUnsupportedError,
    SandboxUserError,
)
from sandboxes.masker import Masker
from sandboxes.protocol import Sandbox
from sandboxes.types import Command, OutputSink, StreamName
from valkyrie.agents.protocol import AgentExit, AgentUsage, Trouble
from valkyrie.artifact_store.logs import LONGEST
from valkyrie.domain import COUNTED_AS_ZERO as COUNTED_AS_ZERO
from valkyrie.domain import Category, Grade, Json, TaskSpec, TrialState
from valkyrie.errors import AgentError, BenchmarkError, SandboxFailedError, ValkyrieError
from valkyrie.store.layout import log_of
from valkyrie.store.leases import Leased
from valkyrie.trajectory.transcript import INSTRUCTION, TRANSCRIPT, Transcript
from valkyrie.trial.context import PhaseJournal, RunContext
from valkyrie.trial.outputs import (
    AGENT,
    ARCHIVE,
    ARTIFACTS,
    MESSAGE_LIMIT,
    AttemptLog,
    Reported,
    make_way,
    publish,
)

BROKEN = "grader_broken_by_work"
KILLED = "sandbox_killed_by_agent"
SETUP_BROKEN = "setup_broken_by_agent"


NOT_STARTED = "agent_not_started"
_NO_COMMAND = {126: "it cannot be executed", 127: "it, or what interprets it, was not found"}
_UNLOADED = re.compile(
    r"""\A\s*(
        Traceback\ \(most\ recent\ call\ last\):\n(?:[ \t].*\n|\n)*(?:ModuleNotFound|Import)Error\b
        | [ ]{0,2}File\ ".*",\ line\ \d+\n(?:.*\n){0,3}?(?:Syntax|Indentation|Tab)Error\b
        | \S*python[\d.]*:\ (?:can't\ open\ file|No\ module\ named)
        | node:internal/modules/.*\n(?:.*\n){0,6}?Error:\ Cannot\ find\ module
    )""",
    re.VERBOSE,
)
"""What interpreters print first about a program they cannot load."""


def start_failure(ended: AgentExit, heard: str) -> AgentError | None:
    """Return why an agent never started, by its exit code and the beginning of what it printed.

    It counts as 0 and is never tried again, so that nothing is won by looking like one. An agent that used
    its model has started, whatever its last command was.
    """
    if ended.reason is not None or ended.exit_code == 0 or (ended.usage and ended.usage.steps):
        return None
    said = f"The agent did not start: its command ended with exit code {ended.exit_code}"
    if why := _NO_COMMAND.get(ended.exit_code):
        return AgentError(f"{said}, so {why}.", cause=NOT_STARTED)
    if _UNLOADED.match(heard):
        return AgentError(f"{said} and printed {heard.strip().splitlines()[-1]!r}.", cause=NOT_STARTED)
    return None


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """Why an attempt ended without a grade."""

    category: Category
    cause: str
    message: str
    retry_after: float | None = None


_TROUBLES = {
    "model_refused": Category.AGENT,
    "context_overflow": Category.AGENT,
    "agent_gave_up": Category.AGENT,
    "model_rate_limited": Category.INFRASTRUCTURE,
    "model_unreachable": Category.INFRASTRUCTURE,
    "model_unauthorized": Category.USER,
    "model_unknown": Category.USER,
}
"""Who must act when an agent gave up."""


def category_of(cause: str) -> Category:
    """Return whose trouble it is; one nobody foresaw is the agent's."""
    return _TROUBLES.get(cause, Category.AGENT)


def is_graded(cause: str) -> bool:
    """Return whether an agent in this trouble had its chance, so that what it left is graded."""
    return category_of(cause) is Category.AGENT


class TroubleError(Exception):
    """The agent gave up for a reason that says nothing about it."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.message)
        self.trouble = trouble


def failure_of(trouble: Trouble, masker: Masker | None = None) -> AttemptFailure:
    """The agent's trouble as what is recorded of an attempt."""
    message = masker.text(trouble.message) if masker else trouble.message
    return AttemptFailure(
        category_of(trouble.cause), trouble.cause, message[:MESSAGE_LIMIT], trouble.retry_after
    )


class PhaseTimeoutError(Exception):
    """A phase took longer than it may."""

    def __init__(self, phase: str, seconds: float) -> None:
        super().__init__(f"{phase} took longer than {seconds:g} s")
        self.phase = phase


OF_FILES = frozenset(
    {
        *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.EILSEQ),
        *(errno.EOVERFLOW, errno.ENXIO, errno.EACCES, errno.EPERM, errno.ENODATA),
    }
)
"""What the shape of files brings about, and not the machine they are on."""


@contextmanager
def blamed_on_agent() -> Iterator[None]:
    """Turn failures of a sandbox an agent works or worked in into errors of the agent.

    What the host saw outside the sandbox stays what it is: a provider that cannot be reached or has no room,
    a sandbox whose end was caused outside it. Names and folders that make our own reading of them fail are
    the agent's.
    """
    try:
        yield
    except (SandboxUnsupportedError, SandboxConnectionError, SandboxCapacityError):
        raise
    except (SandboxFullError, SandboxCrowdedError):
        raise  # `classify` has causes of their own for these
    except SandboxDiedError as error:
        if error.outside:
            raise
        raise AgentError(f"The sandbox ended while the agent had it: {error}", cause=KILLED) from error
    except (SandboxError, SandboxFailedError) as error:
        raise AgentError(f"The agent's sandbox cannot be used any more: {error}", cause=KILLED) from error
    except PhaseTimeoutError as error:
        if error.phase not in ("agent", "carry"):
            raise
        raise AgentError(f"The agent's processes do not end: {error}", cause=KILLED) from error
    except (OSError, UnicodeError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno not in OF_FILES:
            raise
        message = f"What the agent left cannot be read: {type(error).__name__}: {error}"
        raise AgentError(message[:MESSAGE_LIMIT], cause=KILLED) from error


_PHASE_TIMEOUTS = {
    "equip": (Category.INFRASTRUCTURE, "agent_fetch_failed"),
    "build": (Category.INFRASTRUCTURE, "sandbox_timeout"),
    "setup": (Category.BENCHMARK, "setup_timeout"),
    "install": (Category.AGENT, "agent_install_timeout"),
    "agent": (Category.INFRASTRUCTURE, "sandbox_failed"),
    "collect": (Category.AGENT, "agent_output_missing"),
    "carry": (Category.INFRASTRUCTURE, "sandbox_failed"),
    "grade": (Category.BENCHMARK, "grader_timeout"),
}


def classify(error: BaseException, masker: Masker | None = None) -> AttemptFailure:
    """Return who must act, and what to tell them; no secret is told."""
    message = str(error).strip() or type(error).__name__
    # A file name or a grader's words may hold half a character, which no database takes.
    message = message.encode("utf-8", "replace").decode()
    message = masker.text(message) if masker else message
    message = message if len(message) <= MESSAGE_LIMIT else message[:MESSAGE_LIMIT] + " …"
    infrastructure, kind = Category.INFRASTRUCTURE, type(error).__name__
    match error:
        case ValkyrieError():
            return AttemptFailure(error.category, error.cause, message, error.retry_after)
        case TroubleError():
            return failure_of(error.trouble, masker)
        case PhaseTimeoutError():
            return AttemptFailure(*_PHASE_TIMEOUTS.get(error.phase, (Category.INTERNAL, "internal")), message)
        case SandboxImageError():
            return AttemptFailure(Category.BENCHMARK, "task_image_broken", message)
        case SandboxUnsupportedError():
            return AttemptFailure(Category.USER, "sandbox_unsupported", message)
        case SandboxCapacityError():
            return AttemptFailure(infrastructure, "sandbox_capacity", message, error.retry_after)
        case SandboxNotFoundError():
            return AttemptFailure(infrastructure, "sandbox_failed", f"The sandbox was lost: {message}")
        case SandboxFullError():
            return AttemptFailure(
                Category.AGENT, "agent_filled_disk", f"The sandbox's disk is full: {message}"
            )
        case SandboxCrowdedError():
            return AttemptFailure(Category.AGENT, "agent_output_missing", message)
        case SandboxError():
            return AttemptFailure(infrastructure, "sandbox_failed", message)
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return AttemptFailure(infrastructure, "disk_full", f"The host's disk is full: {message}")
        case OSError() | sqlite3.Error():
            return AttemptFailure(infrastructure, "infrastructure", f"{kind}: {message}")
        case _:
            return AttemptFailure(Category.INTERNAL, "internal", f"{kind}: {message}")


# One attempt under way, how its sandbox starts and is removed, and how the attempt ended.

_ROOT = (None, "root", "0")


async def start_entrypoint(task: TaskSpec, sandbox: Sandbox, sink: OutputSink) -> None:
    """Run the entrypoint of the task's image in a sandbox that nobody hostile was in."""
    if "entrypoint" in task.of_image:
        await sandbox.start_entrypoint(task.env, sink)


async def check_user(task: TaskSpec, sandbox: Sandbox) -> None:
    """BenchmarkError when the sandbox, once it is set up, has no user that the agent is to run as."""
    if task.user in _ROOT:
        return
    try:
        await sandbox.run(Command(("/bin/sh", "-c", ":"), user=task.user))
    except SandboxUserError as error:
        whose = "USER of its image" if "user" in task.of_image else "agent.user"
        raise BenchmarkError(
            f"task {task.id}: {whose} {task.user!r} cannot be used: {error}", cause="task_setup_failed"
        ) from error


# One attempt under way, and how it ended.

MOST_HEARD = 16 * 1024
_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(slots=True)
class Attempt:
    """One attempt under way."""

    leased: Leased
    context: RunContext
    journal: PhaseJournal
    log: AttemptLog
    kept: Path
    """Where what is kept appears, whole or not at all; `draft` is where it is put together."""
    draft: Path
    state: TrialState = TrialState.BUILDING
    exit: AgentExit | None = None
    timing: dict[str, float] = field(default_factory=dict)
    cost: float | None = None
    usage: AgentUsage | None = None
    grades: list[Grade] = field(default_factory=list)
    """Of a task's steps so far."""
    failed_exit: AgentExit | None = None
    """How the agent ended in the first of them in which it did not end well."""
    system_changes: frozenset[str] = frozenset()
    """Paths of the system that setting the task up changed."""
    tool_folders: tuple[str, ...] = ()
    """Folders of the image's own tools that are in no system folder."""
    agent_was_here: bool = False
    """Something of the agent ran in the sandbox."""
    heard: str = ""
    """The beginning of what the agent printed."""
    _cost_before: float | None = None
    """What the steps before this one cost."""

    def part(self, name: str, task: TaskSpec) -> Path:
        """The folder of the draft for one kind of things; steps have their own below it."""
        return self.draft / name / task.step if task.step else self.draft / name

    def go_on(self, step: TaskSpec, grade: Grade) -> None:
        """Another step follows, whose agent may leave the same: what this one's left is put aside."""
        self.grades.append(grade)
        if self.exit and (self.exit.reason or self.exit.exit_code) and self.failed_exit is None:
            self.failed_exit = self.exit
        if (archive := self.draft / ARCHIVE).exists():
            place = self.part(ARTIFACTS, step) / ARCHIVE
            make_way(place, self.draft)
            place.parent.mkdir(parents=True, exist_ok=True)
            archive.replace(place)

    def listen(self, sink: OutputSink) -> OutputSink:
        """Return a sink that also keeps the beginning of what is printed from now on."""
        self.heard = ""

        def hear(stream: StreamName, text: str) -> None:
            if len(self.heard) < MOST_HEARD:
                self.heard += text[: MOST_HEARD - len(self.heard)]
            sink(stream, text)

        return hear

    def use(self, usage: AgentUsage | None) -> None:
        """Add what an agent used of its model, in its only step or a further one."""
        self._cost_before = self.cost
        self.usage = usage if self.usage is None else self.usage.plus(usage)
        self.cost = _sum(self.cost, usage.cost if usage else None)

    def correct_usage(self, said: Reported) -> None:
        """Take what the agent left written: of its cost always, of tokens where its log told none."""
        if said.cost is not None:
            self.cost = _sum(self._cost_before, said.cost)
        if said.tokens is not None and (self.exit is None or self.exit.usage is None):
            source = None if said.cost is None else "agent"
            used = replace(said.tokens, cost=said.cost, cost_source=source)
            self.usage = used if self.usage is None else self.usage.plus(used)

    @property
    def start(self) -> Path:
        """For what grading has to know of the beginning; not kept."""
        return self.draft.with_name(f"{self.draft.name}-start")

    @property
    def scratch(self) -> Path:
        """For what grading puts together on this machine; not kept."""
        return self.draft.with_name(f"{self.draft.name}-scratch")

    async def enter(self, state: TrialState) -> None:
        """Commit the next phase, then be in it."""
        await self.journal.enter(self.leased, self.state, state)
        self.state = state

    async def publish(self) -> None:
        """Show what was put together under its own name; an attempt taken from us leaves nothing."""
        if not self.draft.exists():
            return
        if self.context.masker is None:
            # A folder that takes its name: that is quicker here than in a thread.
            publish(self.draft, self.kept, None)
        else:
            await asyncio.to_thread(publish, self.draft, self.kept, self.context.masker)

    async def put_away(self) -> None:
        """Put what was kept, and the log, where others find them too."""
        await self.context.away.put(self.leased, self.kept, log_of(self.kept))

    async def keep_told(self, task: TaskSpec, told: Transcript) -> None:
        """Keep the agent's own account; a short one needs no file of its own, unless others fetch it."""
        from valkyrie.trajectory.records import to_record

        leased, masker = self.leased, self.context.masker
        record = to_record(told, id=f"{task.id}#{leased.k}", stimulus=task.id, work_dir=task.cwd)
        record = masker.data(record) if masker else record
        text = _compact(record).encode("utf-8", "replace")
        if len(text) <= LONGEST and self.context.away.artifacts is None and task.step is None:
            self.context.transcripts.keep((leased.task_id, leased.k, leased.number), text)
        else:
            await asyncio.to_thread(_write, self.part(AGENT, task) / TRANSCRIPT, text)

    async def keep_instruction(self, task: TaskSpec) -> None:
        """Keep what the agent was told, for those who read the trial; its own account would have it."""
        text = task.instruction.encode("utf-8", "replace")
        await asyncio.to_thread(_write, self.part(AGENT, task) / INSTRUCTION, text)

    def inherit_transcript(self, earlier: int) -> None:
        """Keep the agent's account of an earlier attempt as this one's too, if it has no file of its own."""
        leased, transcripts = self.leased, self.context.transcripts
        transcript = transcripts.find((leased.task_id, leased.k, earlier))
        if transcript is not None:
            transcripts.keep((leased.task_id, leased.k, leased.number), transcript)

    async def save(self, state: Json) -> None:
        """Commit from what a later attempt can go on grading; what the agent left is safe before that."""
        masker = self.context.masker
        await self._commit({"state": masker.data(state) if masker else state})

    async def save_work(self) -> None:
        """Commit that a later attempt can grade the kept work, without running the agent again."""
        await self._commit({"state": None, "work": True})

    async def _commit(self, saved: Json) -> None:
        await self.publish()
        await self.put_away()
        ended = self.exit or AgentExit(0)
        await self.journal.save(
            self.leased,
            {
                "attempt": self.leased.number,
                "exit_code": ended.exit_code,
                "exit_reason": ended.reason,
                **saved,
                # Should this attempt be lost, its agent has cost that all the same.
                "cost": self.cost,
                "usage": asdict(self.usage) if self.usage else None,
            },
        )

    @asynccontextmanager
    async def phase(self, name: str, limit: float | None) -> AsyncIterator[None]:
        """Measure a step, and bound it."""
        self.log.heading(name)
        began = time.monotonic()
        try:
            async with asyncio.timeout(limit) as scope:
                yield
        except TimeoutError:
            if scope.expired() and limit is not None:
                raise PhaseTimeoutError(name, limit) from None
            raise
        finally:
            self.timing[name] = round(self.timing.get(name, 0.0) + time.monotonic() - began, 4)


def _sum(one: float | None, other: float | None) -> float | None:
    known = [cost for cost in (one, other) if cost is not None]
    return sum(known) if known else None


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@dataclass(frozen=True, slots=True)
class AttemptEnding:
    """How an attempt ended, graded or failed, and in which phase."""

    state: TrialState
    timing: dict[str, float]
    grade: Grade | None = None
    failure: AttemptFailure | None = None
    exit: AgentExit | None = None
    cost: float | None = None
    usage: AgentUsage | None = None


# What becomes of a sandbox after its attempt: removed, or kept for a person to look into.

REMOVE_TIMEOUT_S = 120.0
"""A provider that cannot remove a sandbox must not hold its slot for ever."""


async def keep_sandbox(context: RunContext, leased: Leased, sandbox: Sandbox, log: AttemptLog) -> None:
    """Leave the sandbox for a person to look into; of each trial only the last one stays."""
    trial = (leased.task_id, leased.k)
    before = context.kept.pop(trial, None)
    context.kept[trial] = sandbox
    if before:
        await remove_sandbox(context, before.id, log)


async def remove_sandbox(context: RunContext, sandbox_id: str, log: AttemptLog) -> None:
    """End a sandbox; when that fails the grade stands, and what is left is reaped by the next executor."""
    try:
        async with asyncio.timeout(REMOVE_TIMEOUT_S):
            await context.provider.delete_sandbox(sandbox_id)
    except (SandboxError, OSError) as error:
        log.note(f"the sandbox could not be removed: {str(error) or 'it took too long'}")

"""One attempt under way, how its sandbox starts and is removed, and how the attempt ended."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from sandboxes.errors import SandboxError, SandboxUserError
from sandboxes.protocol import Sandbox
from sandboxes.types import Command, OutputSink, StreamName
from valkyrie.agents.protocol import AgentExit, AgentUsage
from valkyrie.artifact_store.logs import LONGEST
from valkyrie.domain import Grade, Json, TaskSpec, TrialState
from valkyrie.errors import BenchmarkError
from valkyrie.store.layout import log_of
from valkyrie.store.leases import Leased
from valkyrie.trajectory.transcript import INSTRUCTION, TRANSCRIPT, Transcript
from valkyrie.trial.context import PhaseJournal, RunContext
from valkyrie.trial.failures import AttemptFailure, PhaseTimeoutError
from valkyrie.trial.outputs import AGENT, ARCHIVE, ARTIFACTS, AttemptLog, make_way, publish
from valkyrie.trial.usage import Reported

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
    world: RunContext
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
        if self.world.masker is None:
            # A folder that takes its name: that is quicker here than in a thread.
            publish(self.draft, self.kept, None)
        else:
            await asyncio.to_thread(publish, self.draft, self.kept, self.world.masker)

    async def put_away(self) -> None:
        """Put what was kept, and the log, where others find them too."""
        await self.world.away.put(self.leased, self.kept, log_of(self.kept))

    async def keep_told(self, task: TaskSpec, told: Transcript) -> None:
        """Keep the agent's own account; a short one needs no file of its own, unless others fetch it."""
        from valkyrie.trajectory.records import to_record

        leased, masker = self.leased, self.world.masker
        record = to_record(told, id=f"{task.id}#{leased.k}", stimulus=task.id, work_dir=task.cwd)
        record = masker.data(record) if masker else record
        text = _compact(record).encode("utf-8", "replace")
        if len(text) <= LONGEST and self.world.away.artifacts is None and task.step is None:
            self.world.stories.keep((leased.task_id, leased.k, leased.number), text)
        else:
            await asyncio.to_thread(_write, self.part(AGENT, task) / TRANSCRIPT, text)

    async def keep_instruction(self, task: TaskSpec) -> None:
        """Keep what the agent was told, for those who read the trial; its own account would have it."""
        text = task.instruction.encode("utf-8", "replace")
        await asyncio.to_thread(_write, self.part(AGENT, task) / INSTRUCTION, text)

    def inherit_story(self, earlier: int) -> None:
        """Keep the agent's account of an earlier attempt as this one's too, if it has no file of its own."""
        leased, stories = self.leased, self.world.stories
        story = stories.find((leased.task_id, leased.k, earlier))
        if story is not None:
            stories.keep((leased.task_id, leased.k, leased.number), story)

    async def save(self, state: Json) -> None:
        """Commit from what a later attempt can go on grading; what the agent left is safe before that."""
        masker = self.world.masker
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
    """Of what is known."""
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


async def keep_sandbox(world: RunContext, leased: Leased, sandbox: Sandbox, log: AttemptLog) -> None:
    """Leave the sandbox for a person to look into; of each trial only the last one stays."""
    trial = (leased.task_id, leased.k)
    before = world.kept.pop(trial, None)
    world.kept[trial] = sandbox
    if before:
        await remove_sandbox(world, before.id, log)


async def remove_sandbox(world: RunContext, sandbox_id: str, log: AttemptLog) -> None:
    """End a sandbox; when that fails the grade stands, and what is left is reaped by the next executor."""
    try:
        async with asyncio.timeout(REMOVE_TIMEOUT_S):
            await world.provider.delete_sandbox(sandbox_id)
    except (SandboxError, OSError) as error:
        log.note(f"the sandbox could not be removed: {str(error) or 'it took too long'}")

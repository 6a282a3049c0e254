"""The product's words as types (states, categories, tasks, grades), and the digest of their content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from benchmark_runner.errors import Category as Category
from sandboxes.protocol import ImageDefaults, NetworkPolicy, SandboxLimits

if TYPE_CHECKING:
    from sandboxes.types import Mount, SandboxSource


Json = dict[str, Any]

DEFAULT_ORG = "default"
"""The organisation everything belongs to where nobody speaks of organisations."""
INGESTED = "ingested"
"""The provider of runs whose trials ran elsewhere: what is known of them is what a file said."""
DEFAULT_PRIORITY = 3
"""Of 0 (the largest share of the slots) to `LAST_PRIORITY`."""
LAST_PRIORITY = 4
ABORT_AFTER = 20
"""So many trials that all ended in errors stop a run, unless it says otherwise."""
ABORT_SHARE = 0.05
"""Or this share of all its trials, if that is more."""


class Role(StrEnum):
    """What the holder of an API key may do, the least first: each role may do what those before it may."""

    READER = "reader"
    """Look at everything of the organisation; for CI and dashboards."""
    MEMBER = "member"
    """Start and steer runs and jobs, push agents, set secrets."""
    ADMIN = "admin"
    """Change the organisation's settings, and see who did what."""

    def may(self, needed: Role) -> bool:
        """Return whether this role is enough where `needed` is asked for."""
        order = tuple(Role)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks: a person, what they may do, and the organisation whose things they may see."""

    org_id: str = DEFAULT_ORG
    org: str = DEFAULT_ORG
    """Its name."""
    person: str | None = None
    """Whom a run is recorded as started by."""
    key_id: str | None = None
    """The API key that was shown, if one was."""
    max_concurrency: int | None = None
    """How many trials of runs started with that key may be in hand at once; None is no limit."""
    role: Role = Role.ADMIN
    """What they may do; everything where nobody asks for keys."""


LATEST = "latest"
"""The word for what was started last, by whoever asks."""


def may_be_id(word: str) -> bool:
    """Return whether this may be the id of a run or a job, or the beginning of one."""
    return bool(word) and all(character in "0123456789abcdef-" for character in word.lower())


class RunState(StrEnum):
    """Where a run stands."""

    IN_PROGRESS = "IN_PROGRESS"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    FINISHED = "FINISHED"
    ERROR = "ERROR"

    @property
    def terminal(self) -> bool:
        """Nothing more happens unless a person asks."""
        return self in (RunState.STOPPED, RunState.FINISHED, RunState.ERROR)


class TrialState(StrEnum):
    """Where a trial stands."""

    PENDING = "PENDING"
    BUILDING = "BUILDING"
    IN_PROGRESS = "IN_PROGRESS"
    EVALUATING = "EVALUATING"
    FINISHED = "FINISHED"
    ERROR = "ERROR"
    STOPPED = "STOPPED"
    SKIPPED = "SKIPPED"
    """Not needed: what its job asks was decided without it. No part of any score."""

    @property
    def terminal(self) -> bool:
        """It ended: with a grade, an error, a stop, or because it was not needed."""
        return self in (TrialState.FINISHED, TrialState.ERROR, TrialState.STOPPED, TrialState.SKIPPED)

    @property
    def active(self) -> bool:
        """An executor is working on it."""
        return self in (TrialState.BUILDING, TrialState.IN_PROGRESS, TrialState.EVALUATING)


class JobState(StrEnum):
    """Where a job stands; derived from its runs, never stored."""

    INITIALIZING = "initializing"
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"


class Outcome(StrEnum):
    """How one attempt ended."""

    GRADED = "graded"
    FAILED = "failed"
    LOST = "lost"
    """Its executor died or lost the lease; what it did does not count."""
    STOPPED = "stopped"


class ExitReason(StrEnum):
    """Why the agent's command did not end by itself; the trial is graded all the same."""

    TIMEOUT = "TIMEOUT"
    OS_KILLED = "OS_KILLED"


MAX_TURNS = "max_turns"
"""In a task's metadata: how often the model may be asked, for agents that can be held to it."""
COUNTED_AS_ZERO = frozenset(
    {
        "grader_broken_by_work",
        "grader_tokens_unreported",
        "sandbox_killed_by_agent",
        "setup_broken_by_agent",
    }
)
"""Causes of an agent that kept itself from being graded: it is graded, with a score of 0."""


SECOND_TRIES = "second_tries"
"""Among a run's arguments: how many ends by the agent's doing somebody had tried again. They did count."""


def ended_by_agent(state: str, category: str | None) -> bool:
    """Return whether a trial ended without a grade by its agent's doing, a time-out of the agent included.

    Such a trial counts as the worst score, wherever it is counted. Every other trial without a grade counts
    nowhere: neither agent was the cause.
    """
    return state == TrialState.ERROR and category == Category.AGENT


def worst_score(graded: Iterable[float | None]) -> float:
    """Return what an ending by the agent's doing counts beside these grades: 0, or less if one is below 0."""
    return min((score for score in graded if score is not None and score < 0), default=0.0)


class VerifyMode(StrEnum):
    """Where a trial's tests run."""

    FRESH = "fresh"
    """In a sandbox in which no process of the agent ever ran; its work is carried there as data."""
    SHARED = "shared"
    """In the sandbox the agent left, its processes dead and the image's own tools put back."""
    BOTH = "both"
    """In a fresh one, and if that gives no pass, in the shared one as well."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds each phase may take; None is no limit."""

    build: float | None = 360.0
    setup: float | None = 600.0
    install: float | None = 600.0
    agent: float | None = None
    grade: float | None = 600.0


@dataclass(frozen=True, slots=True)
class KeptPath:
    """A file, pattern or folder of the sandbox a task wants kept after its agent is done."""

    source: str
    """Absolute, or below the working folder."""
    destination: str | None = None
    """Where, relative; None is by its name."""
    exclude: tuple[str, ...] = ()
    """Patterns of what to leave out of a folder."""
    expected: bool = True
    """That it is not there is worth a word."""


@dataclass(frozen=True, slots=True)
class GatherCommand:
    """A command of the task's that gathers such things first."""

    command: str
    user: str | None = None
    timeout: float = 60.0


ImageChoice = Literal["cwd", "user", "grading_user", "entrypoint"]


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One task, described: what the agent is told, and what the trial needs."""

    id: str
    digest: str
    """Content digest of everything that makes the task what it is."""
    instruction: str
    problem_path: str = "/tmp/instruction.md"
    """Where the instruction stands in the sandbox."""
    cwd: str = "/app"
    image: str | None = None
    """Container image the task names (or `Dockerfile` for one it builds); None runs on any root."""
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    network: NetworkPolicy = "public"
    allowed_networks: tuple[str, ...] = ()
    """Private networks the task reaches with network `public`, as CIDRs."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment of every command of the trial, the agent's included."""
    of_image: frozenset[ImageChoice] = frozenset()
    """What the image's author decides and the task does not: `placed` fills it in."""
    user: str | None = None
    """Whom the agent runs as; None is root of the sandbox."""
    grading_user: str | None = None
    """Whom the tests run as; None is root of the sandbox."""
    has_solution: bool = False
    solution_env: Mapping[str, str] = field(default_factory=dict)
    """Environment of the task's own solution, over `env`: for the oracle alone."""
    source: SandboxSource | None = None
    """What the sandbox is made from, where an image's name does not say it all; wins over `image`."""
    install_first: bool = False
    """The agent is installed before the task is set up, not after."""
    grading_folders: tuple[str, ...] = ()
    """Where grading will put its files; an agent that fills the disk leaves room there."""
    turns: tuple[str, ...] = ()
    """What the agent is told one after another, `instruction` first; empty where that is all."""
    step: str | None = None
    """The name of the step this is, of a task that has several."""
    steps: tuple[TaskSpec, ...] = ()
    """Tried one after another in the same sandbox, each graded before the next is told; mostly none."""
    trials: int | None = None
    """How often it is tried, where it says so itself."""
    mcp_servers: Mapping[str, Json] = field(default_factory=dict)
    """Tool servers the agent is to use, by name, as in eval specs."""
    tools_optional: bool = False
    """An agent that takes no tool servers, or no skills, is tried without them."""
    skills_dir: str | None = None
    """A folder of the sandbox that holds skills for the agent."""
    gathering: tuple[GatherCommand, ...] = ()
    """Run when the agent is done, before grading."""
    artifacts: tuple[KeptPath, ...] = ()
    """Kept with the attempt, also before grading."""
    mounts: tuple[Mount, ...] = ()
    """Folders of the host that are shown in the sandbox."""
    verify: VerifyMode = VerifyMode.BOTH
    """Where the tests run; BOTH where neither the task nor a lock file says more."""
    carry: tuple[str, ...] = ()
    """Paths outside the working folder that are carried into a fresh sandbox, system folders included."""
    grading_runs: bool = True
    """Grading runs programs in the sandbox; where it only reads files, no second sandbox is made."""
    work_suffices: bool = False
    """The agent's kept work is all that is needed to grade it once more."""
    keep_processes: bool = False
    """The agent's processes live on while the tests run; such a pass is never confirmed."""
    metadata: Json = field(default_factory=dict)

    def placed(self, image: ImageDefaults | None) -> TaskSpec:
        """Return the task, and its steps, as they are in a sandbox of this image; None is not known."""
        if image is None:
            return self
        return replace(
            self,
            cwd=image.workdir if "cwd" in self.of_image else self.cwd,
            user=image.user if "user" in self.of_image else self.user,
            grading_user=image.user if "grading_user" in self.of_image else self.grading_user,
            steps=tuple(step.placed(image) for step in self.steps),
        )


@dataclass(frozen=True, slots=True)
class Grade:
    """What grading one trial found."""

    score: float | None
    """0..1 for our own sources; a service's own scale otherwise. None when only `result` speaks."""
    passed: bool | None = None
    result: Json = field(default_factory=dict)
    """The benchmark's own result object, kept whole; final scores are computed from it."""
    goes_on: bool = False
    """Of a step: the next one is to be tried, and its grading sees this grade."""
    confirmed: bool | None = None
    """The score was seen in a fresh sandbox; False: only in the one the agent left; None: not known."""
    score_confirmed: float | None = None
    """The score that was seen in a fresh sandbox; 0 where none was."""
    cause: str | None = None
    """Why the score is 0 although no grader said so: a cause of the policy table."""
    message: str | None = None
    evidence: Json = field(default_factory=dict)
    """How it was verified: mode, system files the agent changed, work that was not carried, control, and the
    reason of a verdict that is no pass."""
    reason: str | None = None
    """What the grader said last, where the trial did not pass; the engine keeps it in `evidence`."""


@dataclass(frozen=True, slots=True)
class FinalScore:
    """A benchmark's own verdict over all its tasks."""

    score: float | None
    properties: Json = field(default_factory=dict)


# Stable content digests: the same inputs give the same digest, on any machine, in any order of keys.


def content_digest(value: Any) -> str:
    """sha256 over the canonical JSON form of plain data."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

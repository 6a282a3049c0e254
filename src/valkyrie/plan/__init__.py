"""A request becomes a frozen list of trials with content digests, before anything starts. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sandboxes.protocol import disk_in_memory_mb, memory_for
from valkyrie.domain import TaskSpec, VerifyMode, content_digest

DIGEST_VERSION = 1
"""Raised when what a digest covers changes."""
FAMILY = "family"
"""The key of a task's metadata that names its family, unless another one is named."""
LONGEST_FAMILY = 200
_LIMITED_HERE = ("local", "docker")
"""Providers whose sandboxes take of this machine's memory, each up to a limit."""


_MODES = (
    *((mode, False) for mode in VerifyMode),
    (VerifyMode.SHARED, True),
)
"""(where tests run, whether processes live on), as a lock file may say."""


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """One task of the run, repetition k."""

    task_id: str
    k: int
    digest: str
    cpus: float | None
    memory_mb: int | None
    family: str | None = None
    """Tasks of one family resemble each other; None: the task resembles no other."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What besides agent and task decides how a trial goes."""

    provider: str
    host_image: bool = False
    timeout_multiplier: float = 1.0
    on_agent_failure: str = "grade"
    agent_timeout: float | None = None
    """Seconds an agent may take, whatever the task says."""
    default_agent_timeout: float | None = None
    """The same for tasks that say nothing."""
    env_vars: Mapping[str, str] = field(default_factory=dict)
    """Environment of the agent's commands, over the task's."""
    model_url: str | None = None
    """Where the agent's model is served, if not at its vendor's."""
    verify: str | None = None
    """Where tests run (a VerifyMode), whatever the tasks say."""


def trial_digest(task: TaskSpec, k: int, *, agent_digest: str, model: str | None, settings: Settings) -> str:
    """Return what this trial is: the same digest means the same agent, model, task content and settings.

    How long things may take is no part of it, so that a run can go on with other limits.
    """
    return _digest(task, k, agent_digest, model, settings, 1.0)


def older_digest(task: TaskSpec, k: int, *, agent_digest: str, model: str | None, settings: Settings) -> str:
    """The same trial's as it was when limits were still a part of it."""
    return _digest(task, k, agent_digest, model, settings, settings.timeout_multiplier)


def as_planned(
    task: TaskSpec, k: int, digest: str, *, agent_digest: str, model: str | None, settings: Settings
) -> TaskSpec | None:
    """The task as the trial with this digest was planned; None if the trial is of another task.

    A trial's digest covers where its tests run. So a lock file that changes under a run changes nothing of
    it: the task is given back with the mode that fits the digest, whatever the file says now.
    """
    for mode in ((task.verify, task.keep_processes), *_MODES):
        one = in_mode(task, *mode)
        for digest_of in (trial_digest, older_digest):
            if digest_of(one, k, agent_digest=agent_digest, model=model, settings=settings) == digest:
                return one
    return None


def in_mode(task: TaskSpec, verify: VerifyMode, keep_processes: bool) -> TaskSpec:
    """The task with its tests run elsewhere; steps that differ from the whole stay as they are."""
    if (task.verify, task.keep_processes) == (verify, keep_processes):
        return task
    same = (task.verify, task.keep_processes)
    steps = tuple(
        in_mode(step, verify, keep_processes) if (step.verify, step.keep_processes) == same else step
        for step in task.steps
    )
    return replace(task, verify=verify, keep_processes=keep_processes, steps=steps)


def _mode_word(task: TaskSpec) -> str | None:
    """None for the default, so that digests of older runs stay what they are."""
    if task.keep_processes:
        return f"{task.verify} with processes"
    return None if task.verify is VerifyMode.BOTH else str(task.verify)


def _digest(
    task: TaskSpec, k: int, agent_digest: str, model: str | None, settings: Settings, stretch: float
) -> str:
    more = {
        name: value
        for name, value in {
            "env_vars": dict(settings.env_vars),
            "model_url": settings.model_url,
            "verify": settings.verify,
            "task_verify": None if settings.verify else _mode_word(task),
        }.items()
        if value
    }
    return content_digest(
        {
            "version": DIGEST_VERSION,
            "agent": agent_digest,
            "model": model,
            "task": [task.id, task.digest],
            "k": k,
            "provider": settings.provider,
            "host_image": settings.host_image,
            "timeout_multiplier": stretch,
            "on_agent_failure": settings.on_agent_failure,
            **more,
        }
    )


def make_plan(
    tasks: Sequence[TaskSpec],
    *,
    agent_digest: str,
    model: str | None,
    trials: int,
    settings: Settings,
    host_mb: int | None = None,
    family: str | None = None,
) -> list[TrialPlan]:
    """Return every trial of a run: all tasks once, then all tasks again, so that early results cover all
    tasks.

    A task that says itself how often it is tried is tried so often. `host_mb` is the memory of the machine
    whose sandboxes these are; None where they take nothing of it. `family` is the key of the tasks' metadata
    that names their family.
    """
    most = max((trials, *(task.trials or 0 for task in tasks)))
    return [
        TrialPlan(
            task_id=task.id,
            k=k,
            digest=trial_digest(task, k, agent_digest=agent_digest, model=model, settings=settings),
            cpus=task.limits.cpus,
            memory_mb=memory_needed(task, settings, host_mb),
            family=family_of(task, family),
        )
        for k in range(most)
        for task in tasks
        if k < (trials if task.trials is None else task.trials)
    ]


def family_of(task: TaskSpec, key: str | None = None) -> str | None:
    """Return the family a task says it belongs to, under this key of its metadata or tags; None: none."""
    return named_family(task.metadata, key)


def named_family(metadata: Mapping[str, object], key: str | None = None) -> str | None:
    """Return the family that metadata names under this key, or their tags do; None: none."""
    name = key or FAMILY
    tags = metadata.get("tags")
    found = metadata.get(name)
    if found is None and isinstance(tags, Mapping):
        found = tags.get(name)
    if isinstance(found, list | tuple):
        found = ", ".join(map(str, found))
    if found is None or isinstance(found, Mapping):
        return None
    return str(found).strip()[:LONGEST_FAMILY] or None


def shuffled(trials: Sequence[TrialPlan], seed: str) -> list[TrialPlan]:
    """Return the trials in an order that nobody chose and everybody can check: the same for the same seed.

    All trials of a task come one after another, and all tasks of a family: a comparison that is looked at
    while it goes on takes tasks in this order, each once it is whole.
    """

    def place(one: TrialPlan) -> tuple[str, str, int]:
        return shuffled_place(seed, one.family or one.task_id), shuffled_place(seed, one.task_id), one.k

    return sorted(trials, key=place)


def shuffled_place(seed: str, name: str) -> str:
    """Return where a name comes in the order of this seed."""
    return hashlib.sha256(f"{seed} {name}".encode()).hexdigest()


def plan_digest(runs: Sequence[Sequence[TrialPlan]], rule: Mapping[str, object] | None) -> str:
    """Return what a job's plan is: its runs' trials, and when it stops. The order of trials is no part."""
    trials = [sorted(one.digest for one in trials) for trials in runs]
    return content_digest({"version": DIGEST_VERSION, "trials": trials, **({"stop": rule} if rule else {})})


def memory_needed(task: TaskSpec, settings: Settings, host_mb: int | None) -> int | None:
    """Megabytes a trial may take of the host: its sandbox, and a second one where both are there at a time.

    The agent's processes are dead by then, but its files stay until it is graded, and on `local` files lie in
    memory.
    """
    if host_mb is None or settings.provider not in _LIMITED_HERE:
        return task.limits.memory_mb
    in_memory = settings.provider == "local"
    memory = memory_for(task.limits, host_mb, disk_in_memory=in_memory)
    mode = VerifyMode(settings.verify) if settings.verify else task.verify
    both = mode is VerifyMode.BOTH or (mode is VerifyMode.FRESH and bool(task.steps))
    files = disk_in_memory_mb(task.limits.disk_mb, memory) if in_memory and both and task.grading_runs else 0
    return memory + files

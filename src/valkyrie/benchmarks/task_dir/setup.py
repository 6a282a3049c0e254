"""Prepare a sandbox for the agent, also for tasks of several steps, and say what is kept of it."""

from __future__ import annotations

import asyncio
import posixpath
import tempfile
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sandboxes.protocol import Sandbox
from sandboxes.types import Command, OutputSink
from valkyrie.benchmarks.task_dir.dockerfile import Recipe, repeat_dockerfile
from valkyrie.benchmarks.task_dir.folder import make_folder, put_folder
from valkyrie.benchmarks.task_dir.task_toml import Collect, Healthcheck, StepTable, TaskArtifact, TaskToml
from valkyrie.benchmarks.task_dir.verifier import OutputTail, score_of
from valkyrie.domain import GatherCommand, Grade, ImageChoice, Json, KeptPath, TaskSpec, Timeouts, VerifyMode
from valkyrie.errors import BenchmarkError

ARTIFACTS_FOLDER = KeptPath("/logs/artifacts", destination=".", expected=False)
"""Kept of every task: whatever agent and task put there."""
MAIN = "main"


def kept_paths(declared: Sequence[str | TaskArtifact]) -> tuple[KeptPath, ...]:
    """Return those of the sandbox itself."""
    tables = [TaskArtifact(source=one) if isinstance(one, str) else one for one in declared]
    return tuple(
        KeptPath(
            posixpath.normpath(one.source),
            one.destination and one.destination.strip("/"),
            one.exclude,
        )
        for one in tables
        if one.service in (None, MAIN)
    )


def gathering(declared: Sequence[Collect]) -> tuple[GatherCommand, ...]:
    """The commands of the sandbox itself."""
    return tuple(
        GatherCommand(one.command, None if one.user is None else str(one.user), one.timeout_sec)
        for one in declared
        if one.service == MAIN
    )


def elsewhere(config: TaskToml) -> Iterator[str]:
    """Yield what is to come from other containers, and does not."""
    asked: list[str | None] = []
    tables: list[TaskToml | StepTable] = [config, *config.steps]
    for table in tables:
        asked += [one.service for one in table.artifacts if isinstance(one, TaskArtifact)]
        asked += [one.service for one in table.verifier.collect]
    for service in dict.fromkeys(name for name in asked if name not in (None, MAIN)):
        yield f"nothing is collected from the service {service!r}: a task has one sandbox"


# Prepare a sandbox for the agent: instruction, working folder, environment files, health check.
#
# Neither tests nor solution ever pass through here.

SETUP_SCRIPT = "setup.sh"
_STAGED_SCRIPT = "/tmp/valkyrie-setup.sh"


@dataclass(frozen=True, slots=True)
class Preparation:
    """What one task wants done before its agent starts."""

    environment: Path | None
    """The task's `environment/` folder, if it is to be used here."""
    recipe: Recipe | None = None
    """The Dockerfile to repeat on the host's file system; then nothing else is copied."""
    healthcheck: Healthcheck | None = None
    folder_of_image: bool = False
    """The working folder is the image's own, which is there."""


async def prepare(task: TaskSpec, preparation: Preparation, sandbox: Sandbox, log: OutputSink) -> None:
    """Do it. Raises BenchmarkError when the task's own setup fails."""
    await _make_log_folders(sandbox)
    await sandbox.upload_file(task.problem_path, task.instruction.encode())
    environment = preparation.environment
    if preparation.recipe is not None and environment is not None:
        await make_folder(sandbox, task.cwd)
        await repeat_dockerfile(preparation.recipe, environment, sandbox, log)
    elif environment is not None:
        await _lay_out(task, environment, "environment", sandbox, log)
    elif not (preparation.folder_of_image and sandbox.image_defaults):
        await make_folder(sandbox, task.cwd)
    if preparation.healthcheck is not None:
        await _wait_until_healthy(task, preparation.healthcheck, sandbox, log)


async def prepare_step(task: TaskSpec, preparation: Preparation, sandbox: Sandbox, log: OutputSink) -> None:
    """Tell the step's own instruction, and lay its files over what is there."""
    await _reclaim(task, sandbox, log)
    await sandbox.upload_file(task.problem_path, task.instruction.encode())
    if preparation.environment is not None:
        await _lay_out(task, preparation.environment, f"steps/{task.step}/workdir", sandbox, log)
    if preparation.healthcheck is not None:
        await _wait_until_healthy(task, preparation.healthcheck, sandbox, log)


async def _reclaim(task: TaskSpec, sandbox: Sandbox, log: OutputSink) -> None:
    """Places a step needs, where an earlier one left something else: an agent can refuse no step that way."""
    for folder in (posixpath.dirname(task.problem_path), task.cwd):
        # A link to a folder will do, as one may be part of the image.
        if await sandbox.run(Command(("/bin/sh", "-c", 'cd -- "$1"', "sh", folder)), None) != 0:
            log("stderr", f"{folder} is no folder any more; it is made anew\n")
            await sandbox.clear_folder(folder)
    await sandbox.remove(task.problem_path)


async def _make_log_folders(sandbox: Sandbox) -> None:
    with tempfile.TemporaryDirectory(prefix="valkyrie-") as scratch:
        logs = Path(scratch)
        logs.chmod(0o755)
        for name, mode in (("agent", 0o777), ("artifacts", 0o777), ("verifier", 0o755)):
            (logs / name).mkdir()
            (logs / name).chmod(mode)
        await sandbox.upload_folder(logs, "/logs")


async def _lay_out(task: TaskSpec, folder: Path, called: str, sandbox: Sandbox, log: OutputSink) -> None:
    """Put a folder's files into the working folder, and run its `setup.sh`.

    That runs from outside the working folder, so that not even a `git add -A` in it keeps it. `called` is
    the folder as the task's author knows it.
    """
    await put_folder(sandbox, folder, task.cwd)
    if not (folder / SETUP_SCRIPT).is_file():
        return
    await sandbox.remove(f"{task.cwd}/{SETUP_SCRIPT}")
    await sandbox.upload_file(_STAGED_SCRIPT, (folder / SETUP_SCRIPT).read_bytes())
    tail = OutputTail(log)
    try:
        code = await sandbox.run(Command(("bash", _STAGED_SCRIPT), cwd=task.cwd, env=task.env), tail)
    finally:
        await sandbox.remove(_STAGED_SCRIPT)
    if code != 0:
        raise BenchmarkError(
            f"task {task.id}: {called}/{SETUP_SCRIPT} ended with exit code {code}{tail.quoted()}",
            cause="task_setup_failed",
        )


async def _wait_until_healthy(task: TaskSpec, check: Healthcheck, sandbox: Sandbox, log: OutputSink) -> None:
    """As in compose files: failures in the start period do not count, then `retries` of them are too many."""
    started, failures = time.monotonic(), 0
    tail = OutputTail(log)
    image = sandbox.image_defaults if "entrypoint" in task.of_image else None
    user = image.user if image else None
    while True:
        command = Command.shell(check.command, cwd=task.cwd, env=task.env, user=user, timeout=check.timeout)
        code = await sandbox.run(command, tail)
        if code == 0:
            return
        starting = time.monotonic() - started < check.start_period
        failures += 0 if starting else 1
        if failures >= check.retries:
            raise BenchmarkError(
                f"task {task.id}: health check `{check.command}` failed {failures} times, "
                f"last with exit code {code}{tail.quoted()}",
                cause="task_unhealthy",
            )
        await asyncio.sleep(check.start_interval if starting else check.interval)


# Tasks of several steps: told one after another in the same sandbox, each graded before the next.
#
# The next step finds what the last one left, and nothing of its tests. Every step is a conversation of its
# own: the agent begins anew, in a working folder that is not new.

STEPS = "steps"
KEEPS_PROCESSES = (
    "verifier.keep_processes is for tests that run beside the agent's processes; say so with "
    'verifier.environment_mode = "shared"'
)
_BAD_IN_NAME = frozenset('/\\:*?"<>|')


def step_specs(whole: TaskSpec, config: TaskToml, folder: Path, texts: Sequence[str]) -> tuple[TaskSpec, ...]:
    """Each step as a task of its own in the sandbox of the whole; `texts` are their instructions."""
    return tuple(_spec(whole, step, folder, text) for step, text in zip(config.steps, texts, strict=True))


def _spec(whole: TaskSpec, step: StepTable, folder: Path, instruction: str) -> TaskSpec:
    agent, verifier = step.agent, step.verifier
    own_limit = "timeout_sec" in verifier.model_fields_set
    return replace(
        whole,
        step=step.name,
        instruction=instruction,
        timeouts=Timeouts(
            build=whole.timeouts.build,
            agent=agent.timeout_sec or whole.timeouts.agent,
            grade=verifier.timeout_sec if own_limit else whole.timeouts.grade,
        ),
        of_image=whole.of_image - _chosen(step),
        user=whole.user if agent.user is None else str(agent.user),
        grading_user=whole.grading_user if verifier.user is None else str(verifier.user),
        gathering=(*whole.gathering, *gathering(verifier.collect)),
        artifacts=(*whole.artifacts, *kept_paths(step.artifacts)),
        has_solution=(folder / STEPS / step.name / "solution" / "solve.sh").is_file(),
        verify=verifier.verify or whole.verify,
        carry=tuple(dict.fromkeys((*whole.carry, *verifier.carry))),
        keep_processes=whole.keep_processes if verifier.keep_processes is None else verifier.keep_processes,
    )


def _chosen(step: StepTable) -> set[ImageChoice]:
    """Return what a step does not leave to its image."""
    users: dict[ImageChoice, str | int | None] = {
        "user": step.agent.user,
        "grading_user": step.verifier.user,
    }
    return {choice for choice, user in users.items() if user is not None}


def step_preparation(folder: Path, step: StepTable) -> Preparation:
    """Return what is done before a step: its files laid over the working folder."""
    workdir = folder / STEPS / step.name / "workdir"
    return Preparation(workdir if workdir.is_dir() else None, healthcheck=step.healthcheck)


def step_problems(config: TaskToml, folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield where an author must look, and why."""
    seen: dict[str, str] = {}
    for step in config.steps:
        if not step.name.strip() or step.name in (".", "..") or _BAD_IN_NAME & set(step.name):
            yield folder / "task.toml", f"{step.name!r} is no name a step's folder can have; rename it"
            continue
        folded = unicodedata.normalize("NFKC", step.name).casefold()
        if folded in seen:
            yield folder / "task.toml", f"two steps are called {seen[folded]!r} and {step.name!r}; rename one"
            continue
        seen[folded] = step.name
        yield from _own_problems(step, config, folder)


def _own_problems(step: StepTable, config: TaskToml, folder: Path) -> Iterator[tuple[Path, str]]:
    own = folder / STEPS / step.name
    if not (own / "instruction.md").is_file():
        yield own / "instruction.md", f"step {step.name!r} has no instruction.md; say what the agent is to do"
    if not any((place / "tests" / "test.sh").is_file() for place in (own, folder)):
        message = f"step {step.name!r} has no tests/test.sh, and the task has none for all its steps"
        yield own / "tests" / "test.sh", message
    if step.verifier.environment_mode == "separate" or step.verifier.environment is not None:
        message = f'step {step.name!r} wants a verifier environment of its own; only "shared" can be run'
        yield folder / "task.toml", message
    if (
        step.verifier.keep_processes
        and (step.verifier.verify or config.verifier.verify) is not VerifyMode.SHARED
    ):
        yield folder / "task.toml", f"step {step.name!r}: {KEEPS_PROCESSES}"


def left_out_of(step: StepTable) -> Iterator[str]:
    """Yield what a step asks for and does not get."""
    for table, name in ((step.agent, "agent"), (step.verifier, "verifier")):
        if table.network_mode is not None:
            yield f"step {step.name!r}: {name}.network_mode is not applied: the task's holds for every step"


def reached(step: StepTable, rewards: Mapping[str, float]) -> bool:
    """Return whether the step's rewards are high enough for the next to be tried; a missing one never is."""
    least = step.min_reward
    if least is None:
        return True
    wanted = least if isinstance(least, Mapping) else {"reward": least}
    return all(rewards.get(key, float("-inf")) >= value for key, value in wanted.items())


def graded(config: TaskToml, step: StepTable, grade: Grade, earlier: Sequence[Grade]) -> Grade:
    """The step's grade if another is to be tried; else that of the whole task."""
    grades = [*earlier, grade]
    if len(grades) < len(config.steps) and reached(step, grade.result["rewards"]):
        return replace(grade, goes_on=True)
    return combined(config, grades)


def combined(config: TaskToml, grades: Sequence[Grade]) -> Grade:
    """One grade of the steps that were tried: the mean of each reward, or the last step's.

    A reward some step lacks counts 0 there. A task that was not gone through to its end is not passed.
    """
    each = [dict(grade.result["rewards"]) for grade in grades]
    rewards = each[-1] if config.multi_step_reward_strategy == "final" else _means(each)
    whole, score = len(grades) == len(config.steps), score_of(rewards)
    told: list[Json] = [
        {"name": step.name, "score": grade.score, **grade.result}
        for step, grade in zip(config.steps, grades, strict=False)
    ]
    result: Json = {"rewards": rewards, "steps": told}
    if not whole:
        result["stopped_after"] = config.steps[len(grades) - 1].name
    reasons = [
        f"step {step.name}: {grade.reason}"
        for step, grade in zip(config.steps, grades, strict=False)
        if grade.reason
    ]
    return Grade(score, passed=whole and score >= 1.0, result=result, reason=next(reversed(reasons), None))


def _means(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    keys = dict.fromkeys(key for rewards in each for key in rewards)
    return {key: sum(rewards.get(key, 0.0) for rewards in each) / len(each) for key in keys}

"""Tasks of several steps: told one after another in the same sandbox, each graded before the next.

The next step finds what the last one left, and nothing of its tests. Every step is a conversation of its
own: the agent begins anew, in a working folder that is not new.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from valkyrie.benchmarks.rewards import score_of
from valkyrie.benchmarks.task_keeping import gathering, kept_paths
from valkyrie.benchmarks.task_setup import Preparation
from valkyrie.benchmarks.task_toml import StepTable, TaskToml
from valkyrie.nouns import Grade, ImageChoice, Json, TaskSpec, Timeouts, VerifyMode

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
    """What a step does not leave to its image."""
    users: dict[ImageChoice, str | int | None] = {
        "user": step.agent.user,
        "grading_user": step.verifier.user,
    }
    return {choice for choice, user in users.items() if user is not None}


def step_preparation(folder: Path, step: StepTable) -> Preparation:
    """What is done before a step: its files laid over the working folder."""
    workdir = folder / STEPS / step.name / "workdir"
    return Preparation(workdir if workdir.is_dir() else None, healthcheck=step.healthcheck)


def step_problems(config: TaskToml, folder: Path) -> Iterator[tuple[Path, str]]:
    """Where an author must look, and why."""
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
    """What a step asks for and does not get."""
    for table, name in ((step.agent, "agent"), (step.verifier, "verifier")):
        if table.network_mode is not None:
            yield f"step {step.name!r}: {name}.network_mode is not applied: the task's holds for every step"


def reached(step: StepTable, rewards: Mapping[str, float]) -> bool:
    """Whether the step's rewards are high enough for the next to be tried; a missing one never is."""
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

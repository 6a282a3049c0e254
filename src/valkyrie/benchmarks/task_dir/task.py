"""One task directory, read and checked."""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from ipaddress import ip_network
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from sandboxes import folder_contents
from sandboxes.folder_contents import UnreadableContentError
from sandboxes.types import BuildSource, SandboxLimits
from valkyrie.benchmarks.protocol import MissingVariablesError, expand, missing, referenced, said_of_withheld
from valkyrie.benchmarks.task_dir.dockerfile import Recipe, RunProgram, needs_of_buildkit, read_dockerfile
from valkyrie.benchmarks.task_dir.execution import (
    REWARDS,
    SETUP_SCRIPT,
    STEPS,
    TESTS,
    Preparation,
    VerifierPlan,
)
from valkyrie.benchmarks.task_dir.task_toml import (
    Collect,
    ParsedToml,
    StepTable,
    TaskArtifact,
    TaskToml,
    env_problems,
    link_problems,
    stray_problem,
    unknown_users,
    user_problems,
)
from valkyrie.domain import GatherCommand, ImageChoice, Json, KeptPath, TaskSpec, Timeouts, VerifyMode
from valkyrie.errors import BenchmarkError

PARTS = ("task.toml", "instruction.md", "environment", "tests", "solution", "steps")
"""What makes a task what it is; a README beside them does not."""
DEFAULT_WORKDIR = "/app"
DOCKERFILE = "Dockerfile"
COMPOSE_FILES = ("docker-compose.yaml", "docker-compose.yml")
INSTRUCTION = "instruction.md"
BUILD_SECONDS = 600.0

_CANARY = re.compile(r"\s*(?:<!--.*canary.*-->|#.*canary.*)\s*", re.IGNORECASE)
_BAD_IN_ID = re.compile(r"[,\\\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class TaskProblem:
    """Why a task cannot be run, and where its author must look."""

    task_id: str
    path: Path
    message: str

    def __str__(self) -> str:
        place = "" if str(self.path) in self.message else f" ({self.path})"
        return f"{self.task_id}: {self.message}{place}"


@dataclass(frozen=True)
class TaskDirectory:
    """The files of one task and what they say. Reading is lazy; `problems` never raises."""

    id: str
    folder: Path
    host_image: bool = False
    """Run it on the host's file system although it names an image."""
    root: Path | None = None
    """The folder its benchmark is in, which nothing of it may leave; None is its own."""
    allow_paths: tuple[Path, ...] = ()
    """Files and folders elsewhere that it may read all the same."""

    @cached_property
    def parsed(self) -> ParsedToml:
        if problem := self._stray(self.folder / "task.toml"):
            raise BenchmarkError(str(problem))
        return ParsedToml.read(self.folder / "task.toml")

    @cached_property
    def _is_inside(self) -> bool:
        return self.root is None or stray_problem(self.folder, self.root) is None

    def _stray(self, path: Path) -> TaskProblem | None:
        """Return the problem of a part that leads out of the benchmark's folder."""
        if path.parent == self.folder and self._is_inside and not path.is_symlink():
            return None  # resolving every part of thousands of tasks takes seconds
        found = stray_problem(path, self.root or self.folder, self.allow_paths)
        return TaskProblem(self.id, path, f"{path.relative_to(self.folder)} {found}") if found else None

    @property
    def config(self) -> TaskToml:
        return self.parsed.config

    @property
    def instructions(self) -> Sequence[Path]:
        """The file with what the agent is told, or that of each step."""
        steps = [self.folder / STEPS / step.name for step in self.config.steps]
        return [folder / INSTRUCTION for folder in steps or [self.folder]]

    @property
    def named_image(self) -> str | None:
        """The image the task asks for; `Dockerfile` when it brings the recipe of one."""
        if self.config.environment.docker_image:
            return self.config.environment.docker_image
        has_recipe = (self.folder / "environment" / DOCKERFILE).is_file() or self.compose_file
        return DOCKERFILE if has_recipe else None

    @property
    def compose_file(self) -> str | None:
        """The file that adds further containers to the task's own."""
        names = (f"environment/{name}" for name in COMPOSE_FILES)
        return next((name for name in names if (self.folder / name).is_file()), None)

    @property
    def image(self) -> str | None:
        """The image it will run in."""
        return None if self.host_image else self.named_image

    @cached_property
    def recipe(self) -> Recipe | None:
        return None if self._dockerfile is None else read_dockerfile(self._dockerfile)

    @cached_property
    def _dockerfile(self) -> str | None:
        path = self.folder / "environment" / DOCKERFILE
        return path.read_bytes().decode("utf-8", "replace") if path.is_file() else None

    @cached_property
    def build(self) -> BuildSource | None:
        """The image to build for it, when it brings a Dockerfile and names no image."""
        folder = self.folder / "environment"
        if self.image != DOCKERFILE or not (folder / DOCKERFILE).is_file():
            return None
        timeout = self.config.environment.build_timeout_sec or BUILD_SECONDS
        return BuildSource(context=str(folder), digest=folder_digest(folder), timeout=timeout)

    @property
    def cwd(self) -> str:
        dockerfile = self.recipe.workdir if self.recipe else None
        return self.config.environment.workdir or dockerfile or DEFAULT_WORKDIR

    def solution(self, step: str | None = None) -> Path | None:
        """Return where its `solve.sh` is, or that of one step."""
        folder = (self.folder / STEPS / step if step else self.folder) / "solution"
        return folder if (folder / "solve.sh").is_file() else None

    def step(self, name: str) -> StepTable:
        """Return what its `task.toml` says of one step."""
        return next(step for step in self.config.steps if step.name == name)

    def problems(self) -> list[TaskProblem]:
        """Everything that keeps this task from running."""
        return list(self._find_problems())

    def _find_problems(self) -> Iterator[TaskProblem]:
        if _BAD_IN_ID.search(self.id):
            message = f"the folder name {self.id!r} holds a comma, backslash or control character; rename it"
            yield TaskProblem(self.id.encode("utf-8", "replace").decode(), self.folder, message)
        toml = self.folder / "task.toml"
        strays = [stray for part in PARTS if (stray := self._stray(self.folder / part))]
        if strays:
            yield from strays
            return
        if not toml.is_file():
            yield TaskProblem(self.id, toml, "has no task.toml; an empty file will do")
            return
        try:
            unsupported = list(_unsupported(self.config))
        except BenchmarkError as error:
            yield TaskProblem(self.id, toml, str(error))
            return
        unsupported += [*env_problems(self.config), *user_problems(self.config)]
        yield from (TaskProblem(self.id, toml, message) for message in unsupported)
        yield from self._link_problems()
        if found := list(step_problems(self.config, self.folder)):
            yield from (TaskProblem(self.id, path, message) for path, message in found)
            return
        if not self.config.steps and not (self.folder / "tests" / "test.sh").is_file():
            message = "has no tests/test.sh; write one that leaves a number in /logs/verifier/reward.txt"
            yield TaskProblem(self.id, self.folder / "tests" / "test.sh", message)
        for file in self.instructions:
            yield from self._instruction_problems(file)

    @property
    def _users_are_known(self) -> bool:
        """The sandbox has the users of the host, and neither a Dockerfile nor a script may add one."""
        if self.image is not None or self._repeated_runs():
            return False
        steps = (self.folder / STEPS / step.name / "workdir" for step in self.config.steps)
        return not any((place / SETUP_SCRIPT).exists() for place in (self.folder / "environment", *steps))

    def _link_problems(self) -> Iterator[TaskProblem]:
        for step in self.config.steps:
            for name in ("", "instruction.md", "tests", "solution", "workdir"):
                if stray := self._stray(self.folder / STEPS / step.name / name):
                    yield stray
                    return
        context = self.config.environment.docker_image is None
        uploaded = ["tests", "solution", "environment"] if context else ["tests", "solution"]
        folders = [self.folder / name for name in uploaded]
        for step in self.config.steps:
            folders += [self.folder / STEPS / step.name / name for name in ("tests", "solution", "workdir")]
        for folder in folders:
            for path, message in link_problems(folder):
                shown = path.relative_to(self.folder)
                yield TaskProblem(self.id, path, f"{shown} {message}")

    def _instruction_problems(self, file: Path) -> Iterator[TaskProblem]:
        try:
            if not _read_instruction(file).strip():
                message = f"{file.relative_to(self.folder)} is empty; say what the agent is to do"
                yield TaskProblem(self.id, file, message)
        except BenchmarkError as error:
            yield TaskProblem(self.id, file, f"{error}; say there what the agent is to do")

    def spec(self, digest: str, host_env: Mapping[str, str], locked: LockedTask | None = None) -> TaskSpec:
        """The task as the engine knows it. Raises BenchmarkError with all its problems.

        `locked` says how it is verified, where the task itself does not.
        """
        if problems := self.problems():
            raise BenchmarkError("\n".join(map(str, problems)), cause="task_broken")
        config, environment = self.config, self.config.environment
        texts = [_read_instruction(file) for file in self.instructions]
        self._refuse_missing(host_env)
        image_env = dict(self.recipe.env) if self.host_image and self.recipe else {}
        whole = TaskSpec(
            id=self.id,
            digest=digest,
            instruction=texts[0],
            cwd=self.cwd,
            of_image=self._choices_of_image(),
            image=self.image,
            source=self.build,
            limits=SandboxLimits(
                environment.cpus, environment.memory_mb, environment.storage_mb, gpus=environment.gpus
            ),
            network=config.network,
            allowed_networks=_networks(config.allowed_hosts) if config.network == "public" else (),
            timeouts=Timeouts(
                build=environment.build_timeout_sec,
                agent=config.agent.timeout_sec,
                grade=config.verifier.timeout_sec,
            ),
            env=image_env | expand(environment.env, host_env, f"task {self.id}: environment.env"),
            user=None if config.agent.user is None else str(config.agent.user),
            grading_user=None if config.verifier.user is None else str(config.verifier.user),
            has_solution=all(self.solution(name) for name in self._step_names),
            solution_env=self._solution_env(host_env),
            grading_folders=(TESTS, REWARDS),
            mcp_servers={server.name: server.as_json() for server in environment.mcp_servers},
            tools_optional=True,
            gathering=gathering(config.verifier.collect),
            artifacts=(ARTIFACTS_FOLDER, *kept_paths(config.artifacts)),
            skills_dir=environment.skills_dir,
            work_suffices=not config.steps,
            carry=config.verifier.carry,
            metadata=self._metadata(host_env),
        )
        whole = _verified(whole, config, locked)
        if not config.steps:
            return whole
        return replace(whole, steps=step_specs(whole, config, self.folder, texts))

    def _choices_of_image(self) -> frozenset[ImageChoice]:
        """Return what the task leaves to its image."""
        if self.image is None:
            return frozenset()
        found: set[ImageChoice] = {"entrypoint"}
        if self.config.environment.workdir is None:
            found.add("cwd")
        if self.config.agent.user is None:
            found.add("user")
        if self.config.verifier.user is None:
            found.add("grading_user")
        return frozenset(found)

    @property
    def _drops_compose(self) -> bool:
        return self.host_image and self.compose_file is not None

    @property
    def _step_names(self) -> Sequence[str | None]:
        """Of a task without steps it is the whole that is done."""
        return [step.name for step in self.config.steps] or [None]

    def preparation(self) -> Preparation:
        """Return what `setup` does for it."""
        environment: Path | None = self.folder / "environment"
        if self.image is not None or not self.folder.joinpath("environment").is_dir():
            environment = None
        recipe = self.recipe or Recipe() if self.named_image is not None else None
        of_image = "cwd" in self._choices_of_image()
        return Preparation(environment, recipe, self.config.environment.healthcheck, of_image)

    def verification(self, spec: TaskSpec, host_env: Mapping[str, str]) -> VerifierPlan:
        """Return what `evaluate` does for it, under the limits of `spec`."""
        env = dict(self.config.verifier.env)
        tests, shared = self.folder / "tests", None
        if spec.step is not None:
            own = self.folder / STEPS / spec.step / "tests"
            env |= self.step(spec.step).verifier.env
            shared, tests = (tests if tests.is_dir() else None, own) if own.is_dir() else (None, tests)
        return VerifierPlan(
            task_id=self.id if spec.step is None else f"{self.id}, step {spec.step}",
            tests=tests,
            shared_tests=shared,
            cwd=spec.cwd,
            timeout=spec.timeouts.grade,
            env={**spec.env, **expand(env, host_env, f"task {self.id}: verifier.env")},
            user=spec.grading_user,
            own_image=self.image is not None,
        )

    def _refuse_missing(self, host_env: Mapping[str, str]) -> None:
        """MissingVariablesError with all variables that setting up or grading would ask for in vain."""
        tables = {"environment.env": self.config.environment.env, "verifier.env": self.config.verifier.env}
        tables |= {f"step {step.name!r}: verifier.env": step.verifier.env for step in self.config.steps}
        found = {where: names for where, env in tables.items() if (names := missing(env, host_env))}
        if found:
            names = list(dict.fromkeys(name for some in found.values() for name in some))
            raise MissingVariablesError(f"task {self.id}: {' and '.join(found)}", names)

    def _repeated_runs(self) -> list[int]:
        """Lines of the Dockerfile whose RUN is repeated on a root that is not its image."""
        steps = self.recipe.steps if self.host_image and self.recipe else []
        return [step.line for step in steps if isinstance(step, RunProgram)]

    def _solution_env(self, host_env: Mapping[str, str]) -> dict[str, str]:
        """Nothing when a variable is missing: only the oracle would need it."""
        if self._missing_for_solution(host_env):
            return {}
        return expand(self.config.solution.env, host_env, f"task {self.id}: solution.env")

    def _missing_for_solution(self, host_env: Mapping[str, str]) -> list[str]:
        return missing(self.config.solution.env, host_env)

    def _metadata(self, host_env: Mapping[str, str]) -> Json:
        info = self.config.task
        found: Json = {
            **self.config.metadata,
            "name": info.name,
            "description": info.description,
            "keywords": list(info.keywords),
            "named_image": self.named_image if self.host_image else None,
            "compose_file": None if self.host_image else self.compose_file,
            "buildkit": needs_of_buildkit(self._dockerfile or "") if self.build else [],
            "repeated_runs": self._repeated_runs(),
            "unknown_users": unknown_users(self.config) if self._users_are_known else [],
            "host_variables": [
                *referenced(self.config.environment.env),
                *referenced(self.config.verifier.env),
                *(name for step in self.config.steps for name in referenced(step.verifier.env)),
                *referenced(self.config.solution.env),
            ],
            "allowed_hosts": list(self.config.allowed_hosts),
            "warnings": [
                *self.parsed.warnings,
                *filter(None, [said_of_withheld(self.config.environment.env)]),
                *_left_out(self.config),
                *([f"{self.compose_file} is left out: there is one sandbox"] if self._drops_compose else []),
                *(text for step in self.config.steps for text in left_out_of(step)),
                *_without_variables(self._missing_for_solution(host_env)),
            ],
        }
        return {key: value for key, value in found.items() if value not in (None, "", [])}


def _verified(task: TaskSpec, config: TaskToml, locked: LockedTask | None) -> TaskSpec:
    """The task with where its tests run: as it says itself, else as was found, else in both places."""
    if config.verifier.verify is not None:
        keep = bool(config.verifier.keep_processes)
        return replace(task, verify=config.verifier.verify, keep_processes=keep)
    if locked is None:
        return task
    return replace(task, verify=locked.mode, keep_processes=locked.keep_processes)


def _read_instruction(path: Path) -> str:
    """The text without the canary lines that keep tasks out of training data."""
    try:
        lines = path.read_bytes().decode("utf-8").splitlines(keepends=True)
    except OSError as error:
        raise BenchmarkError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BenchmarkError(f"{path} is not UTF-8 (byte {error.start})") from error
    start = 0
    for number, line in enumerate(lines):
        if _CANARY.fullmatch(line):
            start = number + 1
        elif line.strip():
            break
    return "".join(lines[start:]).lstrip("\r\n") if start else "".join(lines)


def _unsupported(config: TaskToml) -> Iterator[str]:
    if config.verifier.environment_mode == "separate" or config.verifier.environment is not None:
        yield 'a separate verifier environment is not supported yet; use verifier.environment_mode = "shared"'
    if config.verifier.keep_processes and config.verifier.verify is not VerifyMode.SHARED:
        yield KEEPS_PROCESSES
    if config.environment.os != "linux":
        yield f"environment.os = {config.environment.os!r} is not supported; only linux is"
    if config.environment.tpu is not None:
        yield "asks for a TPU, which no sandbox here has"


def _left_out(config: TaskToml) -> Iterator[str]:
    verifier = config.verifier.network_mode
    if verifier is not None and verifier != (
        config.agent.network_mode or config.environment.network_mode or "public"
    ):
        yield f"verifier.network_mode = {verifier!r} is not applied: the agent's holds to the end"
    if config.environment.gpu_types:
        yield "environment.gpu_types are not looked at: any GPU will do"
    yield from elsewhere(config)


def _without_variables(names: Sequence[str]) -> Iterator[str]:
    if names:
        yield f"solution.env is not given to the oracle: {', '.join(names)} is not set on this machine"


def _networks(hosts: Sequence[str]) -> tuple[str, ...]:
    """The addresses and networks among allowed hosts."""
    found = []
    for host in hosts:
        with suppress(ValueError):
            found.append(str(ip_network(host, strict=False)))
    return tuple(found)


def folder_digest(folder: Path) -> str:
    """Digest over everything in one folder, wherever it is."""
    try:
        return folder_contents.folder_digest(folder)
    except UnreadableContentError as error:
        raise BenchmarkError(str(error)) from error


class LockedTask(BaseModel):
    """What was found of one task."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    digest: str
    """Of the task's content, as it was checked."""
    mode: VerifyMode
    keep_processes: bool = False
    oracle: list[float | None] = Field(default_factory=list)
    """The score of each run of its own solution; null is a run without a verdict."""
    nop: float | None = None
    """The score of doing nothing."""
    open_to: list[str] = Field(default_factory=list)
    """The classes of cheating it is open to."""
    program: str = ""
    """The version of this program that looked."""


# What is kept of a sandbox after the agent.

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


# Each step of a task as a task of its own in the sandbox of the whole.

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

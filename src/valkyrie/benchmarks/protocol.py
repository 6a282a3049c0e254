"""Define what a benchmark is to the engine: how it is asked for, its tasks, their variables, its scores."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from benchmark_service.environment import redirection
from sandboxes.protocol import Sandbox
from sandboxes.types import OutputSink
from valkyrie.domain import (
    INGESTED,
    ExitReason,
    FinalScore,
    Grade,
    Json,
    TaskSpec,
    TrialState,
    ended_by_agent,
    worst_score,
)
from valkyrie.errors import UsageError, UserError
from valkyrie.text import did_you_mean

if TYPE_CHECKING:
    from valkyrie.benchmarks.service.address import Reach
    from valkyrie.trajectory.transcript import Transcript


async def _keep_nothing(_saved: Json) -> None:
    return


@dataclass(frozen=True, slots=True)
class Grading:
    """What there is to grade: a sandbox with the agent's work in it, or what an earlier attempt saved."""

    task: TaskSpec
    place: Sandbox | None
    """None when grading goes on from `saved`; only benchmarks that call `save` see that."""
    log: OutputSink
    evidence: Path
    """Files worth keeping (test output, reward files) are written below this folder."""
    final_output: str | None = None
    """Where in the sandbox the agent's contract says its answer is."""
    saved: Json | None = None
    save: Callable[[Json], Awaitable[None]] = _keep_nothing
    """Commits from what grading can go on without the sandbox; a retry then does not run the agent again."""
    agent: Path | None = None
    """A folder of the host with what the agent's own log said (`trajectory.json`, …); may not exist."""
    told: Transcript | None = None
    """What the agent did, where it told that itself."""
    tokens: tuple[int, int] | None = None
    """Input and output tokens, where the agent reported them beside what it did."""
    start: Path | None = None
    """The folder `setup` was given; None when grading goes on from `saved`."""
    exit_code: int | None = None
    exit_reason: ExitReason | None = None
    seconds: float | None = None
    """How long the agent worked."""
    k: int = 0
    """Which trial of its task this is."""
    earlier: Sequence[Grade] = ()
    """Of a task's step: what the steps before it got. The grade of the last one tried is the task's."""
    control: bool = False
    """No agent worked here: the task as it was set up. Does grading give a verdict at all?"""

    renew: Callable[[], Awaitable[Sandbox]] | None = None
    """Replaces the sandbox by one as this was at first: what a program of grading did there is gone. None
    where there is only this one."""

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox, every process of the agent dead by now."""
        assert self.place is not None, "a benchmark that saved nothing is always given the sandbox"
        return self.place


@dataclass(frozen=True, slots=True)
class BenchmarkCapabilities:
    """What a benchmark can do besides listing, setting up, grading and scoring. The default is nothing."""

    headers: Mapping[str, str] | None = None
    """What is sent to it with every request; None for a benchmark that is no service and takes no `-H`."""
    turn_ended: Callable[[TaskSpec, Sandbox, OutputSink, Path, int], Awaitable[None]] | None = None
    """Awaited when a turn (from 0) of a conversation but the last has ended, with the folder `setup` was
    given; None for a benchmark that grades only the end."""


class Benchmark(Protocol):
    """A named source of tasks that also sets a task up, grades it, and computes the final score.

    Benchmarks of plugins need not have `capabilities`; where they are loaded, they are given them.
    """

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def source(self) -> Json:
        """Plain data from which `benchmarks.open_frozen` makes the same one again, in another process."""
        ...

    @property
    def fraction(self) -> bool:
        """Scores are 0..1 and may be printed as per cent, with an interval."""
        ...

    @property
    def capabilities(self) -> BenchmarkCapabilities: ...

    async def datasets(self) -> list[str]:
        """Return names of its datasets; `default` first."""
        ...

    async def list_tasks(self, dataset: str = "default") -> list[str]:
        """Task ids in their own order."""
        ...

    async def describe(self, task_id: str, dataset: str = "default") -> TaskSpec:
        """One task; cheap the second time. Raises BenchmarkError when the task is broken."""
        ...

    async def setup(self, task: TaskSpec, sandbox: Sandbox, log: OutputSink, start: Path) -> None:
        """Prepare the sandbox for the agent; nothing that helps it cheat may enter.

        Called for each step of a task that has several: nothing of an earlier grading may be left then.

        `start`: a folder of the host, to be made where it is needed and gone with the attempt, for what
        grading has to know of the beginning. No agent sees it.
        """
        ...

    def solution(self, task: TaskSpec) -> Path | None:
        """The folder that holds the task's own `solve.sh`, for the oracle."""
        ...

    async def evaluate(self, grading: Grading) -> Grade:
        """Grade what the agent left."""
        ...

    async def final_score(
        self, grades: Mapping[str, Sequence[Grade | None]], dataset: str = "default"
    ) -> FinalScore:
        """The benchmark's own aggregate; one entry per planned task, one item per trial, None if ungraded."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


# How a benchmark is asked for.


@dataclass(frozen=True, slots=True)
class BenchmarkRequest:
    """How a benchmark is asked for, and by whom."""

    host_image: bool = False
    headers: Mapping[str, str] | None = None
    """Sent to a service with every request, over the credential kept for it."""
    ignore_custom: bool = False
    trusted: bool = True
    """Whoever asks is on this machine: its paths, modules, environment and loopback are theirs."""
    uploads: Callable[[str], Path] | None = None
    """The archive of `upload:<digest>`; raises UnknownError."""
    url: str | None = None
    """Where the asker's own config says that the service of this name is."""
    cache: Path | None = None
    """Where uploads are unpacked."""
    caller_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Who asks, told to services of our own registry or base URL and to no others."""
    reach: Reach | None = None
    """Where an address the asker named may lead; None is anywhere."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What an eval spec is read with."""

    host_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The variables of the asker's that tasks may be given: where their `${VAR}` is looked up."""
    allow_paths: Sequence[str] = ()
    """What tasks may read outside the benchmark's folder, for who is on this machine."""


# Which of a dataset's tasks to run: ids, a file of ids, a slice. Pure functions on ordered ids.

_SLICE_HELP = "write start:stop:step, for example --slice :10, --slice 5:15 or --slice ::2"
_MAX_NAMED = 5


def parse_ids(text: str) -> list[str]:
    """`a,b` → `["a", "b"]`; blanks around ids and empty parts are dropped."""
    return [part for part in (piece.strip() for piece in text.split(",")) if part]


def parse_ids_file(text: str) -> list[str]:
    """One id per line; blank lines and lines that start with `#` are skipped."""
    lines = (line.strip() for line in text.removeprefix("\ufeff").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def parse_slice(text: str) -> slice:
    """`start:stop:step` with one to three parts, empty parts open; a bare `5` starts there."""
    parts = text.split(":")
    if len(parts) > 3 or not text.strip():
        raise UsageError(f"--slice {text!r} is not a slice; {_SLICE_HELP}")
    try:
        numbers = [int(part) if part.strip() else None for part in parts]
    except ValueError:
        raise UsageError(f"--slice {text!r} is not a slice; {_SLICE_HELP}") from None
    start, stop, step = [*numbers, None, None][:3]
    if step == 0:
        raise UsageError(f"--slice {text!r} has step 0, which selects nothing; {_SLICE_HELP}")
    return slice(start, stop, step)


def select(
    available: Sequence[str], *, task_ids: Sequence[str] | None = None, slice_text: str | None = None
) -> list[str]:
    """The chosen ids: as asked for (duplicates once) or all of them, and of these a slice."""
    if task_ids is not None:
        chosen = _by_id(available, task_ids)
        if not chosen:
            raise UsageError("no task ids were given; name at least one, or leave the option out for all")
    elif not available:
        raise UsageError("the dataset has no tasks")
    else:
        chosen = list(available)
    if slice_text is None:
        return chosen
    sliced = chosen[parse_slice(slice_text)]
    if not sliced:
        raise UsageError(f"--slice {slice_text!r} selects none of the {len(chosen)} tasks")
    return sliced


def _by_id(available: Sequence[str], task_ids: Sequence[str]) -> list[str]:
    known = set(available)
    chosen = list(dict.fromkeys(task_ids))
    unknown = [task_id for task_id in chosen if task_id not in known]
    if not unknown:
        return chosen
    named = ", ".join(repr(task_id) for task_id in unknown[:_MAX_NAMED])
    more = f" and {len(unknown) - _MAX_NAMED} more" if len(unknown) > _MAX_NAMED else ""
    word = "task id" if len(unknown) == 1 else "task ids"
    hint = next(filter(None, (did_you_mean(task_id, available) for task_id in unknown[:_MAX_NAMED])), "")
    raise UsageError(f"unknown {word} {named}{more}.{hint} `valk benchmark tasks` lists them.")


# The environment a task declares: `${VAR}` and `${VAR:-default}` in it, and what of it no agent is given.

_HARMLESS = re.compile(
    r"PYTHON(UNBUFFERED|DONTWRITEBYTECODE|HASHSEED|IOENCODING|UTF8|FAULTHANDLER|WARNINGS)"
    r"|GIT_(AUTHOR|COMMITTER)_(NAME|EMAIL|DATE)|GIT_TERMINAL_PROMPT"
    r"|DOTNET_(CLI_TELEMETRY_OPTOUT|NOLOGO|SKIP_FIRST_TIME_EXPERIENCE)"
)
"""Of families that redirect: settings that change neither where keys go nor which code runs."""
_AGENT_SETTING = re.compile(
    r"(ANTHROPIC|CLAUDE|CODEX|COPILOT|GEMINI|GOOSE|LITELLM|MSWEA|OPENAI|OPENCODE|OPENROUTER|QWEN)_(?!API_KEY$)\w+"
)
"""Settings of agents: which model they ask, on whose account. A key for the task's programs is none."""
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class MissingVariablesError(UserError):
    """A task asks for variables of the user's that it was not given."""

    def __init__(self, where: str, names: Sequence[str]) -> None:
        flags = " ".join(f"--pass-env {name}" for name in names)
        super().__init__(
            f"{where} asks for {', '.join(names)} from your environment, and was not given it. {flags} gives "
            f"it where it is set; a default in the task does without: ${{{names[0]}:-value}}",
            cause="missing_variable",
        )
        self.where = where
        self.names = tuple(names)


def withheld(name: str) -> str | None:
    """Return what a variable of this name could redirect for an agent, or None for one an agent may be given.

    An agent has keys, and a task is written by somebody else: what the task sets must not decide which
    address, account, library or interpreter the agent uses.
    """
    if _HARMLESS.fullmatch(name):
        return None
    if kind := redirection(name):
        return kind
    return "agent setting" if _AGENT_SETTING.fullmatch(name.upper()) else None


def leads_elsewhere(name: str) -> bool:
    """Return whether a variable of an image decides which model an agent asks, and where."""
    return withheld(name) in ("model address", "agent setting")


def given_to_agent(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a task's environment that its agent is given too."""
    return {name: value for name, value in env.items() if withheld(name) is None}


def said_of_withheld(env: Mapping[str, str]) -> str | None:
    """Return one line about the variables of a task that its agent is not given, or None."""
    found = [f"{name} ({kind})" for name in sorted(env) if (kind := withheld(name))]
    if not found:
        return None
    return (
        f"the task sets {', '.join(found)}, which set-up and tests are given and the agent is not; "
        "--env (of a job: --env-vars) gives one to the agent"
    )


def referenced(env: Mapping[str, str]) -> list[str]:
    """Return names of the host variables that `env` asks for, in order of appearance."""
    found = (match[1] for value in env.values() for match in _REFERENCE.finditer(value))
    return list(dict.fromkeys(found))


def missing(env: Mapping[str, str], host: Mapping[str, str]) -> list[str]:
    """Return names of the host variables without which `expand` would not do."""
    found = (match for value in env.values() for match in _REFERENCE.finditer(value))
    return list(dict.fromkeys(match[1] for match in found if match[2] is None and match[1] not in host))


def expand(env: Mapping[str, str], host: Mapping[str, str], where: str) -> dict[str, str]:
    """`env` with its references filled from `host`, the variables of the user's that tasks may be given.

    What comes out is visible to whatever runs in the sandbox, the agent included. A default stands in
    for a variable that is unset or empty, as in a shell.
    """
    absent: list[str] = []

    def fill(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        value = host.get(name)
        if value or (value is not None and default is None):
            return value
        if default is None:
            absent.append(name)
            return ""
        return default

    filled = {key: _REFERENCE.sub(fill, value) for key, value in env.items()}
    if absent:
        raise MissingVariablesError(where, list(dict.fromkeys(absent)))
    return filled


# The scores of a run from its trials.

Grades = Mapping[str, Sequence[Grade | None]]
NOT_CONFIRMED = "not_confirmed"
"""The cause of a grade that stands in for one that no fresh sandbox saw."""


def grades_of(trials: Iterable[Any]) -> dict[str, list[Grade | None]]:
    """Grades by task, one per trial, None where there is none; `trials` are trial rows in order.

    A trial that ended by the agent's doing before it could be graded has the worst grade: 0, or the lowest
    of the others where that is below 0. One that was not needed is no part of it.
    """
    found: dict[str, list[Grade | None]] = {}
    by_agent: list[tuple[str, int, str]] = []
    for row in trials:
        if row.state == TrialState.SKIPPED:
            continue
        grades = found.setdefault(row.task_id, [])
        if ended_by_agent(row.state, row.category):
            by_agent.append((row.task_id, len(grades), row.cause))
        grades.append(_grade(row))
    worst = worst_score(grade.score for grades in found.values() for grade in grades if grade)
    for task_id, place, cause in by_agent:
        found[task_id][place] = Grade(worst, False, confirmed=True, score_confirmed=worst, cause=cause)
    return found


def _grade(row: Any) -> Grade | None:
    if row.state != TrialState.FINISHED:
        return None
    return Grade(
        row.score,
        row.passed,
        row.result or {},
        confirmed=row.confirmed,
        score_confirmed=row.score_confirmed,
        cause=row.cause,
        evidence=row.evidence or {},
    )


async def computed(benchmark: Benchmark, grades: Grades, dataset: str) -> tuple[Json, float | None]:
    """The benchmark's own verdict as data, and its score over what counts only.

    Where scores are fractions and trials are ungraded, the verdict has `score_low` and `score_high` too: the
    score if those had failed, and if they had passed.
    """
    final = await benchmark.final_score(grades, dataset)
    evaluation: Json = {"final_score": final.score, "properties": final.properties}
    if all(all(found) for found in grades.values()):
        return evaluation, final.score
    if benchmark.fraction:
        for name, ending in (("score_low", Grade(0.0, False)), ("score_high", Grade(1.0, True))):
            filled = {task: [grade or ending for grade in found] for task, found in grades.items()}
            evaluation[name] = (await benchmark.final_score(filled, dataset)).score
    only = {task: [grade for grade in found if grade] for task, found in grades.items()}
    only = {task: found for task, found in only.items() if found}
    graded = await benchmark.final_score(only, dataset) if only else None
    return evaluation, graded.score if graded else None


async def confirmed_score(benchmark: Benchmark, grades: Grades, dataset: str) -> float | None:
    """The benchmark's score if only what a fresh sandbox saw counts; None where that is not known."""
    every = [grade for found in grades.values() for grade in found if grade]
    if not every or not all(_is_known(grade, fraction=benchmark.fraction) for grade in every):
        return None
    seen = {task: [grade and _seen_fresh(grade) for grade in found] for task, found in grades.items()}
    return (await benchmark.final_score(seen, dataset)).score


def _is_known(grade: Grade, *, fraction: bool) -> bool:
    """Return whether it can be said what a fresh sandbox saw. A 0 needs no confirmation.

    Where only the benchmark can score (it is given results, not scores), partial credit that replaces an
    unconfirmed score has no result.
    """
    if grade.confirmed is None:
        return grade.score == 0
    return bool(grade.confirmed or fraction or not grade.score_confirmed)


def _seen_fresh(grade: Grade) -> Grade:
    if grade.confirmed is not False:
        return grade
    seen = grade.evidence.get("fresh") or {}
    passed = None if grade.passed is None else bool(seen.get("passed"))
    return replace(grade, score=grade.score_confirmed or 0.0, passed=passed, result={}, cause=NOT_CONFIRMED)


def not_runnable(run_id: str) -> UserError:
    """Return why nothing of an ingested run can go on."""
    return UserError(
        f"Run {run_id[:8]} was ingested: its trials ran elsewhere and cannot go on here. "
        "`valkyrie eval` runs its spec anew.",
        cause=INGESTED,
    )

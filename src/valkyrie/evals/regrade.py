"""Grade again what was run before, here or elsewhere, and find the workspace and the diff of each trial."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from sandboxes.errors import SandboxError
from sandboxes.registry import open_provider
from sandboxes.types import SandboxCreateRequest
from valkyrie.benchmarks.eval_spec.snapshots import folder_name, read_turn_patches
from valkyrie.benchmarks.eval_spec.source import WORKSPACE, all_needs
from valkyrie.benchmarks.eval_spec.transcript import patch_to_show
from valkyrie.benchmarks.eval_spec.workbench import ROOM, SandboxWorkbench
from valkyrie.errors import GraderError, InfrastructureError, UsageError, UserError
from valkyrie.evals.records import from_line
from valkyrie.evals.results import TrialFault, TrialResult
from valkyrie.grade import judges
from valkyrie.grade.graders import GradingTime, MadeGrader, grade_all, make_graders, verdict
from valkyrie.grade.protocol import (
    TOKENS_UNREPORTED,
    GraderInput,
    GraderResult,
    JudgeDefaults,
    Need,
    Program,
    ProgramResult,
    Workbench,
    check_constraints,
)
from valkyrie.ingest.trials import beside
from valkyrie.specs.model import EvalSpec, Stimulus
from valkyrie.text import did_you_mean
from valkyrie.trajectory.agent_logs import ForeignTranscript
from valkyrie.trajectory.records import from_record, to_record

MOST_DIFF = 64 * 1024 * 1024
PATCH = "workspace.patch"


@dataclass(frozen=True, slots=True)
class RegradeSources:
    """What the command line says about where things are."""

    workspace: Path | None = None
    """A workspace, or a folder of `eval --workspace` with one for each stimulus."""
    diff_file: Path | None = None
    artifact_dir: Path | None = None
    """A folder of results: what records call `artifactDir` and `patch` is in it; or one trial's own."""

    def check(self) -> None:
        """Raises UsageError for what is not there."""
        for flag, path in (("--workspace", self.workspace), ("--artifact-dir", self.artifact_dir)):
            if path is not None and not path.is_dir():
                raise UsageError(f"{flag} {path} is not a folder.")
        if self.diff_file is not None and not self.diff_file.is_file():
            raise UsageError(f"--diff-file {self.diff_file} is not a file.")

    def workspace_of(self, trial: TrialResult, variants: Collection[str]) -> Path | None:
        """The final state of this trial's workspace."""
        if self.workspace is not None:
            return _kept_below(self.workspace, trial, variants) or self.workspace
        if self.artifact_dir is None:
            return None
        named = beside(trial.artifacts, self.artifact_dir / "results.jsonl")
        return named if named and named.is_dir() else self.artifact_dir

    def diff_of(self, trial: TrialResult) -> str | None:
        """Return what the agent changed, where that was kept."""
        found = self.diff_file or self._patch_of(trial)
        if found is None or not found.is_file():
            return None
        with found.open("rb") as file:
            return file.read(MOST_DIFF).decode("utf-8", "replace")

    def turn_diffs_of(self, trial: TrialResult) -> Mapping[int, str]:
        """Return what the agent had changed after turns but the last, where that was kept."""
        found = self._patch_of(trial)
        return {} if found is None else read_turn_patches(found.parent)

    def _patch_of(self, trial: TrialResult) -> Path | None:
        if self.artifact_dir is None:
            return None
        return beside(trial.patch, self.artifact_dir / "results.jsonl") or self.artifact_dir / PATCH


def _kept_below(root: Path, trial: TrialResult, variants: Collection[str]) -> Path | None:
    """Return where `eval --workspace` put this trial; only in a folder that holds nothing but its
    variants."""
    if not {entry.name for entry in root.iterdir()} <= set(variants):
        return None
    own = root / trial.variant / folder_name(trial.stimulus)
    return next((place for place in (own / f"trial-{trial.index}", own) if place.is_dir()), None)


@asynccontextmanager
async def opened_bench(workspace: Path, stimulus: Stimulus, scratch: Path) -> AsyncIterator[Workbench]:
    """A sandbox of this machine with a copy of the workspace in it, made when the first program runs."""
    bench = _LateBench(workspace, stimulus, scratch)
    try:
        yield bench
    finally:
        await bench.close()


class _LateBench:
    def __init__(self, workspace: Path, stimulus: Stimulus, scratch: Path) -> None:
        self._provider = open_provider("local", scratch / "sandboxes")
        self._workspace = workspace
        self._stimulus = stimulus
        self._scratch = scratch
        self._bench: SandboxWorkbench | None = None

    async def run(self, program: Program) -> ProgramResult:
        try:
            if self._bench is None:
                self._bench = await self._made()
            return await self._bench.run(program)
        except SandboxError as error:
            raise GraderError(f"no sandbox could be made for it: {error}") from error

    async def _made(self) -> SandboxWorkbench:
        sandbox = await self._provider.create_sandbox(SandboxCreateRequest(separate_folders=(ROOM,)))
        await sandbox.upload_folder(self._workspace, WORKSPACE)
        return SandboxWorkbench(sandbox, self._stimulus, self._scratch / "start")

    async def close(self) -> None:
        """End the sandbox and everything in it."""
        await self._provider.close()


# Grading what was run before, here or elsewhere: results, trajectories and agents' logs.

AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class RegradeOptions:
    """How to grade again."""

    spec: EvalSpec
    stimulus: str | None = None
    """Only this one; also what a trajectory that names none belongs to."""
    threshold: float | None = None
    plugins: tuple[str, ...] = ()
    places: RegradeSources = field(default_factory=RegradeSources)
    asking: JudgeDefaults = field(default_factory=JudgeDefaults)
    enforce_constraints: bool = False

    def __post_init__(self) -> None:
        names = [one.name for one in self.spec.stimuli]
        if self.stimulus is not None and self.stimulus not in names:
            near = did_you_mean(self.stimulus, names)
            raise UsageError(f"--stimulus {self.stimulus!r} is not in {self.spec.file}.{near}")


def offered_skills(spec: EvalSpec) -> list[str]:
    """Return what a log is searched for that does not call skills by that word."""
    return sorted({ref.folder.name for one in spec.stimuli for ref in one.environment.skills or ()})


def trials_of(found: Sequence[ForeignTranscript], how: RegradeOptions) -> list[TrialResult]:
    """Return what is to be graded. Raises UserError for a trajectory that belongs to no stimulus."""
    seen: Counter[tuple[str, str, str | None]] = Counter()
    trials = []
    for number, foreign in enumerate(found, 1):
        trial = _trial(foreign, how, number)
        if how.stimulus not in (None, trial.stimulus) or _of_another(trial, how.spec):
            continue
        if not any(one.name == trial.stimulus for one in how.spec.stimuli):
            near = did_you_mean(trial.stimulus, [one.name for one in how.spec.stimuli])
            raise UserError(f"result {number}: {how.spec.file} has no stimulus {trial.stimulus!r}.{near}")
        key = (trial.stimulus, trial.variant, trial.model)
        trials.append(trial if _numbered(foreign) else replace(trial, index=seen[key]))
        seen[key] += 1
    if not trials:
        raise UserError(f"there is nothing on stdin that {how.spec.file} could grade.")
    return trials


async def grade_again(trials: Iterable[TrialResult], how: RegradeOptions, scratch: Path) -> list[TrialResult]:
    """The same trials with the verdicts of this spec's graders."""
    trials = list(trials)
    names = {trial.stimulus for trial in trials}
    made = {one.name: _graders(one, how) for one in how.spec.stimuli if one.name in names}
    variants = {trial.variant for trial in trials}
    at_once = asyncio.Semaphore(AT_ONCE)

    async def graded(number: int, trial: TrialResult) -> TrialResult:
        async with at_once:
            own = scratch / str(number)
            return await _graded(trial, made[trial.stimulus], how, variants, own)

    async with AsyncExitStack() as stack:
        if any(one.is_judge for _, graders in made.values() for one in graders):
            await stack.enter_async_context(judges.shared_client())
        group = await stack.enter_async_context(asyncio.TaskGroup())
        tasks = [group.create_task(graded(number, trial)) for number, trial in enumerate(trials)]
    return [task.result() for task in tasks]


def _graders(stimulus: Stimulus, how: RegradeOptions) -> tuple[Stimulus, list[MadeGrader]]:
    made = make_graders(stimulus, scoring=how.spec.scoring, plugins=how.plugins, base=how.spec.folder)
    return stimulus, made


async def _graded(
    trial: TrialResult,
    made: tuple[Stimulus, list[MadeGrader]],
    how: RegradeOptions,
    variants: set[str],
    scratch: Path,
) -> TrialResult:
    stimulus, graders = made
    plain = replace(trial, graders=(), constraints=(), passed=None, score=None, fault=None)
    if trial.transcript is None or (trial.fault is not None and trial.fault.kind == "execution"):
        if trial.fault is not None:
            return replace(trial, graders=())
        return replace(plain, fault=TrialFault("execution", "the record has no trajectory"))
    workspace = how.places.workspace_of(trial, variants)
    given = GraderInput(
        stimulus=stimulus,
        transcript=from_record(trial.transcript),
        workspace=workspace,
        diff=how.places.diff_of(trial),
        turn_diffs=how.places.turn_diffs_of(trial),
        asking=how.asking,
        golden_patch=patch_to_show(stimulus, all_needs(graders)),
    )
    async with AsyncExitStack() as stack:
        if workspace is not None and any(Need.PROGRAMS in one.needs for one in graders):
            bench = await stack.enter_async_context(opened_bench(workspace, stimulus, scratch))
            given = replace(given, bench=bench)
        try:
            results = await grade_all(graders, given, time=GradingTime.from_now(how.spec.scoring.timeout))
        except InfrastructureError as error:
            return replace(plain, fault=TrialFault("grader", str(error), error.category.value, error.cause))
    held = await check_constraints(stimulus.constraints, given, enforced=how.enforce_constraints)
    found = verdict(results, how.threshold)
    done = replace(plain, graders=tuple(results), constraints=held, graded_at=_now(), threshold=how.threshold)
    if found.errors:
        return _without_verdict(done, found.errors[0])
    return replace(done, score=found.score, passed=found.passed and not done.broke)


def _without_verdict(trial: TrialResult, error: GraderResult) -> TrialResult:
    """The trial with a grader that could not tell; tokens an agent did not report count against it."""
    causes = [str(one["cause"]) for one in error.details if one.get("cause")]
    if TOKENS_UNREPORTED in causes and trial.executor != "mock":
        fault = TrialFault("grader", error.evidence, "agent", TOKENS_UNREPORTED)
        return replace(trial, fault=fault, score=0.0, passed=False)
    return replace(trial, fault=TrialFault("grader", error.evidence, "benchmark", "grader_no_verdict"))


def _trial(foreign: ForeignTranscript, how: RegradeOptions, number: int) -> TrialResult:
    if foreign.record is not None:
        return _recorded(foreign, how, number)
    name = foreign.stimulus or how.stimulus or _only(how.spec, number)
    transcript = foreign.transcript
    return TrialResult(
        eval_name=how.spec.name,
        stimulus=name,
        index=0,
        model=transcript.model,
        executor=transcript.executor,
        duration_ms=transcript.measures.wall_time_ms,
        transcript=to_record(transcript, id=f"{name}#{number}", stimulus=name, work_dir=""),
        eval_file=str(how.spec.file),
    )


def _recorded(foreign: ForeignTranscript, how: RegradeOptions, number: int) -> TrialResult:
    record = dict(foreign.record or {})
    name = foreign.stimulus or how.stimulus or _only(how.spec, number)
    story = record.get("trajectory")
    try:
        trial = from_line({**record, "stimulus": name})
    except (TypeError, ValueError, KeyError) as error:
        raise UserError(f"result {number} is no record of a trial: {error}.") from None
    if story is not None and "schema_version" in story:
        story = to_record(foreign.transcript, id=f"{name}#{number}", stimulus=name, work_dir="")
    return replace(trial, eval_name=str(record.get("eval") or how.spec.name), transcript=story)


def _only(spec: EvalSpec, number: int) -> str:
    """The stimulus of a trajectory that names none."""
    if len(spec.stimuli) != 1:
        raise UsageError(f"result {number} does not say whose trial it is: name it with --stimulus.")
    return spec.stimuli[0].name


def _of_another(trial: TrialResult, spec: EvalSpec) -> bool:
    """Return whether it belongs to another eval, as results of several do that were run together."""
    return trial.eval_name != spec.name and all(one.name != trial.stimulus for one in spec.stimuli)


def _numbered(foreign: ForeignTranscript) -> bool:
    return foreign.record is not None and foreign.record.get("trialIndex") is not None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""What `valk eval` is asked to run, and the runs that come of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from benchmark_runner.agent_bundle import CONTRACT_FILES
from benchmark_runner.agent_bundle.bundle import read_contract
from benchmark_runner.agent_bundle.contract import load_contract
from sandboxes.protocol import NetworkPolicy
from valkyrie import plugins
from valkyrie.agents.catalog import CATALOG
from valkyrie.agents.loader import AgentChoice, agent_for, known_executors
from valkyrie.agents.protocol import SKILLS_AT
from valkyrie.benchmarks.eval_spec.benchmark import FIXTURES
from valkyrie.benchmarks.eval_spec.snapshots import folder_name
from valkyrie.benchmarks.eval_spec.source import (
    EvalOptions,
    asking_of,
    graders_of,
    open_spec,
    starts_no_process,
)
from valkyrie.config.permissions import Allowance
from valkyrie.config.values import data_folder
from valkyrie.domain import Json
from valkyrie.errors import UsageError
from valkyrie.evals.lint.rules import LintOptions
from valkyrie.evals.lint.specs import lint_spec, lint_spec_file, unsupported
from valkyrie.grade import judges as judge_models
from valkyrie.specs.model import EvalSpec, Finding, SpecError, Stimulus
from valkyrie.specs.project import find_skills, key_files
from valkyrie.specs.reader import BASE, Read
from valkyrie.views import RunRequest
from valkyrie.views.requests import VerifyChoice

DEFAULT_WORKERS = 5
DEFAULT_RETRIES = 2
DEFAULT_SHUTDOWN_S = 5.0
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class EvalItem:
    """One spec with one model, perhaps as a variant of an experiment."""

    file: Path
    model: str | None = None
    """None: the spec's own."""
    variant: str = "main"
    patch: Json = field(default_factory=dict)
    patch_base: Path | None = None
    experiment: Json | None = None
    """What an experiment's records say of it."""
    stimuli: tuple[str, ...] | None = None
    """Only these, where tags chose."""


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """Everything a command line says."""

    items: Sequence[EvalItem]
    name: str | None = None
    executor: str | None = None
    """Over the specs' own."""
    executor_plugins: tuple[str, ...] = ()
    grader_plugins: tuple[str, ...] = ()
    reporter_plugins: tuple[str, ...] = ()
    otlp_endpoint: str | None = None
    """Where traces of its trials are sent."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Of its project, for reporters."""
    project_file: Path | None = None
    """The `.vally.yaml` whose plugins are among these; it must be trusted whenever they are loaded."""
    project_digest: str | None = None
    """Of what of that project can execute."""
    eval_plugin: str | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    work_dir: Path | None = None
    skill_dir: Path | None = None
    timeout: float | None = None
    threshold: float | None = None
    judge_model: str | None = None
    judge_url: str | None = None
    judge_effort: str | None = None
    runs: int | None = None
    max_retries: int = DEFAULT_RETRIES
    skip_grade: bool = False
    enforce_constraints: bool = False
    skip_validate: bool = False
    workers: int = DEFAULT_WORKERS
    parallel_trials: bool = False
    workspace: Path | None = None
    shutdown_timeout: float = DEFAULT_SHUTDOWN_S
    provider: str | None = None
    """None: `null` where nothing has to run, else `local`."""
    network: NetworkPolicy | None = None
    """None: `none` for agents that need no model, else `public`."""
    model_url: str | None = None
    verify: VerifyChoice | None = None
    """Where graders' programs run; None: in a fresh sandbox."""
    family: str | None = None
    """The tag that names the family of a stimulus; None is `family`."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    kwargs: Mapping[str, str] = field(default_factory=dict)
    pass_env: tuple[str, ...] = ()
    """Variables of the user that specs and their own agents may have."""
    allow_paths: tuple[str, ...] = ()
    """What outside the project specs may name; absolute."""
    output_dir: Path | None = None
    """Below this it makes a folder of its own once everything is checked; None: it leaves no files."""
    folder: Path | None = None
    """Where its files are written."""
    run_id: str | None = None
    """What records and the folder are named by, if somebody named it."""
    shard: str | None = None
    """The folder of this part of an experiment, below that of the run."""
    begins_with: Mapping[str, Json] = field(default_factory=dict)
    """Files its folder has from the beginning, by name."""
    junit: bool = False
    command: tuple[str, ...] = ()
    """The words that asked for it."""

    @property
    def allowed(self) -> Allowance:
        """What its specs may take: `-s` names variables as well as `--pass-env`."""
        return Allowance(tuple(sorted({*self.pass_env, *self.secrets})), self.allow_paths)

    def to_json(self) -> Json:
        found: Json = _plain(asdict(self))
        return found

    @classmethod
    def from_json(cls, data: Json) -> EvalRequest:
        """Return what was kept; what this version does not know any more is left out."""
        known = {one.name for one in fields(cls)}
        kept = {name: value for name, value in data.items() if name in known}
        for name in ("work_dir", "skill_dir", "workspace", "output_dir", "folder", "project_file"):
            kept[name] = Path(kept[name]) if kept.get(name) else None
        for name in (
            "executor_plugins",
            "grader_plugins",
            "reporter_plugins",
            "command",
            "pass_env",
            "allow_paths",
        ):
            kept[name] = tuple(kept.get(name, ()))
        kept["items"] = [_item(one) for one in kept["items"]]
        return cls(**kept)


def _item(data: Json) -> EvalItem:
    return EvalItem(
        file=Path(data["file"]),
        model=data["model"],
        variant=data["variant"],
        patch=data["patch"],
        patch_base=Path(data["patch_base"]) if data["patch_base"] else None,
        experiment=data["experiment"],
        stimuli=None if data["stimuli"] is None else tuple(data["stimuli"]),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def check_run_id(text: str) -> str:
    """A run's id as people give it; it becomes the name of a folder."""
    if not _RUN_ID.fullmatch(text):
        raise UsageError(
            f"--run-id {text[:100]!r}: letters, digits, `.`, `_` and `-`, at most 100 of them, the first a "
            "letter or digit."
        )
    return text


# Turn a request into runs of the engine: specs read and checked, agents chosen, nothing started.


@dataclass(frozen=True, slots=True)
class AgentAsks:
    """Secrets that one agent of a spec asks for and that were not allowed."""

    agent: str
    secrets: tuple[tuple[str, str], ...]
    """(environment variable, name of the secret)."""

    def __str__(self) -> str:
        return f"{self.agent} asks for {', '.join(_shown(*one) for one in self.secrets)}"

    def flags(self) -> str:
        """Return the words that allow it."""
        return " ".join(_flag(*one) for one in self.secrets)

    def names(self) -> tuple[str, ...]:
        """Return what `--pass-env` would name."""
        return tuple(dict.fromkeys(name for one in self.secrets for name in one))


def unallowed(agent: str, request: EvalRequest) -> AgentAsks | None:
    """Return what the agent at this path asks for beyond what is allowed; None when there is nothing."""
    path = Path(agent)
    contract = load_contract(path) if path.is_dir() else load_contract(read_contract(path)[1], where=agent)
    names = set(request.pass_env)
    asked = tuple(
        (variable, name)
        for variable, name in contract.environment.items()
        if variable not in request.secrets and not {variable, name} <= names
    )
    return AgentAsks(agent, asked) if asked else None


def refuse(asks: Sequence[AgentAsks]) -> None:
    """Raise UsageError with the words that allow it."""
    if asks:
        told = "; ".join(map(str, asks))
        flags = " ".join(dict.fromkeys(one.flags() for one in asks))
        raise UsageError(
            f"An agent that a spec brings along wants secrets of yours: {told}. Nobody can be asked here; "
            f"allow it with {flags}."
        )


def _shown(variable: str, name: str) -> str:
    return variable if variable == name else f"{variable} ({name})"


def _flag(variable: str, name: str) -> str:
    return f"--pass-env {variable}" if variable == name else f"-s {variable} {name}"


MOCK = "mock"
_OF_EXECUTORS = ("unknown-executor", "unsupported-executor")
"""Findings about a spec's own agent, which is not asked where the command line names another."""


@dataclass(frozen=True, slots=True)
class UsedPlugins:
    """What specs use that the platform does not have and flags did not give."""

    graders: tuple[str, ...] = ()
    """Types of graders."""
    executors: tuple[str, ...] = ()
    """Names of agents."""

    def __bool__(self) -> bool:
        return bool(self.graders or self.executors)

    def __str__(self) -> str:
        said = [f"grader type {name!r}" for name in self.graders]
        return ", ".join([*said, *(f"executor {name!r}" for name in self.executors)])


@dataclass(frozen=True, slots=True)
class PlannedEval:
    """One spec with one model, ready to be stored as a run."""

    item: EvalItem
    spec: EvalSpec
    agent: AgentChoice
    options: EvalOptions
    stimuli: Sequence[Stimulus]
    """What of the spec is run, in its order."""
    request: RunRequest | None
    """None: there is nothing to run."""
    judged: bool = False
    """A model is asked about what its agents did."""
    asks: AgentAsks | None = None
    """Secrets that the spec's own agent wants and that were not allowed."""

    @property
    def model(self) -> str | None:
        return self.options.model

    @property
    def threshold(self) -> float | None:
        """The command line's, then the spec's."""
        return self.spec.scoring.threshold if self.options.threshold is None else self.options.threshold

    @property
    def claimant(self) -> str:
        """What it is called where two of them want the same."""
        return f"{self.spec.name} × {self.model or self.agent.name}"


@dataclass(frozen=True, slots=True)
class PlannedEvals:
    """Everything one command will run."""

    evals: Sequence[PlannedEval]
    warnings: Sequence[Finding]


def plan_evals(
    request: EvalRequest, unloaded: UsedPlugins | None = None, *, shown_only: bool = False
) -> PlannedEvals:
    """Read, check and resolve everything; all that is wrong comes at once.

    `unloaded` is what only plugins have that are not to be loaded; `shown_only` is a plan of which nothing is
    run, so that no judge has to be within reach.
    """
    check_options(request)
    wrong: list[Finding] = []
    doubtful: list[Finding] = []
    planned: list[PlannedEval] = []
    for item in request.items:
        try:
            found, remarks = _plan_one(item, request, unloaded or UsedPlugins(), shown_only=shown_only)
            planned.append(found)
            doubtful += remarks
        except SpecError as error:
            wrong += _all_of(error, item, request)
    if wrong:
        raise SpecError(list(dict.fromkeys(wrong)))
    _refuse_same_workspace(planned, request.workspace)
    return PlannedEvals(planned, list(dict.fromkeys(doubtful)))


def _all_of(error: SpecError, item: EvalItem, request: EvalRequest) -> Sequence[Finding]:
    """Return what keeps a spec from being read, and what lint would say of it next: errors are mended
    together."""
    if request.skip_validate or item.patch or request.eval_plugin:
        return error.findings
    _, found = lint_spec_file(item.file, _lint_options(request))
    more = [one for one in found if one.severity == "error" and one not in error.findings]
    return [*error.findings, *more]


def which_agents(planned: PlannedEvals) -> str | None:
    """Return what to say beside a refusal, where nobody named an agent."""
    implied = next((one for one in planned.evals if one.agent.implied), None)
    if implied is None:
        return None
    others = ", ".join(known_executors())
    return (
        f"{implied.item.file.name} names no executor, so {implied.agent.name} is meant. --agent chooses "
        f"another: {others}. mock needs nothing."
    )


def check_options(request: EvalRequest) -> None:
    """UsageError for what no eval can be."""
    for flag, value, least in (
        ("--trials", request.runs, 0),
        ("--concurrency", request.workers, 1),
        ("--max-retries", request.max_retries, 0),
    ):
        if value is not None and value < least:
            raise UsageError(f"{flag} must be at least {least}, not {value}.")
    if request.threshold is not None and not 0 <= request.threshold <= 1:
        raise UsageError(f"--threshold must be between 0 and 1, not {request.threshold:g}.")
    if request.timeout is not None and request.timeout <= 0:
        raise UsageError("--timeout must be above 0.")
    if request.judge_url is not None:
        judge_models.check_address(request.judge_url)  # also where no judge is asked
    if request.skill_dir is not None:
        if not request.skill_dir.is_dir():
            raise UsageError(f"--skill-dir {request.skill_dir}: there is no such folder.")
        find_skills(request.skill_dir)  # raises for one that cannot be loaded
    if request.work_dir is not None and not request.work_dir.is_dir():
        raise UsageError(f"--work-dir {request.work_dir}: there is no such folder.")
    for flag, place in (("--workspace", request.workspace), ("--output-dir", request.output_dir)):
        if place is not None and place.exists() and not place.is_dir():
            raise UsageError(f"{flag} {place}: this is a file; name a folder.")


def _plan_one(
    item: EvalItem, request: EvalRequest, unloaded: UsedPlugins, *, shown_only: bool
) -> tuple[PlannedEval, Sequence[Finding]]:
    read = open_spec(item.file, first_options(item, request))
    spec = read.spec
    agent = _agent(spec, request, unloaded)
    stimuli = [one for one in spec.stimuli if item.stimuli is None or one.name in item.stimuli]
    left_out = {one.name: why for one in stimuli if (why := unsupported(one, agent.name))}
    if left_out:
        stimuli = [one for one in stimuli if one.name not in left_out]
        item = replace(item, stimuli=tuple(one.name for one in stimuli))
    options = _options(item, request, spec, agent)
    linted = [one for one in _linted(read, request, unloaded) if one not in left_out.values()]
    findings = [*read.findings, *linted, *left_out.values()]
    if errors := [finding for finding in findings if finding.severity == "error"]:
        raise SpecError(errors)
    judged = not unloaded and _judged(spec, options, stimuli, check=not shown_only)
    nothing = bool(unloaded) or not any(trials_of(one, spec, request.runs) for one in stimuli)
    run = None if nothing else _run_request(item, request, spec, agent, options, stimuli)
    warnings = [finding for finding in findings if finding.severity == "warning"]
    return PlannedEval(item, spec, agent, options, stimuli, run, judged, _asks(agent, request)), warnings


def _asks(agent: AgentChoice, request: EvalRequest) -> AgentAsks | None:
    """Return what an agent wants that only the spec names: a folder or archive, by its path."""
    named = agent.spec_for_open_agent
    if request.executor is not None or named in CATALOG:
        return None
    # A bare name may be a folder of the current one as well as a pushed agent.
    folder = Path(named).absolute()
    if folder.suffix == ".zip" or any((folder / name).is_file() for name in CONTRACT_FILES):
        return unallowed(str(folder), request)
    return None


def _agent(spec: EvalSpec, request: EvalRequest, unloaded: UsedPlugins) -> AgentChoice:
    said = request.executor or spec.defaults.executor
    if said is not None and said in unloaded.executors:
        return AgentChoice(said, said)
    return agent_for(
        spec.defaults.executor, override=request.executor, plugins=request.executor_plugins, base=spec.folder
    )


def _judged(spec: EvalSpec, options: EvalOptions, stimuli: Sequence[Stimulus], *, check: bool) -> bool:
    """Return whether judges are asked; one that could not be is refused before an agent has worked for
    nothing."""
    made = [] if options.skip_grade else [one for each in stimuli for one in graders_of(each, spec, options)]
    judges = [one.grader for one in made if one.is_judge]
    if not judges:
        return False
    if check:
        judge_models.check_judges(judges, asking_of(spec, options))
    return True


def _linted(read: Read, request: EvalRequest, unloaded: UsedPlugins) -> list[Finding]:
    """Return what lint says, as far as it matters here."""
    if request.skip_validate:
        return []
    options = replace(
        _lint_options(request), unloaded_graders=unloaded.graders, unloaded_executors=unloaded.executors
    )
    found = lint_spec(read, options=options)
    if request.executor is None:
        return found
    return [one for one in found if one.code not in _OF_EXECUTORS]


def _lint_options(request: EvalRequest) -> LintOptions:
    return LintOptions(
        grader_plugins=request.grader_plugins,
        executor_plugins=request.executor_plugins,
        params=request.params,
        allowed=request.allowed,
    )


def trials_of(stimulus: Stimulus, spec: EvalSpec, asked: int | None) -> int:
    """Return how often it is tried: the command line's word, its own, the spec's."""
    if asked is not None:
        return asked
    return spec.defaults.runs if stimulus.runs is None else stimulus.runs


def first_options(item: EvalItem, request: EvalRequest) -> EvalOptions:
    """Return what a spec is read with, before anything of it is known."""
    patch = {BASE: str(item.patch_base), **item.patch} if item.patch_base else item.patch
    return EvalOptions(
        params=dict(request.params),
        patch=patch,
        eval_plugin=request.eval_plugin,
        pass_env=request.allowed.names,
        allow_paths=request.allowed.paths,
    )


def _options(item: EvalItem, request: EvalRequest, spec: EvalSpec, agent: AgentChoice) -> EvalOptions:
    network = request.network or ("none" if agent.name == MOCK else "public")
    return replace(
        first_options(item, request),
        variant=item.variant,
        model=item.model or spec.defaults.model,
        executor=agent.name,
        work_dir=str(request.work_dir or Path.cwd()),
        skill_dir=str(request.skill_dir) if request.skill_dir else None,
        skills_at=_skills_at(agent),
        stimuli=item.stimuli,
        runs=request.runs,
        timeout=request.timeout,
        threshold=request.threshold,
        judge_model=request.judge_model,
        judge_url=request.judge_url,
        judge_effort=request.judge_effort,
        grader_plugins=request.grader_plugins,
        project_file=str(request.project_file) if request.project_file else None,
        project_digest=request.project_digest,
        skip_grade=request.skip_grade,
        enforce_constraints=request.enforce_constraints,
        workspace=str(request.workspace) if request.workspace else None,
        network=network,
        hidden=_hidden(request),
    )


def _hidden(request: EvalRequest) -> tuple[str, ...]:
    """Return what says how agents are graded, or how others fared, should it lie where they work."""
    specs = dict.fromkeys(item.file for item in request.items)
    folders = dict.fromkeys([*(file.parent for file in specs), request.work_dir or Path.cwd()])
    kept = [data_folder(), *([request.output_dir] if request.output_dir else [])]
    keys = [file for folder in (Path.cwd(), request.work_dir) if folder for file in key_files(folder)]
    kept += [file for file in keys if str(file.resolve()) not in request.allow_paths]
    return tuple(map(str, [*specs, *(folder / FIXTURES for folder in folders), *kept]))


def _skills_at(agent: AgentChoice) -> str:
    """Return where the agent looks for skills, below its workspace."""
    entry = CATALOG.get(agent.spec_for_open_agent)
    return str(plugins.load_target(entry.target).capabilities.skills_at) if entry else SKILLS_AT


def _run_request(
    item: EvalItem,
    request: EvalRequest,
    spec: EvalSpec,
    agent: AgentChoice,
    options: EvalOptions,
    stimuli: Sequence[Stimulus],
) -> RunRequest:
    light = agent.name == MOCK and all(starts_no_process(stimulus, spec, options) for stimulus in stimuli)
    return RunRequest(
        agent=agent.spec_for_open_agent,
        model=options.model,
        benchmark=str(item.file),
        benchmark_options=options.to_json(),
        provider=request.provider or ("null" if light else "local"),
        max_attempts=request.max_retries + 1,
        abort_after=0,
        in_turn=not request.parallel_trials,
        label=request.name,
        kwargs={**_own_kwargs(spec, request, agent), **request.kwargs},
        secrets=dict(request.secrets),
        model_url=request.model_url,
        verify=request.verify,
        family=request.family,
    )


def _own_kwargs(spec: EvalSpec, request: EvalRequest, agent: AgentChoice) -> dict[str, str]:
    """Return what the spec tells its agent; where the command line names another, or it is known here by
    another name, what was meant for the one does not fit the other."""
    found: dict[str, str] = {}
    if request.executor is None and agent.name == spec.defaults.executor:
        found = {key: str(value) for key, value in spec.defaults.executor_config.items()}
    effort, entry = spec.defaults.reasoning_effort, CATALOG.get(agent.name)
    return {entry.effort: effort, **found} if effort and entry and entry.effort else found


def _refuse_same_workspace(planned: Sequence[PlannedEval], root: Path | None) -> None:
    """Two trials' final states cannot stand in one folder; the model is not in its name."""
    if root is None:
        return
    claimed: dict[Path, PlannedEval] = {}
    for one in planned:
        for stimulus in one.stimuli:
            path = root / one.item.variant / folder_name(stimulus.name)
            if (other := claimed.setdefault(path, one)) is not one:
                raise UsageError(
                    f"Workspace path collision at '{path}': claimed by '{other.claimant}' and "
                    f"'{one.claimant}'. Rename one of the stimuli or use distinct --workspace roots."
                )

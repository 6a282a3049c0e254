"""Open a spec as a command line wants it: its options, its needs, its tool servers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from sandboxes.protocol import NetworkPolicy
from valkyrie import plugins
from valkyrie.config.permissions import Allowance
from valkyrie.domain import Json, TaskSpec
from valkyrie.errors import UsageError, UserError, ValkyrieError
from valkyrie.grade.protocol import JudgeDefaults, Need
from valkyrie.specs.model import EvalSpec, Project, Stimulus
from valkyrie.specs.project import find_project, read_project
from valkyrie.specs.reader import Read, read_spec, read_text
from valkyrie.trust import check_unchanged

if TYPE_CHECKING:
    from valkyrie.grade.graders import MadeGrader


WORKSPACE = "/workspace"
"""Where the workspace is in a sandbox."""


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """Everything besides the spec's own file that decides what a trial of it is."""

    params: Mapping[str, str] = field(default_factory=dict)
    patch: Json = field(default_factory=dict)
    """Laid over the spec before it is read: an experiment's variant."""
    variant: str = "main"
    model: str | None = None
    executor: str | None = None
    """What the agent is called."""
    work_dir: str | None = None
    """Absolute; None only where no stimulus needs it."""
    skill_dir: str | None = None
    skills_at: str = ".agents/skills"
    """Where the agent looks for skills, below the workspace."""
    stimuli: tuple[str, ...] | None = None
    """Only these, where a tag or suite chose."""
    runs: int | None = None
    timeout: float | None = None
    threshold: float | None = None
    judge_model: str | None = None
    judge_url: str | None = None
    judge_effort: str | None = None
    grader_plugins: tuple[str, ...] = ()
    project_file: str | None = None
    """The `.vally.yaml` that names some of these; None where only the command line does."""
    project_digest: str | None = None
    """Of what of its project could execute when the run was planned."""
    eval_plugin: str | None = None
    """What turns the file into a spec, where it is none."""
    skip_grade: bool = False
    enforce_constraints: bool = False
    """A constraint that is broken fails its trial."""
    workspace: str | None = None
    """`--workspace`: where final states are kept; absolute."""
    network: NetworkPolicy = "public"
    hidden: tuple[str, ...] = ()
    """What no agent sees of `work_dir`: specs, fixtures, results; absolute."""
    pass_env: tuple[str, ...] = ()
    """Variables of the user that `${NAME}` may be filled from."""
    allow_paths: tuple[str, ...] = ()
    """What outside the project its spec may name; absolute."""

    @property
    def allowed(self) -> Allowance:
        return Allowance(self.pass_env, self.allow_paths)

    def to_json(self) -> Json:
        """Only what was said."""
        plain = type(self)()
        return {key: value for key, value in asdict(self).items() if value != getattr(plain, key)}

    @classmethod
    def from_json(cls, data: Json) -> EvalOptions:
        known = {one.name for one in fields(cls)}
        kept: Json = {key: value for key, value in data.items() if key in known}
        for key in ("stimuli", "grader_plugins", "hidden", "pass_env", "allow_paths"):
            if kept.get(key) is not None:
                kept[key] = tuple(kept[key])
        return cls(**kept)


# Where a stimulus's tool servers run: folders of this machine, as the sandbox knows them.

_LITERAL = "${workspace}"


def servers_inside(stimulus: Stimulus, options: EvalOptions, folder: Path) -> Mapping[str, Json]:
    """The stimulus's servers, each with its `cwd` below the workspace; `folder` is the spec's.

    A spec says where on this machine a server runs, and the sandbox has the workspace only: what `files`
    brought there, or what stands there as it stands below `--work-dir` or beside the spec.
    """
    places = list(_places(stimulus, options, folder))
    return {
        name: {**server, "cwd": _inside(str(server["cwd"]), places)} if server.get("cwd") else server
        for name, server in stimulus.environment.mcp_servers.items()
    }


def _places(stimulus: Stimulus, options: EvalOptions, folder: Path) -> Iterator[tuple[Path, str]]:
    for entry in stimulus.environment.files:
        yield entry.source.absolute(), f"{WORKSPACE}/{entry.dest.strip('/')}".rstrip("/")
    if options.work_dir:
        yield Path(options.work_dir).absolute(), WORKSPACE
    yield folder.absolute(), WORKSPACE


def _inside(cwd: str, places: list[tuple[Path, str]]) -> str:
    """The folder in the sandbox; one that is none of ours is a folder of the sandbox's own."""
    _, literal, rest = cwd.partition(_LITERAL)
    if literal:
        return f"{WORKSPACE}{rest}"
    for source, target in places:
        if Path(cwd).is_relative_to(source):
            below = Path(cwd).relative_to(source).as_posix()
            return target if below == "." else f"{target}/{below}"
    return cwd


# What a stimulus needs to be set up and graded.

_Made = dict[tuple[str, tuple[str, ...]], "list[MadeGrader]"]
_made: OrderedDict[int, tuple[EvalSpec, _Made]] = OrderedDict()
"""Graders by spec, stimulus and plugins: planning, storing and running ask for the same ones."""
REMEMBERED = 64


def starts_no_process(stimulus: Stimulus, spec: EvalSpec, options: EvalOptions) -> bool:
    """Neither setting it up nor grading it runs a program: a folder is enough of a sandbox."""
    if stimulus.environment.commands or stimulus.environment.mcp_servers:
        return False
    if options.skip_grade:
        return True
    made = graders_of(stimulus, spec, options)
    return Need.PROGRAMS not in all_needs(made)


def graders_of(stimulus: Stimulus, spec: EvalSpec, options: EvalOptions) -> list[MadeGrader]:
    """The stimulus' graders, constraints included. Raises SpecError for a config none of them takes."""
    known = _made_for(spec)
    key = (stimulus.name, options.grader_plugins)
    if key not in known:
        from valkyrie.grade.graders import make_graders

        _check_project(options)
        known[key] = make_graders(
            stimulus, scoring=spec.scoring, plugins=options.grader_plugins, base=spec.folder
        )
    return known[key]


def _check_project(options: EvalOptions) -> None:
    """Raise UserError where plugins of the project were changed since the run was planned."""
    if options.project_file is None or not options.grader_plugins:
        return
    if (code := read_project(Path(options.project_file)).code()) is not None:
        check_unchanged(code, options.project_digest)


def _made_for(spec: EvalSpec) -> _Made:
    """Return what is remembered of this very object."""
    _, known = _made.setdefault(id(spec), (spec, {}))
    if len(_made) > REMEMBERED:
        _made.popitem(last=False)
    return known


def all_needs(made: Iterable[MadeGrader]) -> frozenset[Need]:
    """Return what has to be there for all of them."""
    return frozenset(need for one in made for need in one.needs)


def asking_of(spec: EvalSpec, options: EvalOptions) -> JudgeDefaults:
    """Return how judges are asked: as the command line says, else the spec."""
    defaults = spec.defaults
    return JudgeDefaults(
        model=options.judge_model or defaults.judge_model,
        provider=defaults.judge_provider,
        reasoning_effort=options.judge_effort or defaults.judge_reasoning_effort,
        url=options.judge_url,
    )


# Reading a spec as a command line wants it read.

PLUGINS = "valkyrie.evals"
"""Entry points of plugins that read foreign files."""


@dataclass(frozen=True, slots=True)
class OpenedSpec:
    """A spec that was read, and what was worked out about its stimuli from its text alone."""

    read: Read
    digests: dict[str, str] = field(default_factory=dict)
    tasks: dict[tuple[str, str], TaskSpec] = field(default_factory=dict)
    """Stimuli without files as tasks, by the options they were described with and their names."""


_opened: OrderedDict[str, OpenedSpec] = OrderedDict()
"""The specs read last, by what makes them what they are: planning, storing and running read the same one."""


def open_spec(file: Path, options: EvalOptions) -> Read:
    """The spec in a file, or what a plugin makes of it. Raises SpecError with everything that is wrong."""
    return opened_spec(file, options).read


def opened_spec(file: Path, options: EvalOptions) -> OpenedSpec:
    """The same, with what is remembered of it."""
    if not file.is_file():
        raise UserError(
            f"The eval spec {file} is gone; put it back, or start a new eval.", cause="task_changed"
        )
    project = find_project(file.parent)
    about = [file, project.file] if project.file else [file]
    stamps = [(str(one), one.stat().st_mtime_ns, one.stat().st_size) for one in about]
    allowed = (options.allowed.variables(), options.allow_paths)
    key = repr((stamps, dict(options.params), options.patch, options.eval_plugin, allowed))
    if (known := _opened.get(key)) is None:
        known = _opened[key] = OpenedSpec(_read(file, options, project))
        if len(_opened) > REMEMBERED:
            _opened.popitem(last=False)
    return known


def _read(file: Path, options: EvalOptions, project: Project) -> Read:
    if options.eval_plugin is None:
        return read_spec(
            file,
            params=options.params,
            patch=options.patch or None,
            project=project,
            allowed=options.allowed,
        )
    text = _as_yaml(_provider(options.eval_plugin), file, options.eval_plugin)
    return read_text(
        text,
        file,
        params=options.params,
        patch=options.patch or None,
        project=project,
        allowed=options.allowed,
    )


def _provider(said: str) -> Any:
    """`read_eval(path)` of a plugin: a function, or a class with that method."""
    if said.endswith(".py"):
        found = getattr(plugins.load_file(Path(said).resolve()), "read_eval", None)
        if found is None:
            raise UsageError(f"--eval-plugin {said}: the file has no function read_eval(path).")
    else:
        found = plugins.load(said, group=PLUGINS)
    return found().read_eval if isinstance(found, type) else found


def _as_yaml(read: Any, file: Path, said: str) -> str:
    """Return what the plugin gives: the document of a spec, or its text."""
    try:
        made = read(file)
    except ValkyrieError:
        raise
    except Exception as error:
        # Other people's code runs here, and may raise anything.
        raise UserError(f"--eval-plugin {said}: {file.name}: {type(error).__name__}: {error}") from error
    if isinstance(made, str):
        return made
    if not isinstance(made, dict):
        raise UserError(
            f"--eval-plugin {said}: read_eval must give a spec's document, not {type(made).__name__}."
        )
    return yaml.safe_dump(made, allow_unicode=True, sort_keys=False)


# What graders other than judges found in a trial, so that only its judges are asked again.


class JudgedSpec:
    """The graders of one eval spec."""

    def __init__(self, source: Json) -> None:
        self._options = EvalOptions.from_json(source["options"])
        self._spec = open_spec(Path(source["file"]), self._options).spec
        self._stimuli = {one.name: one for one in self._spec.stimuli}

    def checked(self, task_id: str, graders: Sequence[Json]) -> list[Json] | str:
        """Return the results of graders that are no judges, in order; or why judges cannot be asked alone.

        `graders` are all results of the trial's grading, as its result has them.
        """
        stimulus = self._stimuli.get(task_id)
        if stimulus is None:
            return f"{self._spec.file.name} has no stimulus of that name any more"
        made = graders_of(stimulus, self._spec, self._options)
        if not any(one.is_judge for one in made):
            return "no judge graded it"
        if len(made) != len(graders):
            return f"{self._spec.file.name} has other graders for it than when it was graded"
        return [found for one, found in zip(made, graders, strict=True) if not one.is_judge]

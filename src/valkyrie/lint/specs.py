"""An eval spec that can be read, looked at as a whole: graders, weights, files, agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

from valkyrie.benchmarks.eval_spec.git_staging import is_committed
from valkyrie.benchmarks.eval_spec.options import EvalOptions
from valkyrie.lint.codes import finding
from valkyrie.lint.contradictions import contradictions
from valkyrie.lint.executors import executor_findings, has_known_tools
from valkyrie.lint.grader_values import grader_value_findings
from valkyrie.lint.graders import grader_findings
from valkyrie.lint.options import LintOptions
from valkyrie.lint.programs import program_findings
from valkyrie.lint.tools import tool_findings
from valkyrie.lint.vacuous import vacuous, weak
from valkyrie.lint.weights import weight_findings
from valkyrie.specs.model import DEFAULT_TIMEOUT_S, EvalSpec, Finding, Place, Project, SpecError, Stimulus
from valkyrie.specs.project import find_project
from valkyrie.specs.reading import Read, examine

_JUDGES = ("prompt", "panel")


def lint_spec_file(
    file: Path, options: LintOptions | None = None, project: Project | None = None
) -> tuple[EvalSpec | None, list[Finding]]:
    """The spec as far as it can be understood, and everything wrong with it; nothing is raised."""
    try:
        project = project or find_project(file.absolute().parent)
    except SpecError:
        project = Project(file=None, folder=file.parent)  # said where the project itself is checked
    options = _with_unloaded(options or LintOptions(), project)
    try:
        spec, found = examine(file, params=options.params, project=project, allowed=options.allowed)
    except SpecError as error:
        return None, list(error.findings)  # of a project file around it
    if spec is None or any(one.code == "outside-project" for one in found):
        return spec, found  # what lies elsewhere is not looked at
    more = lint_spec(Read(spec), options=options)
    if any(one.code == "unknown-environment" for one in found):
        more = [one for one in more if one.code != "tool-matches-nothing"]  # its servers may have that tool
    return spec, _sorted([*found, *more])


def _with_unloaded(options: LintOptions, project: Project) -> LintOptions:
    """Return the options with the project's own plugins, which are known by name and not loaded."""
    return replace(
        options,
        unloaded_graders=project.plugins_of("graders"),
        unloaded_executors=project.plugins_of("executors"),
    )


def lint_spec(
    read: Read, *, plugins: Sequence[str] = (), options: LintOptions | None = None
) -> list[Finding]:
    """What is wrong or doubtful about a spec beyond what reading it said already."""
    options = options or LintOptions()
    if plugins:
        options = replace(options, grader_plugins=(*options.grader_plugins, *plugins))
    spec = read.spec
    found = [*executor_findings(spec, options), *grader_findings(spec, options), *weight_findings(spec)]
    found += [*_runs(spec), *_regression(spec), *_judges(spec), *_same_prompts(spec)]
    known_tools = has_known_tools(spec.defaults.executor)
    committed = cache(is_committed)  # stimuli share such files, and each look starts git
    for stimulus in spec.stimuli:
        found += vacuous(stimulus)
        found += weak(spec, stimulus)
        found += program_findings(stimulus)
        found += grader_value_findings(stimulus)
        found += _weighed(spec, contradictions(stimulus))
        found += tool_findings(spec, stimulus, known_agent=known_tools)
        found += _budgets(spec, stimulus)
        found += _unscored(stimulus)
        found += _missing(spec, stimulus)
        found += _in_history(stimulus, committed)
    return _sorted(list(dict.fromkeys(found)))


def _sorted(found: list[Finding]) -> list[Finding]:
    """In the order of the file."""
    return sorted(found, key=lambda one: (one.place.line, one.place.column) if one.place else (0, 0))


def _weighed(spec: EvalSpec, found: Iterator[Finding]) -> Iterator[Finding]:
    """With a threshold, other graders can make up for one that must fail."""
    mild = spec.scoring.threshold is not None
    return (replace(one, severity="warning") if mild else one for one in found)


def _missing(spec: EvalSpec, stimulus: Stimulus) -> list[Finding]:
    """Files, skills and repositories that are not there."""
    from valkyrie.benchmarks.eval_spec.workspace import problems

    try:
        return problems(stimulus, EvalOptions(work_dir=str(spec.folder.absolute())))
    except OSError as error:
        message = f"{str(error.filename)[:200]!r} cannot be looked at: {error.strerror}"
        return [finding("environment-file-missing", message, stimulus.environment.place or stimulus.place)]


def missing_skills(spec: EvalSpec) -> Iterator[Finding]:
    """Skills of a spec that are not there, of an experiment's variant too."""
    for stimulus in spec.stimuli:
        yield from (one for one in _missing(spec, stimulus) if one.code == "missing-skill")


def _in_history(stimulus: Stimulus, committed: Callable[[Path], bool]) -> Iterator[Finding]:
    """Files for grading that an agent in a view of `--work-dir` finds in its history."""
    if not stimulus.environment.empty:
        return
    for entry in stimulus.grading_files:
        if committed(entry.source):
            message = (
                f"{entry.src} is for graders alone, and committed: an agent that starts from this repository "
                "(--work-dir) can read it with git. Give the stimulus an `environment`, or keep the file "
                "outside of the repository"
            )
            yield finding("grading-file-in-history", message, entry.place)


def _runs(spec: EvalSpec) -> Iterator[Finding]:
    if spec.defaults.runs == 0 and not any(stimulus.runs for stimulus in spec.stimuli):
        message = "`runs` is 0: the spec is checked and nothing of it is run"
        yield finding("runs-zero", message, Place(spec.file))


def _regression(spec: EvalSpec) -> Iterator[Finding]:
    if spec.type == "regression":
        message = (
            "`type` is regression, and the spec has no baseline to be worse than: compare with an earlier "
            "result (`valk compare --baseline DIR --treatment DIR --fail-on-regression`), or run it in an "
            "experiment that has a `baseline`"
        )
        yield finding("regression-without-baseline", message, Place(spec.file))


def _judges(spec: EvalSpec) -> Iterator[Finding]:
    """One remark is enough: a model is named once for all."""
    if spec.defaults.judge_model:
        return
    for stimulus in spec.stimuli:
        for grader in stimulus.graders:
            if grader.type in _JUDGES and not (grader.config.get("model") or grader.config.get("models")):
                message = (
                    f"{grader.label} asks a judge, and no model is named: set `judge_model` below "
                    "`defaults`, or give --judge-model"
                )
                yield finding("no-judge-model", message, grader.place)
                return


_COUNTED_BY = {
    "expect_skills": "skill-invocation",
    "reject_skills": "skill-invocation",
    "expect_tools": "tool-calls",
    "reject_tools": "tool-calls",
}


def _unscored(stimulus: Stimulus) -> Iterator[Finding]:
    """Constraints of which an author may think that they count."""
    for key, grader in _COUNTED_BY.items():
        if getattr(stimulus.constraints, key):
            message = f"`{key}` of {stimulus.name!r} is reported and not scored; a `{grader}` grader counts"
            yield finding("constraint-unscored", message, stimulus.constraints.place)


def _budgets(spec: EvalSpec, stimulus: Stimulus) -> Iterator[Finding]:
    """Time budgets that the time limit makes pointless."""
    from valkyrie.errors import UsageError
    from valkyrie.specs.durations import parse_duration

    limit = stimulus.timeout or spec.defaults.timeout or DEFAULT_TIMEOUT_S
    budgets: list[tuple[str, float, Place | None]] = []
    if (longest := stimulus.constraints.time_limit) is not None:
        budgets.append(("max_duration", longest, stimulus.constraints.place))
    for grader in stimulus.graders:
        if grader.type == "wall-time" and isinstance(grader.config.get("max"), str):
            try:
                budgets.append((grader.label, parse_duration(grader.config["max"]), grader.place))
            except UsageError:
                continue  # said by whoever makes the grader
    for name, seconds, place in budgets:
        if seconds > limit:
            message = f"{name} allows {seconds:g} s, but the time limit ends a trial after {limit:g} s"
            yield finding("budget-above-timeout", message, place)


def _same_prompts(spec: EvalSpec) -> Iterator[Finding]:
    seen: dict[tuple[str, ...], list[Stimulus]] = {}
    for stimulus in spec.stimuli:
        said = seen.setdefault(tuple(stimulus.turns), [])
        twin = next((other for other in said if _alike(other, stimulus)), None)
        if twin is not None:
            message = (
                f"{stimulus.name!r} says the same as {twin.name!r} in the same environment; put their "
                "graders together, or raise `runs` to try it more often"
            )
            by_skill = _skill_demands(stimulus) != _skill_demands(twin)
            yield finding("duplicate-prompt", message, stimulus.place, quiet=by_skill)
        said.append(stimulus)


def _skill_demands(stimulus: Stimulus) -> str:
    """What its graders and constraints say of skills."""
    limits = stimulus.constraints
    graders = [one.config for one in stimulus.graders if one.type == "skill-invocation"]
    return repr((graders, limits.expect_skills, limits.reject_skills))


def _alike(one: Stimulus, other: Stimulus) -> bool:
    return _content(one) == _content(other)


def _content(stimulus: Stimulus) -> str:
    """What the agent finds, without where it was written."""
    environment = stimulus.environment
    skills = environment.skills and [ref.folder for ref in environment.skills]
    files = [(entry.source, entry.dest) for entry in (*environment.files, *stimulus.attachments)]
    git = {**asdict(environment.git), "place": None} if environment.git else None
    return repr((skills, files, environment.commands, git, environment.mcp_servers))

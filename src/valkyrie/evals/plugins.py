"""Plugins a project's `.vally.yaml` names, and reporters people bring along."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from valkyrie import __version__, plugins
from valkyrie.agents.loader import is_known_executor
from valkyrie.benchmarks.eval_spec.source import open_spec
from valkyrie.domain import Json
from valkyrie.errors import UsageError, UserError
from valkyrie.evals.plan import EvalRequest, UsedPlugins, first_options
from valkyrie.evals.records import to_line, trial_key
from valkyrie.evals.result_folder import run_summary
from valkyrie.evals.results import Invocation, SpecResult, StimulusResult
from valkyrie.grade.graders import known_types, load_plugins
from valkyrie.specs.model import EvalSpec, Project, SpecError
from valkyrie.specs.project import read_project
from valkyrie.trust import check_trusted, check_unchanged


def with_project_plugins(request: EvalRequest, project: Project, *, trust: bool) -> EvalRequest:
    """Return the request with those plugins of the project that its specs use.

    Raises UsageError with the command that allows it where the project is not trusted; `trust` is the word of
    the command line.
    """
    used = used_plugins(request, project)
    reporters = project.plugins_of("reporters")
    request = replace(request, metadata=project.metadata)
    if not (used or reporters) or (code := project.code()) is None:
        return request
    if not trust:
        what = str(used) if used else f"reporter {reporters[0]!r}"
        check_trusted(code, f"{what} comes from the plugins of {project.file}.")
    return replace(
        request,
        reporter_plugins=(*reporters, *request.reporter_plugins),
        project_file=project.file,
        project_digest=code.digest(),
        grader_plugins=(*(project.plugins_of("graders") if used.graders else ()), *request.grader_plugins),
        executor_plugins=(
            *(project.plugins_of("executors") if used.executors else ()),
            *request.executor_plugins,
        ),
    )


def check_still_trusted(request: EvalRequest, *, trust: bool) -> None:
    """Raise UsageError where plugins an eval began with are not trusted or not the same any more."""
    if request.project_file is None:
        return
    if not request.project_file.is_file():
        raise UsageError(f"{request.project_file}, which names the eval's plugins, is gone; put it back.")
    code = read_project(request.project_file).code()
    if code is not None:
        if not trust:
            check_trusted(code, "The eval was started with plugins of its project.")
        check_unchanged(code, request.project_digest)


def trusted_graders(
    project: Project, spec: EvalSpec, given: Sequence[str], *, trust: bool
) -> tuple[str, ...]:
    """Return the grader plugins of the command line, with the project's where this spec uses them."""
    used = UsedPlugins(_unknown_types([spec], given)) if project.plugins_of("graders") else UsedPlugins()
    if not used or (code := project.code()) is None:
        return tuple(given)
    if not trust:
        check_trusted(code, f"{used} comes from the plugins of {project.file}.")
    return (*project.plugins_of("graders"), *given)


def used_plugins(request: EvalRequest, project: Project) -> UsedPlugins:
    """Return what the request's specs use that only the project's plugins can have; nothing is loaded."""
    if not (project.plugins_of("graders") or project.plugins_of("executors")):
        return UsedPlugins()
    specs: list[EvalSpec] = []
    for item in request.items:
        try:
            specs.append(open_spec(item.file, first_options(item, request)).spec)
        except SpecError:
            continue  # planning says what is wrong with it
    graders = _unknown_types(specs, request.grader_plugins) if project.plugins_of("graders") else ()
    executors: tuple[str, ...] = ()
    if project.plugins_of("executors"):
        named = [request.executor] if request.executor else [spec.defaults.executor for spec in specs]
        executors = tuple(
            dict.fromkeys(
                name
                for name in named
                if name and not is_known_executor(name, request.executor_plugins, _base(specs))
            )
        )
    return UsedPlugins(graders, executors)


def _unknown_types(specs: Iterable[EvalSpec], given: Sequence[str]) -> tuple[str, ...]:
    """Return the types of graders that are neither built in, nor installed, nor of the given plugins."""
    specs = list(specs)
    wanted = dict.fromkeys(
        grader.type for spec in specs for stimulus in spec.stimuli for grader in stimulus.graders
    )
    known = set(known_types(load_plugins(given, _base(specs)) if given else None))
    return tuple(name for name in wanted if name not in known)


def _base(specs: Sequence[EvalSpec]) -> Path:
    return specs[0].folder if specs else Path.cwd()


# Reporters people bring along: told how an eval goes, and what it came to.
#
# A reporter is an object with any of `on_run_start(run)`, `on_trial_result(trial)` and
# `on_run_complete(summary, artifacts, status)`; each is given plain data. What is named may be a class, a
# function `register_reporters(registry)`, or a `.py` file with either. One that fails is told of once and
# left alone: it changes neither results nor exit code.

GROUP = "valkyrie.reporters"
"""The entry point group."""
METHODS = ("on_run_start", "on_trial_result", "on_run_complete")


@dataclass(slots=True)
class ReporterRegistry:
    """What plugins register their reporters with."""

    reporters: list[Any] = field(default_factory=list)

    def register(self, reporter: Any) -> None:
        """Add a reporter, or a class that makes one without arguments."""
        made = reporter() if inspect.isclass(reporter) else reporter
        if not any(callable(getattr(made, name, None)) for name in METHODS):
            raise UserError(f"the reporter {reporter!r} has none of the methods {', '.join(METHODS)}.")
        self.reporters.append(made)


def load_reporters(specifiers: Iterable[str]) -> list[Any]:
    """The reporters of these plugins. Raises UsageError for a missing one, UserError for a broken one."""
    registry = ReporterRegistry()
    for specifier in specifiers:
        found = _load(specifier)
        before = len(registry.reporters)
        try:
            _take(found, registry)
        except UserError:
            raise
        except Exception as error:
            # Other people's code runs here, and may raise anything.
            raise UserError(f"--reporter-plugin {specifier}: {type(error).__name__}: {error}") from error
        if len(registry.reporters) == before:
            raise UserError(
                f"--reporter-plugin {specifier} has no reporter: a class with one of {', '.join(METHODS)}, "
                "or a function register_reporters(registry) is expected."
            )
    return registry.reporters


def _load(specifier: str) -> Any:
    file, py, rest = specifier.partition(".py")
    if not py or (rest and not rest.startswith(":")):
        return plugins.load(specifier, group=GROUP)
    module = plugins.load_file(Path(f"{file}.py"))
    return getattr(module, rest[1:], None) if rest else module


def _take(found: Any, registry: ReporterRegistry) -> None:
    if isinstance(found, ModuleType):
        register = getattr(found, "register_reporters", None)
        if callable(register):
            register(registry)
            return
        for one in vars(found).values():
            own = inspect.isclass(one) and one.__module__ == found.__name__
            if own and any(callable(getattr(one, name, None)) for name in METHODS):
                registry.register(one)
    elif inspect.isfunction(found):
        found(registry)
    elif found is not None:
        registry.register(found)


@dataclass(slots=True)
class ReporterGroup:
    """Tells reporters what happens, and people when one of them fails."""

    reporters: list[Any]
    complain: Callable[[str], None]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What `.vally.yaml` says besides."""

    def run_started(self, evals: Sequence[SpecResult], run_id: str | None, name: str) -> None:
        """Everything is planned and stored; nothing has run."""
        about = [_about(one) for one in evals]
        source = {"tool": "valkyrie", "version": __version__}
        run: Json = {"runId": run_id, "name": name, "evals": about, "source": source}
        self._tell("on_run_start", {**run, "metadata": dict(self.metadata)})

    def stimulus_done(self, stimulus: StimulusResult, of: SpecResult) -> None:
        """All trials of a stimulus have ended."""
        for trial in stimulus.trials if self.reporters else ():
            item = {
                "id": trial_key(trial),
                "stimulus": stimulus.name,
                "prompt": stimulus.prompt,
                **_about(of),
            }
            self._tell("on_trial_result", {"item": item, "result": to_line(trial)})

    def run_completed(
        self, invocation: Invocation, artifacts: Mapping[str, Path], *, interrupted: bool
    ) -> None:
        """Everything ended, or somebody ended it; files are written."""
        status = "interrupted" if interrupted else "failed" if invocation.exit_code else "passed"
        plain = {key: str(path) for key, path in artifacts.items()}
        self._tell("on_run_complete", run_summary(invocation), plain, status)

    def _tell(self, method: str, *words: Any) -> None:
        for reporter in list(self.reporters):
            call = getattr(reporter, method, None)
            if not callable(call):
                continue
            try:
                call(*words)
            except Exception as error:  # noqa: BLE001 - other people's code, which the eval does not depend on
                self.reporters.remove(reporter)
                name = getattr(reporter, "name", None) or type(reporter).__name__
                self.complain(
                    f"The reporter {name} failed in {method} and is told nothing more: "
                    f"{type(error).__name__}: {error}"
                )


def _about(one: SpecResult) -> Json:
    return {
        "evalName": one.name,
        "evalFile": one.file,
        "variant": one.variant,
        "model": one.model,
        "executor": one.executor,
        "threshold": one.threshold,
    }

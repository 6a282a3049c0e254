"""Plugins that a project's `.vally.yaml` names: loaded where a spec uses them and the user trusts them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from valkyrie.agents.executors import is_known_executor
from valkyrie.benchmarks.eval_spec.opening import open_spec
from valkyrie.errors import UsageError
from valkyrie.evals.planning import UsedPlugins, first_options
from valkyrie.evals.request import EvalRequest
from valkyrie.grade.plugins import load_plugins
from valkyrie.grade.registry import known_types
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

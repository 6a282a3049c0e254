"""What a stimulus needs to be set up and graded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from valkyrie.benchmarks.eval_spec.options import EvalOptions
from valkyrie.grade.protocol import Asking, Need
from valkyrie.specs.model import EvalSpec, Stimulus

if TYPE_CHECKING:
    from valkyrie.grade.registry import MadeGrader

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
        from valkyrie.grade.registry import make_graders

        _check_project(options)
        known[key] = make_graders(
            stimulus, scoring=spec.scoring, plugins=options.grader_plugins, base=spec.folder
        )
    return known[key]


def _check_project(options: EvalOptions) -> None:
    """Raise UserError where plugins of the project were changed since the run was planned."""
    if options.project_file is None or not options.grader_plugins:
        return
    from valkyrie.specs.project import read_project
    from valkyrie.trust import check_unchanged

    if (code := read_project(Path(options.project_file)).code()) is not None:
        check_unchanged(code, options.project_digest)


def _made_for(spec: EvalSpec) -> _Made:
    """What is remembered of this very object."""
    _, known = _made.setdefault(id(spec), (spec, {}))
    if len(_made) > REMEMBERED:
        _made.popitem(last=False)
    return known


def all_needs(made: Iterable[MadeGrader]) -> frozenset[Need]:
    """What has to be there for all of them."""
    return frozenset(need for one in made for need in one.needs)


def asking_of(spec: EvalSpec, options: EvalOptions) -> Asking:
    """How judges are asked: as the command line says, else the spec."""
    defaults = spec.defaults
    return Asking(
        model=options.judge_model or defaults.judge_model,
        provider=defaults.judge_provider,
        reasoning_effort=options.judge_effort or defaults.judge_reasoning_effort,
        url=options.judge_url,
    )

"""Reading a spec as a command line wants it read."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from valkyrie import plugins
from valkyrie.benchmarks.eval_spec.options import EvalOptions
from valkyrie.errors import UsageError, UserError, ValkyrieError
from valkyrie.nouns import TaskSpec
from valkyrie.specs.model import Project
from valkyrie.specs.project import find_project
from valkyrie.specs.reading import Read, read_spec, read_text

PLUGINS = "valkyrie.evals"
"""Entry points of plugins that read foreign files."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A spec that was read, and what was worked out about its stimuli from its text alone."""

    read: Read
    digests: dict[str, str] = field(default_factory=dict)
    tasks: dict[tuple[str, str], TaskSpec] = field(default_factory=dict)
    """Stimuli without files as tasks, by the options they were described with and their names."""


_opened: OrderedDict[str, Opened] = OrderedDict()
"""The specs read last, by what makes them what they are: planning, storing and running read the same one."""
REMEMBERED = 64


def open_spec(file: Path, options: EvalOptions) -> Read:
    """The spec in a file, or what a plugin makes of it. Raises SpecError with everything that is wrong."""
    return opened_spec(file, options).read


def opened_spec(file: Path, options: EvalOptions) -> Opened:
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
        known = _opened[key] = Opened(_read(file, options, project))
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
    """What the plugin gives: the document of a spec, or its text."""
    import yaml

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

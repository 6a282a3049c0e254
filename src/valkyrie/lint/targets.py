"""What a path holds that can be checked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

from benchmark_runner.agent_bundle import CONTRACT_FILES
from valkyrie.benchmarks.discovery import is_task
from valkyrie.errors import UsageError
from valkyrie.permissions import outside
from valkyrie.specs.choosing import discover, suite_files
from valkyrie.specs.model import Project, SpecError
from valkyrie.specs.project import file_root, read_project

Kind = Literal["spec", "experiment", "project", "skill", "task", "benchmark", "agent"]
MAX_DEPTH = 8
PROJECT_FILES = (".vally.yaml", ".vally.yml")
_SPECS = ("eval.yaml", "eval.yml", "*.eval.yaml", "*.eval.yml")
_EXPERIMENTS = ("experiment.yaml", "experiment.yml", "*.experiment.yaml", "*.experiment.yml")
_HIDDEN_BUT_SEARCHED = (".github", ".claude", ".agents", ".copilot")
_NEVER = ("node_modules", "__pycache__", "vally-results", "vally-experiment-results", "results")
_TOP_KEY = re.compile(r"^([A-Za-z_]+):", re.MULTILINE)
_EXPERIMENT_KEYS = {"variants", "matrix", "vary", "evals"}


@dataclass(frozen=True, slots=True)
class Target:
    """One thing to check."""

    kind: Kind
    path: Path
    """A file of a spec, experiment or project; the folder of a skill, task, benchmark or agent."""


def targets_of(path: Path) -> list[Target]:
    """What `path` is, or what the folder holds. Raises UsageError when that is nothing."""
    if path.is_file():
        return [_of_file(path)]
    if not path.is_dir():
        raise UsageError(f"there is no {path}; name a spec, a skill, a task, an agent or a folder of them")
    found = list(dict.fromkeys(_below(path, 0, file_root(path))))
    found += _specs_by_other_names(found)
    if not found:
        raise UsageError(
            f"{path} holds nothing to check: no eval.yaml, .vally.yaml, SKILL.md, task.toml or "
            "contract.yaml. `valk init` writes a first eval"
        )
    return found


def specs_of(path: Path) -> list[Target]:
    """`--eval-spec`: the file itself, whatever its name, or the specs of a folder."""
    if path.is_file():
        return [Target("spec", path)]
    if not path.is_dir():
        raise UsageError(f"there is no eval spec {path}")
    found = [target for target in dict.fromkeys(_below(path, 0, file_root(path))) if target.kind == "spec"]
    if not found:
        raise UsageError(f"{path} holds no eval spec: no eval.yaml, and no file that ends in .eval.yaml")
    return found


def _specs_by_other_names(found: Sequence[Target]) -> list[Target]:
    """Specs that a project's `paths.evalFilenames` or a suite names, and the usual names do not."""
    already = {target.path.resolve() for target in found if target.kind == "spec"}
    more: dict[Path, Target] = {}
    for project in (target for target in found if target.kind == "project"):
        try:
            files = spec_files(read_project(project.path))
        except (SpecError, UsageError):
            continue  # said when the project itself is checked
        for file in files:
            near = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
            if file not in already:
                more.setdefault(file, Target("spec", near))
    return list(more.values())


def spec_files(project: Project) -> list[Path]:
    """All that a project finds by its paths, and those that only a suite lists."""
    found = dict.fromkeys(discover(project))
    for suite in project.suites.values():
        try:
            found |= dict.fromkeys(suite_files(project, suite))
        except UsageError:
            continue  # said where suites are looked at
    return list(found)


def _of_file(file: Path) -> Target:
    if file.name in PROJECT_FILES:
        return Target("project", file)
    if file.name == "SKILL.md":
        return Target("skill", file.parent)
    if file.name in CONTRACT_FILES:
        return Target("agent", file.parent)
    if file.name == "benchmark.toml":
        return Target("benchmark", file.parent)
    if file.name in ("task.toml", "instruction.md"):
        return Target("task", file.parent)
    if file.suffix in (".yaml", ".yml"):
        return Target(_kind_of_yaml(file), file)
    raise UsageError(
        f"{file} is nothing lint knows; it checks eval.yaml, .vally.yaml, experiment files, SKILL.md, "
        "task.toml and contract.yaml"
    )


def _kind_of_yaml(file: Path) -> Kind:
    """By its name, else by its keys; what is neither is read as a spec, which says what is missing."""
    if any(fnmatch(file.name, pattern) for pattern in _EXPERIMENTS):
        return "experiment"
    keys = set(_TOP_KEY.findall(file.read_text(encoding="utf-8", errors="replace")))
    return "experiment" if "stimuli" not in keys and keys & _EXPERIMENT_KEYS else "spec"


def _below(folder: Path, depth: int, root: Path) -> Iterator[Target]:
    """A skill, an agent and a task are whole things; only a skill may keep its evals inside."""
    files, folders = _entries(folder, root)
    if any(name in CONTRACT_FILES for name in files):
        yield Target("agent", folder)
        return
    if is_task(folder):
        yield Target("task", folder)
        return
    if "benchmark.toml" in files:
        yield Target("benchmark", folder)
        return
    if "SKILL.md" in files:
        yield Target("skill", folder)
    for name in files:
        if name in PROJECT_FILES:
            yield Target("project", folder / name)
        elif any(fnmatch(name, pattern) for pattern in _SPECS):
            yield Target("spec", folder / name)
        elif any(fnmatch(name, pattern) for pattern in _EXPERIMENTS):
            yield Target("experiment", folder / name)
    if depth < MAX_DEPTH:
        for name in folders:
            yield from _below(folder / name, depth + 1, root)


def _entries(folder: Path, root: Path) -> tuple[list[str], list[str]]:
    """Names of files and of the folders to look into, sorted; links to folders are not followed.

    A folder that may not be read holds nothing for us, and nor does a link that leads out of `root`.
    """
    files: list[str] = []
    folders: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if _searched(entry.name):
                        folders.append(entry.name)
                elif entry.is_file() and not (entry.is_symlink() and outside(Path(entry.path), root)):
                    files.append(entry.name)
    except OSError:
        return [], []
    return sorted(files), sorted(folders)


def _searched(name: str) -> bool:
    return name in _HIDDEN_BUT_SEARCHED or not (name.startswith(".") or name in _NEVER)

"""Find what a path holds that can be checked, and check each thing by what it is."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

from benchmark_runner.agent_bundle import CONTRACT_FILES
from benchmark_runner.agent_bundle.contract import load_contract
from benchmark_runner.agent_bundle.resolution import misspelt
from valkyrie.benchmarks.task_dir.benchmark import find_tasks, is_task, read_manifest
from valkyrie.benchmarks.task_dir.task import TaskDirectory
from valkyrie.benchmarks.task_dir.task_toml import stray_problem
from valkyrie.config.permissions import outside
from valkyrie.errors import UsageError, ValkyrieError
from valkyrie.evals.lint.rules import LintOptions, finding
from valkyrie.evals.lint.skills import lint_skill
from valkyrie.evals.lint.specs import lint_spec_file, missing_skills
from valkyrie.specs.experiment import VariantPlan, plan_experiment, read_experiment
from valkyrie.specs.model import EvalSpec, Finding, Project, SourceLocation, SpecError
from valkyrie.specs.project import discover, examine_project, file_root, fits, read_project, suite_files
from valkyrie.specs.reader import examine

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
class LintTarget:
    """One thing to check."""

    kind: Kind
    path: Path
    """A file of a spec, experiment or project; the folder of a skill, task, benchmark or agent."""


def targets_of(path: Path) -> list[LintTarget]:
    """Return what `path` is, or what the folder holds. Raises UsageError when that is nothing."""
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


def specs_of(path: Path) -> list[LintTarget]:
    """`--eval-spec`: the file itself, whatever its name, or the specs of a folder."""
    if path.is_file():
        return [LintTarget("spec", path)]
    if not path.is_dir():
        raise UsageError(f"there is no eval spec {path}")
    found = [target for target in dict.fromkeys(_below(path, 0, file_root(path))) if target.kind == "spec"]
    if not found:
        raise UsageError(f"{path} holds no eval spec: no eval.yaml, and no file that ends in .eval.yaml")
    return found


def _specs_by_other_names(found: Sequence[LintTarget]) -> list[LintTarget]:
    """Specs that a project's `paths.evalFilenames` or a suite names, and the usual names do not."""
    already = {target.path.resolve() for target in found if target.kind == "spec"}
    more: dict[Path, LintTarget] = {}
    for project in (target for target in found if target.kind == "project"):
        try:
            files = spec_files(read_project(project.path))
        except (SpecError, UsageError):
            continue  # said when the project itself is checked
        for file in files:
            near = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
            if file not in already:
                more.setdefault(file, LintTarget("spec", near))
    return list(more.values())


def spec_files(project: Project) -> list[Path]:
    """Return all that a project finds by its paths, and those that only a suite lists."""
    found = dict.fromkeys(discover(project))
    for suite in project.suites.values():
        try:
            found |= dict.fromkeys(suite_files(project, suite))
        except UsageError:
            continue  # said where suites are looked at
    return list(found)


def _of_file(file: Path) -> LintTarget:
    if file.name in PROJECT_FILES:
        return LintTarget("project", file)
    if file.name == "SKILL.md":
        return LintTarget("skill", file.parent)
    if file.name in CONTRACT_FILES:
        return LintTarget("agent", file.parent)
    if file.name == "benchmark.toml":
        return LintTarget("benchmark", file.parent)
    if file.name in ("task.toml", "instruction.md"):
        return LintTarget("task", file.parent)
    if file.suffix in (".yaml", ".yml"):
        return LintTarget(_kind_of_yaml(file), file)
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


def _below(folder: Path, depth: int, root: Path) -> Iterator[LintTarget]:
    """A skill, an agent and a task are whole things; only a skill may keep its evals inside."""
    files, folders = _entries(folder, root)
    if any(name in CONTRACT_FILES for name in files):
        yield LintTarget("agent", folder)
        return
    if is_task(folder):
        yield LintTarget("task", folder)
        return
    if "benchmark.toml" in files:
        yield LintTarget("benchmark", folder)
        return
    if "SKILL.md" in files:
        yield LintTarget("skill", folder)
    for name in files:
        if name in PROJECT_FILES:
            yield LintTarget("project", folder / name)
        elif any(fnmatch(name, pattern) for pattern in _SPECS):
            yield LintTarget("spec", folder / name)
        elif any(fnmatch(name, pattern) for pattern in _EXPERIMENTS):
            yield LintTarget("experiment", folder / name)
    if depth < MAX_DEPTH:
        for name in folders:
            yield from _below(folder / name, depth + 1, root)


def _entries(folder: Path, root: Path) -> tuple[list[str], list[str]]:
    """Return names of files and of the folders to look into, sorted; links to folders are not followed.

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


# Task directories, benchmarks and agents: their own readers say what is wrong, here it becomes findings.

_PLACED = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?::(?P<column>\d+))?: (?P<message>.*)")


def lint_task(folder: Path, task_id: str | None = None, root: Path | None = None) -> list[Finding]:
    """Return what keeps the task from running; `root` is the folder of its benchmark."""
    task = TaskDirectory(task_id or folder.resolve().name, folder, root=root)
    found: list[Finding] = []
    for problem in task.problems():
        at = problem.path if problem.path.exists() else folder
        message = problem.message.removeprefix(f"{problem.path}: ")
        found.append(finding("task", f"task {problem.task_id}: {message}", SourceLocation(at)))
    return found or _unknown_keys(task)


def _unknown_keys(task: TaskDirectory) -> list[Finding]:
    """Return what a run would note of a task that can run."""
    place = SourceLocation(task.folder / "task.toml")
    return [finding("unknown-key", f"task {task.id}: {text}", place) for text in task.parsed.warnings]


def lint_benchmark(folder: Path) -> list[Finding]:
    """Its manifest and all of its tasks."""
    manifest = folder / "benchmark.toml"
    try:
        tasks = find_tasks(folder)
    except ValkyrieError as error:
        return [finding("benchmark", str(error), SourceLocation(manifest if manifest.is_file() else folder))]
    found: list[Finding] = []
    try:
        if stray := stray_problem(manifest, folder):
            return [finding("benchmark", f"benchmark.toml {stray}", SourceLocation(folder))]
        read = read_manifest(folder)
        for dataset in read.dataset_names:
            read.choose(dataset, list(tasks), str(folder), read.name or folder.name)
    except ValkyrieError as error:
        message = str(error).removeprefix(f"{manifest}: ")
        found.append(finding("benchmark", message, SourceLocation(manifest)))
    return found + [one for task_id, path in tasks.items() for one in lint_task(path, task_id, folder)]


def lint_agent(folder: Path) -> list[Finding]:
    file = next(
        (folder / name for name in CONTRACT_FILES if (folder / name).is_file()), folder / CONTRACT_FILES[0]
    )
    try:
        contract = load_contract(folder)
    except ValkyrieError as error:
        return [_placed_in_folder(line, file) for line in str(error).splitlines() if line.strip()]
    return [finding("agent-notice", notice, SourceLocation(file)) for notice in misspelt(contract)]


def _placed_in_folder(line: str, file: Path) -> Finding:
    match = _PLACED.fullmatch(line)
    if match is None or not match["file"].endswith(file.name):
        return finding("agent-contract", line, SourceLocation(file))
    place = SourceLocation(file, int(match["line"]), int(match["column"] or 1))
    return finding("agent-contract", match["message"], place)


# `.vally.yaml` against the specs it speaks of: suites that choose nothing, names nobody uses.

ReadSpec = Callable[[Path], tuple[EvalSpec | None, list[Finding]]]
_NAMES_ENVIRONMENT = re.compile(
    r"""environment:\s*["']?([^"'\s{#][^"'#\n]*?)["']?\s*(?:#.*)?$""", re.MULTILINE
)


def lint_project(file: Path, read_spec: ReadSpec) -> list[Finding]:
    """Everything wrong with a project file; its specs are read for what spans them."""
    try:
        project, notes = examine_project(file)
        specs = {path: read_spec(path)[0] for path in spec_files(project)}
    except SpecError as error:
        return list(error.findings)
    except UsageError as error:
        return [*notes.findings, finding("outside-project", str(error), SourceLocation(file))]
    read = [spec for spec in specs.values() if spec is not None]
    return [
        *notes.findings,
        *_paths(project, file),
        *_environments(project, file, list(specs)),
        *_suites(project, file, read),
        *_tags(project, file, read),
        *_names(read),
    ]


def _paths(project: Project, file: Path) -> Iterator[Finding]:
    """Folders that were named and are not there; the defaults need not be."""
    written = file.read_text(encoding="utf-8", errors="replace")
    for path in (*project.evals, *project.skills):
        plain = path.rstrip("/")
        if (
            plain in written
            and not any(sign in path for sign in "*?{[")
            and not (project.folder / path).exists()
        ):
            message = f"`paths` names {path}, and there is no such folder; make it or mend the name"
            yield finding("project-path-missing", message, _place(file, written, plain))


def _environments(project: Project, file: Path, specs: Sequence[Path]) -> Iterator[Finding]:
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in specs]
    used = {name for text in texts for name in _NAMES_ENVIRONMENT.findall(text)}
    if any("$" in name for name in used):
        return  # which one is meant is said on the command line
    written = file.read_text(encoding="utf-8", errors="replace")
    for name in project.environments:
        if name not in used:
            message = f"no spec of the project names the environment {name!r}"
            yield finding("unused-environment", message, _place(file, written, f"{name}:"))


def _suites(project: Project, file: Path, specs: Sequence[EvalSpec]) -> Iterator[Finding]:
    written = file.read_text(encoding="utf-8", errors="replace")
    for name, suite in project.suites.items():
        place = _place(file, written, f"{name}:")
        try:
            files = {path.resolve() for path in suite_files(project, suite)}
        except UsageError as error:
            yield finding("suite-chooses-nothing", str(error), place)
            continue
        mine = [spec for spec in specs if spec.file.resolve() in files]
        if not any(fits(stimulus.tags, suite.filter or {}) for spec in mine for stimulus in spec.stimuli):
            message = f"suite {name!r} chooses no stimulus of {len(mine)} specs; mend its filter, or tag some"
            yield finding("suite-chooses-nothing", message, place)


def _tags(project: Project, file: Path, specs: Sequence[EvalSpec]) -> Iterator[Finding]:
    """Tags nobody filters by, where there are suites that filter at all."""
    asked = {key for suite in project.suites.values() for key in suite.filter or {}}
    if not asked:
        return
    there: dict[str, EvalSpec] = {}
    for spec in specs:
        for key in (*spec.tags, *(key for stimulus in spec.stimuli for key in stimulus.tags)):
            there.setdefault(key, spec)
    for key in sorted(set(there) - asked):
        message = f"no suite asks for the tag {key!r} (of {there[key].name}, for one)"
        yield finding("unused-tag", message, SourceLocation(file))


def _names(specs: Sequence[EvalSpec]) -> Iterator[Finding]:
    first: dict[str, EvalSpec] = {}
    for spec in specs:
        other = first.setdefault(spec.name, spec)
        if other is not spec:
            message = (
                f"the eval is called {spec.name!r}, and so is {other.file}; results cannot be told apart"
            )
            yield finding("duplicate-eval-name", message, SourceLocation(spec.file))


def _place(file: Path, written: str, words: str) -> SourceLocation:
    for number, line in enumerate(written.splitlines(), start=1):
        if words in line and not line.lstrip().startswith("#"):
            return SourceLocation(file, number, line.index(words) + 1)
    return SourceLocation(file)


# Check many things, each by what it is.


@dataclass(frozen=True, slots=True)
class LintResult:
    """One thing, and what is wrong with it."""

    target: LintTarget
    what: str
    """`eval spec, 3 stimuli`: for people."""
    findings: Sequence[Finding]


class Linter:
    """Checks targets; specs are read once, also for what spans several of them."""

    def __init__(self, options: LintOptions | None = None, ignore: Iterable[str] = ()) -> None:
        self._options = options or LintOptions()
        self._ignored = frozenset(ignore)
        self._specs: dict[Path, tuple[EvalSpec | None, list[Finding]]] = {}

    def check(self, targets: Sequence[LintTarget]) -> list[LintResult]:
        """Return every target, in order; each finding once."""
        for target in targets:
            if target.kind == "spec":
                self._spec(target.path)  # by the path that was given, before a project finds it by another
        checked: list[LintResult] = []
        told: set[Finding] = set()
        for target in targets:
            what, findings = self._check(target)
            fresh = [
                one for one in dict.fromkeys(findings) if one not in told and one.code not in self._ignored
            ]
            told.update(fresh)
            checked.append(LintResult(target, what, [_placed(one, target.path) for one in fresh]))
        return checked

    def _check(self, target: LintTarget) -> tuple[str, list[Finding]]:
        if target.kind == "spec":
            spec, findings = self._spec(target.path)
            count = len(spec.stimuli) if spec else 0
            return f"eval spec, {count} stimul{'us' if count == 1 else 'i'}", findings
        if target.kind == "project":
            return "project", lint_project(target.path, self._spec)
        if target.kind == "experiment":
            return "experiment", _lint_experiment(target.path, self._options)
        if target.kind == "skill":
            return "skill", lint_skill(target.path, self._options)
        of_folder: dict[str, Callable[[Path], list[Finding]]] = {
            "task": lint_task,
            "benchmark": lint_benchmark,
            "agent": lint_agent,
        }
        return target.kind, of_folder[target.kind](target.path)

    def _spec(self, file: Path) -> tuple[EvalSpec | None, list[Finding]]:
        key = file.resolve()
        if key not in self._specs:
            self._specs[key] = lint_spec_file(file, self._options)
        return self._specs[key]


def _lint_experiment(file: Path, options: LintOptions) -> list[Finding]:
    """The file, and whether it plans: evals that are there, no drift between variants."""
    found: list[Finding] = []
    try:
        experiment = read_experiment(file, params=options.params, allowed=options.allowed)
        found += experiment.findings
        for plan in plan_experiment(experiment, params=options.params, allowed=options.allowed):
            found += _lint_variant(plan, options)
    except SpecError as error:
        found += error.findings
    return list(dict.fromkeys(found))


def _lint_variant(plan: VariantPlan, options: LintOptions) -> list[Finding]:
    """Skills that only this variant has; the eval file itself says the rest."""
    spec, _ = examine(plan.eval_file, params=options.params, patch=plan.patch, allowed=options.allowed)
    return list(missing_skills(spec)) if spec else []


def _placed(found: Finding, path: Path) -> Finding:
    """Every finding belongs to some file, and is a sentence."""
    message = found.message if found.message.endswith((".", "?", "!")) else f"{found.message}."
    return Finding(found.code, found.severity, message, found.place or SourceLocation(path))

"""`.vally.yaml` against the specs it speaks of: suites that choose nothing, names nobody uses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from valkyrie.errors import UsageError
from valkyrie.lint.codes import finding
from valkyrie.lint.targets import spec_files
from valkyrie.specs.choosing import fits, suite_files
from valkyrie.specs.model import EvalSpec, Finding, Place, Project, SpecError
from valkyrie.specs.project import examine_project

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
        return [*notes.findings, finding("outside-project", str(error), Place(file))]
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
        yield finding("unused-tag", message, Place(file))


def _names(specs: Sequence[EvalSpec]) -> Iterator[Finding]:
    first: dict[str, EvalSpec] = {}
    for spec in specs:
        other = first.setdefault(spec.name, spec)
        if other is not spec:
            message = (
                f"the eval is called {spec.name!r}, and so is {other.file}; results cannot be told apart"
            )
            yield finding("duplicate-eval-name", message, Place(spec.file))


def _place(file: Path, written: str, words: str) -> Place:
    for number, line in enumerate(written.splitlines(), start=1):
        if words in line and not line.lstrip().startswith("#"):
            return Place(file, number, line.index(words) + 1)
    return Place(file)

"""Which evals: files found by the project's paths or a suite, stimuli chosen by their tags."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from valkyrie.errors import UsageError
from valkyrie.permissions import Allowance, outside
from valkyrie.specs.globs import Glob
from valkyrie.specs.model import EvalSpec, Project, Suite
from valkyrie.specs.project import file_root
from valkyrie.specs.reading import read_spec
from valkyrie.suggest import did_you_mean

Wanted = Mapping[str, tuple[str, ...]]
"""Tag → values: AND across tags, OR within values; `!value` excludes."""


def discover(project: Project, allow_paths: Sequence[str] = ()) -> list[Path]:
    """Every eval file below the project's `paths.evals`, in order."""
    return find_evals(project.evals, project, allow_paths=allow_paths)


def find_evals(
    patterns: Iterable[str], project: Project, folder: Path | None = None, allow_paths: Sequence[str] = ()
) -> list[Path]:
    """Files that these paths and globs name; a folder stands for the eval files below it.

    UsageError for one that leads out of the project to what is not among `allow_paths`.
    """
    found: set[Path] = set()
    roots = [file_root(folder or project.folder), *map(Path, allow_paths)]
    for pattern in patterns:
        absolute = pattern.startswith("/")
        start = Path("/") if absolute else folder or project.folder
        plain = takewhile(lambda part: not Glob(part).magic, Path(pattern).parts)
        _refuse_outside(pattern, start.joinpath(*plain), roots)
        for path in Glob(pattern).find(start):
            found.update(_eval_files(path, project) if path.is_dir() else [path])
    for path in found:
        _refuse_outside(str(path), path, roots)
    return sorted({path.resolve() for path in found})


def _refuse_outside(said: str, path: Path, roots: Sequence[Path]) -> None:
    """Raise UsageError for evals outside the project."""
    if (real := outside(path, *roots)) is not None:
        raise UsageError(
            f"{said} leads to {real}, outside the project ({roots[0]}). If evals may be taken from there: "
            f"--allow-path {shlex.quote(str(real))}. `valk trust FOLDER` says where a project without a "
            "repository begins."
        )


def _eval_files(folder: Path, project: Project) -> list[Path]:
    files = (path for name in project.eval_filenames for path in Glob(f"**/{name}").find(folder))
    return [file for file in files if file.is_file()]


def suite_of(project: Project, name: str) -> Suite:
    """A suite of the project by its name."""
    if name in project.suites:
        return project.suites[name]
    if project.file is None:
        raise UsageError(
            f"There is no suite {name!r}: no .vally.yaml in {project.folder} or above defines suites."
        )
    known = ", ".join(sorted(project.suites)) or "none"
    raise UsageError(
        f"There is no suite {name!r} in {project.file}.{did_you_mean(name, project.suites)} Known: {known}."
    )


def suite_files(project: Project, suite: Suite, allow_paths: Sequence[str] = ()) -> list[Path]:
    """The files of a suite: those it lists, or else all the project has."""
    if not suite.evals:
        return discover(project, allow_paths)
    for entry in suite.evals:
        if not Glob(entry).magic and not (project.folder / entry).exists():
            raise UsageError(
                f"Suite {suite.name!r} lists {entry}, which does not exist below {project.folder}."
            )
    files = find_evals(suite.evals, project, allow_paths=allow_paths)
    if not files:
        raise UsageError(f"Suite {suite.name!r} matches no eval file below {project.folder}.")
    return files


def parse_tags(given: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """`tier=smoke,full`, `cost=!llm`, `cost!=llm`; the same tag given again adds values."""
    wanted: dict[str, tuple[str, ...]] = {}
    for text in given:
        key, equals, listed = text.partition("=")
        negated = key.endswith("!")
        key = key.removesuffix("!").strip()
        values = [value.strip() for value in listed.split(",") if value.strip()]
        if not equals or not key or not values or "!" in values:
            raise UsageError(
                f"--tag {text!r} is not understood: write key=value, key=one,two or key=!value to leave out."
            )
        signed = [f"!{value.removeprefix('!')}" if negated else value for value in values]
        wanted[key] = (*wanted.get(key, ()), *signed)
    return wanted


def fits(tags: Mapping[str, Sequence[str]], wanted: Wanted) -> bool:
    """Whether something with these tags is wanted."""
    return all(_fits(tags.get(key, ()), values) for key, values in wanted.items())


def _fits(has: Sequence[str], values: Sequence[str]) -> bool:
    left_out = {value[1:] for value in values if value.startswith("!")}
    asked = [value for value in values if not value.startswith("!")]
    if left_out.intersection(has):
        return False
    return not asked or any(value in has for value in asked)


def choose(
    files: Iterable[Path],
    filters: Sequence[Wanted],
    params: Mapping[str, str] | None = None,
    project: Project | None = None,
    allowed: Allowance | None = None,
) -> list[tuple[Path, tuple[str, ...] | None]]:
    """Files with a stimulus that fits every filter, and the names of those that do; None is all of them."""
    chosen: list[tuple[Path, tuple[str, ...] | None]] = []
    for file in files:
        spec = read_spec(file, params=params, project=project, allowed=allowed).spec
        names = tuple(one.name for one in spec.stimuli if all(fits(one.tags, wanted) for wanted in filters))
        if names:
            chosen.append((file, None if len(names) == len(spec.stimuli) else names))
    return chosen


def choose_stimuli(specs: Iterable[EvalSpec], wanted: Wanted) -> list[EvalSpec]:
    """The specs with only the stimuli that fit; those with none are left out."""
    chosen = (
        replace(spec, stimuli=tuple(one for one in spec.stimuli if fits(one.tags, wanted))) for spec in specs
    )
    return [spec for spec in chosen if spec.stimuli]


def choose_suite(project: Project, suite: Suite, specs: Iterable[EvalSpec]) -> list[EvalSpec]:
    """What a suite takes of these specs: files first, then tags."""
    if suite.evals:
        listed = set(find_evals(suite.evals, project))
        specs = [spec for spec in specs if spec.file.resolve() in listed]
    return choose_stimuli(specs, suite.filter or {})

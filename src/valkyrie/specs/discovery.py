"""Find skills and evals: by the project's paths or a suite, and stimuli by their tags."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path

from valkyrie.config.permissions import Allowance, outside
from valkyrie.domain import Json
from valkyrie.errors import UsageError
from valkyrie.specs.fields import Fields, Notes
from valkyrie.specs.globs import Glob
from valkyrie.specs.model import EvalSpec, Finding, Project, SourceLocation, SpecError, Suite
from valkyrie.specs.project import file_root
from valkyrie.specs.reader import read_spec
from valkyrie.specs.yaml_places import MAX_BYTES, parse_yaml
from valkyrie.text import did_you_mean

SKILL_FILE = "SKILL.md"
MAX_NAME = 64
MAX_DESCRIPTION = 1024
MAX_DEPTH = 6
MAX_FOLDERS = 20_000
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_NOT_SKILLS = frozenset(("node_modules", "__pycache__"))


@dataclass(frozen=True, slots=True)
class Skill:
    """One skill."""

    name: str
    description: str
    folder: Path
    extra: Json = field(default_factory=dict)
    """Other keys of its front matter."""

    @property
    def file(self) -> Path:
        return self.folder / SKILL_FILE


def read_skill(folder: Path) -> Skill:
    """The skill in this folder (its SKILL.md may be named too). Raises SpecError."""
    skill, findings = examine_skill(folder)
    if errors := [finding for finding in findings if finding.severity == "error"]:
        raise SpecError(errors)
    if skill is None:
        raise AssertionError("a skill that cannot be read without an error")
    return skill


def examine_skill(folder: Path) -> tuple[Skill | None, list[Finding]]:
    """The skill, as far as it can be read, and everything wrong with its SKILL.md."""
    if folder.name == SKILL_FILE:
        folder = folder.parent
    file = folder / SKILL_FILE
    try:
        text = _text(folder, file)
        front, first_line = _front_matter(text, file)
        # Empty lines in front keep the places in messages those of the file.
        node = parse_yaml("\n" * (first_line - 1) + front, file)
    except SpecError as error:
        return None, list(error.findings)
    notes = Notes()
    fields = Fields(node, notes, "The front matter")
    name, description = fields.text("name"), fields.text("description")
    _check(fields, name, description)
    extra = {key: one.data() for key, one in (node.mapping or {}).items() if key not in fields.asked}
    return Skill(name or folder.name, description or "", folder, extra), notes.findings


def find_skills(folder: Path) -> list[Skill]:
    """Return every skill of a folder: the folder itself, or those below it. Raises SpecError when there is
    none."""
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise SpecError([Finding("missing-skill", "error", f"The skills folder {folder} {what}.")])
    skills, wrong = [], []
    for found in skill_folders(folder):
        skill, findings = examine_skill(found)
        wrong += [finding for finding in findings if finding.severity == "error"]
        if skill is not None:
            skills.append(skill)
    if wrong:
        raise SpecError(wrong)
    if not skills:
        message = f"No skill in {folder}: neither it nor a folder below it has a {SKILL_FILE}."
        raise SpecError([Finding("missing-skill", "error", message)])
    return skills


def skill_folders(folder: Path) -> list[Path]:
    """Folders with a SKILL.md: this one, or else those below it, in order."""
    if (folder / SKILL_FILE).is_file():
        return [folder]
    return sorted(_below(folder, MAX_DEPTH, [MAX_FOLDERS]))


def _below(folder: Path, depth: int, left: list[int]) -> Iterator[Path]:
    for child in sorted(folder.iterdir()):
        if child.is_symlink() or not child.is_dir() or child.name in _NOT_SKILLS or child.name == ".git":
            continue
        left[0] -= 1
        if left[0] < 0:
            message = f"More than {MAX_FOLDERS:,} folders to look for skills in: name a smaller one."
            raise SpecError([Finding("missing-skill", "error", message)])
        if (child / SKILL_FILE).is_file():
            yield child
        elif depth > 1:
            yield from _below(child, depth - 1, left)


def _text(folder: Path, file: Path) -> str:
    if not folder.is_dir():
        raise SpecError([Finding("missing-skill", "error", f"The skill's folder {folder} does not exist.")])
    if not file.is_file():
        raise SpecError(
            [Finding("missing-skill", "error", f"The skill's folder {folder} has no {SKILL_FILE}.")]
        )
    try:
        if file.stat().st_size > MAX_BYTES:
            raise SpecError(
                [Finding("too-large", "error", f"Larger than {MAX_BYTES >> 20} MiB.", SourceLocation(file))]
            )
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError([_bad(file, f"Not UTF-8 text: {error.reason}.")]) from None
    except OSError as error:
        raise SpecError([_bad(file, f"Cannot be read: {error.strerror}.")]) from None


def _front_matter(text: str, file: Path) -> tuple[str, int]:
    """Return what stands between the two `---` lines, and the line it begins on."""
    lines = text.splitlines()
    if not lines or lines[0].rstrip() != "---":
        raise SpecError(
            [_bad(file, "No front matter: the first line must be `---`, then `name:` and `description:`.")]
        )
    for at, line in enumerate(lines[1:], 1):
        if line.rstrip() == "---":
            return "\n".join(lines[1:at]), 2
    raise SpecError([_bad(file, "The front matter does not end: a second line `---` is missing.")])


def _bad(file: Path, message: str) -> Finding:
    return Finding("bad-skill", "error", message, SourceLocation(file))


def _check(fields: Fields, name: str | None, description: str | None) -> None:
    notes, node = fields.notes, fields.node
    if node.value is None or (fields.given and not name):
        notes.error("bad-skill", "The front matter has no `name`.", node)
    if node.value is None or (fields.given and not (description or "").strip()):
        notes.error("bad-skill", "The front matter has no `description`.", node)
    if name and (len(name) > MAX_NAME or not _NAME.fullmatch(name)):
        message = f"`name` must be lower-case words joined by hyphens, at most {MAX_NAME} characters."
        notes.error("bad-skill", message, fields.take("name"))
    if description and len(description) > MAX_DESCRIPTION:
        message = f"`description` has {len(description):,} characters, {MAX_DESCRIPTION:,} are allowed."
        notes.error("bad-skill", message, fields.take("description"))


# Which evals: files found by the project's paths or a suite, stimuli chosen by their tags.

Wanted = Mapping[str, tuple[str, ...]]
"""Tag → values: AND across tags, OR within values; `!value` excludes."""


def discover(project: Project, allow_paths: Sequence[str] = ()) -> list[Path]:
    """Return every eval file below the project's `paths.evals`, in order."""
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
    """Return whether something with these tags is wanted."""
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
    """Return what a suite takes of these specs: files first, then tags."""
    if suite.evals:
        listed = set(find_evals(suite.evals, project))
        specs = [spec for spec in specs if spec.file.resolve() in listed]
    return choose_stimuli(specs, suite.filter or {})

"""`.vally.yaml`, the skills and evals it names, and which files a spec may name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path

from valkyrie.config.permissions import outside
from valkyrie.domain import Json
from valkyrie.errors import UsageError
from valkyrie.specs.globs import Glob
from valkyrie.specs.model import (
    EvalSpec,
    Finding,
    GraderSpec,
    Project,
    SourceLocation,
    SpecError,
    Stimulus,
    Suite,
)
from valkyrie.specs.stimuli import read_environment
from valkyrie.specs.yaml_nodes import MAX_BYTES, Fields, Node, Notes, load_yaml, parse_yaml, texts_of
from valkyrie.text import did_you_mean
from valkyrie.trust import foreign_owner, home_folder, trust_state, trusted_projects

FILENAMES = (".vally.yaml", ".vally.yml")
PLUGIN_KINDS = {
    "graders": ("graders", "grader"),
    "executors": ("executors", "executor"),
    "evals": ("evals", "eval"),
    "reporters": ("reporters", "reporter"),
}
OTHERS = {
    "backend": "is not used here: the sandbox is chosen on the command line.",
}


def find_project(start: Path) -> Project:
    """Return the project around a folder; without a file everything is as by default, below `start`.

    The search ends at the top of the repository, or at the home folder: what lies above is somebody else's.
    """
    file = find_file(start)
    return read_project(file) if file else Project(file=None, folder=start.absolute())


def find_file(start: Path) -> Path | None:
    """Return the project file around a folder, not yet read."""
    start = start.absolute()
    for folder in (start, *start.parents):
        for name in FILENAMES:
            if (folder / name).is_file():
                return folder / name
        if _is_top(folder):
            break
    return None


def file_root(folder: Path) -> Path:
    """Return the folder that files of a project may come from.

    It is the top of the repository around `folder`, else the folder of the project's file, else the nearest
    folder that `valk trust` was told of, else `folder` itself.
    """
    folder = folder.resolve()
    named: Path | None = None
    for above in (folder, *folder.parents):
        if _has_repository(above) and above != home_folder():
            return above
        if named is None and any((above / name).is_file() for name in FILENAMES):
            named = above
        if _is_top(above):
            break
    if named is None:
        trusted = {one.folder for one in trusted_projects()}
        named = next((above for above in (folder, *folder.parents) if above in trusted), None)
    return named or folder


def _is_top(folder: Path) -> bool:
    """Return whether a search for files of a project ends here."""
    return _has_repository(folder) or folder.resolve() == home_folder()


def _has_repository(folder: Path) -> bool:
    try:
        return (folder / ".git").exists()
    except OSError:
        return False


def read_project(file: Path) -> Project:
    """Read this project file; raises SpecError with everything that is wrong.

    UsageError for a file of another user's, unless the project is trusted, and for a link that leaves.
    """
    file = file.absolute()
    if (real := outside(file, file.parent)) is not None:
        raise UsageError(f"{file} is a link to {real}, outside its folder; put the file itself there.")
    owner = foreign_owner(file)
    project, notes = examine_project(file)
    if owner is not None and ((code := project.code()) is None or trust_state(code) != "trusted"):
        raise UsageError(
            f"{file} belongs to {owner}, not to you, and is not read. "
            f"`valk trust {shlex.quote(str(file.parent))}` allows it."
        )
    notes.raise_errors()
    return project


def examine_project(file: Path) -> tuple[Project, Notes]:
    """The project, and what is wrong or doubtful about its file."""
    notes = Notes()
    usual = Project(file=None, folder=file.parent)
    fields = Fields(load_yaml(file), notes, file.name)
    paths = Fields(fields.take("paths") or Node(None, fields.node.place, file.parent), notes, "paths")
    project = Project(
        file=file.absolute(),
        folder=file.absolute().parent,
        skills=paths.texts("skills") or usual.skills,
        evals=paths.texts("evals") or usual.evals,
        results=paths.text("results"),
        eval_filenames=paths.texts("evalFilenames", "eval_filenames") or usual.eval_filenames,
        suites=_suites(fields.take("suites"), notes),
        environments=_environments(fields.take("environments"), notes),
        plugins=_plugins(fields.take("plugins"), notes),
        metadata=_metadata(fields.take("metadata"), fields),
    )
    paths.finish()
    fields.finish(others=OTHERS)
    return project, notes


def named_environment(project: Project, name: str) -> Json:
    """A named environment as a spec may hold it: working folders of MCP servers are the project's."""
    data = dict(project.environments[name])
    for key in ("mcpServers", "mcp_servers"):
        if isinstance(servers := data.get(key), dict):
            data[key] = {server: _placed(config, project.folder) for server, config in servers.items()}
    return data


def _placed(server: object, folder: Path) -> object:
    if isinstance(server, dict) and isinstance(server.get("cwd"), str):
        return {**server, "cwd": str((folder / server["cwd"]).resolve())}
    return server


def _environments(node: Node | None, notes: Notes) -> dict[str, Json]:
    if node is None:
        return {}
    found = Fields(node, notes, "environments")
    for name, one in (node.mapping or {}).items():
        # Read here for its faults alone; a spec that names it reads it again, against its own folder.
        read_environment(one, notes, f"environment {name!r}")
    return {name: one.data() or {} for name, one in (node.mapping or {}).items() if found.given}


def _suites(node: Node | None, notes: Notes) -> dict[str, Suite]:
    if node is None:
        return {}
    Fields(node, notes, "suites")
    return {name: _suite(name, one, notes) for name, one in (node.mapping or {}).items()}


def _suite(name: str, node: Node, notes: Notes) -> Suite:
    fields = Fields(node, notes, f"suite {name!r}")
    wanted = _filter(fields)
    evals = fields.texts("evals") or ()
    if wanted is None and not evals:
        message = f"suite {name!r} needs `filter` or `evals` (`filter: {{}}` takes everything)."
        notes.error("empty-suite", message, node)
    suite = Suite(name, fields.text("description") or "", wanted, evals)
    fields.finish(others={**OTHERS, "metadata": "is not used here."})
    return suite


def _filter(fields: Fields) -> dict[str, tuple[str, ...]] | None:
    """Tag → values. Some files put the tags one level deeper, below `tags`."""
    given = fields.take("filter")
    if given is None:
        return None
    if given.mapping is None:
        fields.wrong("filter", "a map such as {tier: smoke}", given)
        return {}
    tags = dict(given.mapping)
    if (inner := tags.get("tags")) is not None and inner.mapping is not None:
        tags = {**{key: value for key, value in tags.items() if key != "tags"}, **inner.mapping}
    return {key: texts_of(value, fields.notes, f"{fields.what}: tag `{key}`") for key, value in tags.items()}


def _metadata(node: Node | None, fields: Fields) -> Json:
    if node is None:
        return {}
    if node.mapping is None:
        fields.wrong("metadata", "a map", node)
        return {}
    found: Json = node.data()
    return found


def _plugins(node: Node | None, notes: Notes) -> dict[str, tuple[str, ...]]:
    if node is None:
        return {}
    fields = Fields(node, notes, "plugins")
    found = {kind: fields.texts(*names) for kind, names in PLUGIN_KINDS.items()}
    fields.finish()
    return {kind: specifiers for kind, specifiers in found.items() if specifiers}


# Which files of this machine a spec may name: those of its project, links followed.

_LOGIN = re.compile(r"extraheader|://[^/\s]*@|\[credential|\[include", re.IGNORECASE)


def outside_findings(spec: EvalSpec, roots: Sequence[Path]) -> Iterator[Finding]:
    """Yield an error for everything a spec names that lies in none of the `roots`."""
    named = [one for stimulus in spec.stimuli for one in _named(spec, stimulus)]
    executor = spec.defaults.executor or ""
    if executor.startswith("agent:") and ("/" in executor or executor in ("agent:.", "agent:..")):
        path = spec.folder / _expanded(executor.removeprefix("agent:"))
        named.append((path, f"executor: {executor}", spec.defaults.executor_place))
    yield from _keys_findings(spec, roots)
    told: set[tuple[str, SourceLocation | None]] = set()
    for path, what, place in named:
        if (what, place) in told or (real := _outside(path, roots)) is None:
            continue
        told.add((what, place))
        top = " `valk trust FOLDER` says where the project begins." if roots[0] == spec.folder else ""
        message = (
            f"{what} leads to {real}, outside the project ({roots[0]}). If a spec of this project may read "
            f"that: --allow-path {shlex.quote(str(real))}.{top}"
        )
        yield Finding("outside-project", "error", message, place)


def key_files(folder: Path) -> list[Path]:
    """Return the files at a folder that may hold keys of the user.

    They are `.env`, and a repository's config with a login: CI keeps the token it checked out with there.
    """
    found = [folder / ".env"]
    config = file_root(folder) / ".git" / "config"
    try:
        if config.is_file() and _LOGIN.search(config.read_text(encoding="utf-8", errors="replace")):
            found.append(config)
    except OSError:
        found.append(config)
    return found


def _keys_findings(spec: EvalSpec, roots: Sequence[Path]) -> Iterator[Finding]:
    """Yield an error for entries that would hand the user's keys to an agent."""
    there = [file for file in key_files(Path.cwd()) if file.is_file() and file.resolve() not in roots]
    if not there:
        return
    for stimulus in spec.stimuli:
        for entry in (*stimulus.environment.files, *stimulus.attachments, *stimulus.grading_files):
            for file in there:
                if outside(file, entry.source) is None:
                    message = (
                        f"files: {entry.src!r} holds {file}, where keys are kept; name what is needed of it, "
                        f"or let the spec have it: --allow-path {shlex.quote(str(file))}"
                    )
                    yield Finding("outside-project", "error", message, entry.place)


def _outside(path: Path, roots: Sequence[Path]) -> Path | None:
    """Return where a path leads that is there and in none of the `roots`; others say what is missing."""
    try:
        real = outside(path, *roots)
        return real if real is not None and real.exists() else None
    except (OSError, RuntimeError, ValueError):
        return None  # a loop of links, or no path at all: whoever opens it says so


def _named(spec: EvalSpec, stimulus: Stimulus) -> Iterator[tuple[Path, str, SourceLocation | None]]:
    environment = stimulus.environment
    files = [
        *((entry, "environment.files") for entry in environment.files),
        *((entry, "attachments") for entry in stimulus.attachments),
        *((entry, "grading_environment.files") for entry in stimulus.grading_files),
        *((entry, "golden_patch") for entry in (stimulus.golden_patch_file,) if entry is not None),
        *((entry, "golden_trajectory") for entry in (stimulus.golden_trajectory_file,) if entry is not None),
    ]
    for entry, what in files:
        yield entry.source, f"{what}: {entry.src!r}", entry.place
    for ref in environment.skills or ():
        yield ref.folder, f"environment.skills: {ref.path!r}", ref.place
        yield ref.folder / "SKILL.md", f"environment.skills: {ref.path!r}", ref.place
    if environment.git is not None and (path := environment.git.folder) is not None:
        yield path, f"environment.git: {environment.git.source!r}", environment.git.place
    for grader in stimulus.graders:
        if (named := _grader_file(grader)) is not None:
            folder = grader.place.file.parent if grader.place else spec.folder
            yield folder / named, f"{grader.label}: {named!r}", grader.place


def _expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)  # there is no such user


def _grader_file(grader: GraderSpec) -> str | None:
    """Return the file of this machine that a grader's config names."""
    key = {"json-schema": "schema", "expected-diff": "file"}.get(grader.type)
    found = grader.config.get(key) if key else None
    return found if isinstance(found, str) and found else None


# Skills: folders with a SKILL.md, whose front matter says what each is for.

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


def choose_stimuli(specs: Iterable[EvalSpec], wanted: Wanted) -> list[EvalSpec]:
    """The specs with only the stimuli that fit; those with none are left out."""
    chosen = (
        replace(spec, stimuli=tuple(one for one in spec.stimuli if fits(one.tags, wanted))) for spec in specs
    )
    return [spec for spec in chosen if spec.stimuli]

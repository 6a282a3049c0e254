"""The skills of a stimulus: which there are, and where they go in its workspace."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from valkyrie.benchmarks.eval_spec.options import EvalOptions
from valkyrie.benchmarks.eval_spec.staging import leaving_links
from valkyrie.specs.model import Finding, SkillRef, SpecError, Stimulus

if TYPE_CHECKING:
    from valkyrie.specs.skills import Skill

_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def skills_of(stimulus: Stimulus, options: EvalOptions) -> list[Skill]:
    """What the agent may load: the declared list, or else what is below `--skill-dir`.

    Raises SpecError for a skill that cannot be loaded: missing, without SKILL.md, or with a bad one.
    """
    declared = stimulus.environment.skills
    if declared is not None:
        found = _read_all(declared)
    elif options.skill_dir is not None:
        found = _find_all(Path(options.skill_dir))
    else:
        return []
    if wrong := list(_wrong(found, stimulus)):
        raise SpecError(wrong)
    return found


def skill_places(skills: Sequence[Skill], options: EvalOptions) -> Iterator[tuple[Path, str]]:
    """Skills as (what, where below the workspace)."""
    for skill in skills:
        yield skill.folder, f"{options.skills_at.strip('/')}/{skill.name}"


def skill_problems(stimulus: Stimulus, options: EvalOptions) -> Iterator[Finding]:
    """What keeps skills from being loaded."""
    place = stimulus.environment.place or stimulus.place
    try:
        skills = skills_of(stimulus, options)
    except SpecError as error:
        yield from error.findings
        return
    for skill in skills:
        if link := next(leaving_links(skill.folder), None):
            message = f"skill {skill.name!r} holds the link {link}, which leads out of it; copy that instead"
            yield Finding("skill-link-outside", "error", message, place)


def _find_all(folder: Path) -> list[Skill]:
    from valkyrie.specs.skills import find_skills, skill_folders

    folders = list(skill_folders(folder)) if folder.is_dir() else []
    # Where there is none, the finder has the words for it.
    return _read_all([SkillRef(str(one), one) for one in folders]) if folders else find_skills(folder)


def _read_all(declared: Sequence[SkillRef]) -> list[Skill]:
    found, wrong = [], []
    for one in declared:
        try:
            found.append(_read(one))
        except SpecError as error:
            # What is missing has no place of its own: then it is the line that names it.
            wrong += [replace(finding, place=finding.place or one.place) for finding in error.findings]
    if wrong:
        raise SpecError(wrong)
    return found


@lru_cache(maxsize=256)
def _known(folder: Path, _changed_ns: int, _inode: int) -> Skill:
    """A skill read once for all trials, as long as its SKILL.md stays the same."""
    from valkyrie.specs.skills import read_skill

    return read_skill(folder)


def _read(declared: SkillRef) -> Skill:
    from valkyrie.specs.skills import SKILL_FILE, read_skill

    file = declared.folder / SKILL_FILE
    if not file.is_file():
        return read_skill(declared.folder)
    info = file.stat()
    return _known(declared.folder, info.st_mtime_ns, info.st_ino)


def _wrong(skills: Sequence[Skill], stimulus: Stimulus) -> Iterator[Finding]:
    place = stimulus.environment.place or stimulus.place
    seen: dict[str, Path] = {}
    for skill in skills:
        if not _FOLDER_NAME.fullmatch(skill.name):
            yield Finding(
                "skill-name", "error", f"{skill.name!r} is no name a skill's folder can have", place
            )
        earlier = seen.setdefault(skill.name, skill.folder)
        if earlier.resolve() != skill.folder.resolve():
            message = f"two skills are called {skill.name!r}: {earlier} and {skill.folder}; rename one"
            yield Finding("duplicate-skill", "error", message, place)

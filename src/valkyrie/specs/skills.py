"""Skills: folders with a SKILL.md whose front matter says what they are called and when to use them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from valkyrie.nouns import Json
from valkyrie.specs.fields import Fields, Notes
from valkyrie.specs.model import Finding, Place, SpecError
from valkyrie.specs.yaml_places import MAX_BYTES, parse_yaml

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
    """Every skill of a folder: the folder itself, or those below it. Raises SpecError when there is none."""
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
                [Finding("too-large", "error", f"Larger than {MAX_BYTES >> 20} MiB.", Place(file))]
            )
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError([_bad(file, f"Not UTF-8 text: {error.reason}.")]) from None
    except OSError as error:
        raise SpecError([_bad(file, f"Cannot be read: {error.strerror}.")]) from None


def _front_matter(text: str, file: Path) -> tuple[str, int]:
    """What stands between the two `---` lines, and the line it begins on."""
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
    return Finding("bad-skill", "error", message, Place(file))


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

"""A skill: SKILL.md, what it links to, and what nothing links to."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from valkyrie.lint.codes import finding
from valkyrie.lint.markdown import Reference, references
from valkyrie.lint.options import LintOptions
from valkyrie.lint.outside import outside_findings
from valkyrie.permissions import outside
from valkyrie.specs.model import Finding, Place
from valkyrie.specs.project import file_root
from valkyrie.specs.skills import SKILL_FILE, examine_skill

MAX_LINES = 500
"""A skill is read whole into an agent's context; details belong into files it links to."""
MAX_FILE_BYTES = 1024 * 1024
MAX_FILES = 2000
_NOT_FOR_AGENTS = ("readme", "license", "changelog", "notice", "contributing")


def lint_skill(folder: Path, options: LintOptions | None = None) -> list[Finding]:
    """Everything wrong with the skill in `folder`."""
    options = options or LintOptions()
    file = folder / SKILL_FILE
    skill, read = examine_skill(folder)
    found = list(read)
    if skill is not None and skill.name != folder.resolve().name:
        message = (
            f"the skill is called {skill.name!r}, its folder {folder.resolve().name!r}; some agents go "
            "by one and some by the other, so give both the same name"
        )
        found.append(finding("skill-name-differs", message, _key_place(file, "name")))
    text = _read(file)
    if text is None:
        return found
    found += _size_findings(file, text)
    pages = _pages(folder)
    for page, content in pages.items():
        found += _link_findings(folder, page, content)
        found += outside_findings(folder, page, content, options)
    found += _orphans(folder, pages)
    return found


def _key_place(file: Path, key: str) -> Place:
    lines = (_read(file) or "").splitlines()
    at = next((number for number, line in enumerate(lines, 1) if line.startswith(f"{key}:")), 1)
    return Place(file, at)


def _read(file: Path) -> str | None:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            return None
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _size_findings(file: Path, text: str) -> Iterator[Finding]:
    lines = text.splitlines()
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), 0)
    body = lines[end + 1 :] if lines and lines[0].rstrip() == "---" else lines
    if not any(line.strip() for line in body):
        message = "says nothing below its frontmatter; write down what the agent is to do"
        yield finding("skill-empty", message, Place(file, len(lines) or 1))
    if len(body) > MAX_LINES:
        message = (
            f"has {len(body)} lines, more than {MAX_LINES}; an agent reads all of it. Move details into "
            "files it links to"
        )
        yield finding("skill-too-long", message, Place(file, end + MAX_LINES + 1))


def _pages(folder: Path) -> dict[Path, str]:
    """Every Markdown file of the skill, SKILL.md first."""
    files = sorted(_files(folder), key=lambda file: (file != folder / SKILL_FILE, file))
    texts = ((file, _read(file)) for file in files if file.suffix.lower() == ".md")
    return {file: text for file, text in texts if text is not None}


def _files(folder: Path) -> list[Path]:
    """Return the files of a skill; links that lead out of its project are not followed."""
    found: list[Path] = []
    root = file_root(folder)
    for base, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "node_modules")
        if Path(base) != folder and SKILL_FILE in names:  # a skill of its own
            folders[:] = []
            continue
        here = [Path(base) / name for name in names if not name.startswith(".")]
        found += [path for path in here if not (path.is_symlink() and outside(path, root))]
        if len(found) > MAX_FILES:
            break
    return found[:MAX_FILES]


def _link_findings(folder: Path, page: Path, text: str) -> Iterator[Finding]:
    root = folder.resolve()
    for reference in references(text):
        target = _target(folder, page, reference)
        if target is None:
            continue
        place = Place(page, reference.line, reference.column)
        if not _exists(target):
            message = f"{reference.target} is not there; write it, or mend the link"
            yield finding("skill-broken-link", message, place)
        elif not target.resolve().is_relative_to(root):
            message = (
                f"{reference.target} is outside the skill's folder, and only that folder is given to an "
                "agent; move it in"
            )
            yield finding("skill-reference-outside", message, place)


def _target(folder: Path, page: Path, reference: Reference) -> Path | None:
    path = reference.path
    if path is None or "\0" in path:
        return None
    return folder / path.lstrip("/") if path.startswith("/") else page.parent / path


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False  # a name no file can have


def _orphans(folder: Path, pages: dict[Path, str]) -> Iterator[Finding]:
    """Pages, and files below `references/`, that no page which is itself reachable mentions."""
    main = folder / SKILL_FILE
    waiting = {file for file in _files(folder) if file != main and _meant_for_agents(folder, file)}
    reading = [main]
    while reading and waiting:
        page = reading.pop()
        mentioned = {file for file in waiting if _mentions(folder, page, pages.get(page, ""), file)}
        waiting -= mentioned
        reading += [file for file in mentioned if file in pages]
    for file in sorted(waiting):
        message = (
            f"nothing reachable from SKILL.md mentions {file.relative_to(folder)}, so no agent will read it; "
            "link to it or remove it"
        )
        yield finding("skill-orphan-file", message, Place(file))


def _meant_for_agents(folder: Path, file: Path) -> bool:
    parts = file.relative_to(folder).parts
    if parts[0] in ("references", "reference"):
        return True
    return file.suffix.lower() == ".md" and not file.stem.lower().startswith(_NOT_FOR_AGENTS)


def _mentions(folder: Path, page: Path, text: str, file: Path) -> bool:
    """By its name, or by a folder around it that is named as a whole."""
    if file.name in text:
        return True
    around = [parent for parent in file.parents if parent != folder and parent.is_relative_to(folder)]
    names = {
        parent.relative_to(place).as_posix()
        for parent in around
        for place in (folder, page.parent)
        if parent.is_relative_to(place) and parent != place
    }
    return any(re.search(rf"{re.escape(name)}/(?!\w)", text) for name in names)

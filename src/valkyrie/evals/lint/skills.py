"""Check a skill: SKILL.md, what it links to, what nothing links to, and what it needs outside itself."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from valkyrie.config.permissions import outside
from valkyrie.evals.lint.rules import LintOptions, finding
from valkyrie.specs.model import Finding, SourceLocation
from valkyrie.specs.project import SKILL_FILE, examine_skill, file_root

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_INLINE_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
_LINK = re.compile(
    r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(\s*(<[^<>]*>|[^\s()]*(?:\([^\s()]*\)[^\s()]*)*)[^()]*\)"
)
_DEFINITION = re.compile(r"^ {0,3}\[[^\]]+\]:\s*(<[^<>]*>|\S+)")
_URL = re.compile(r"https?://[^\s<>\"'`\])}]+", re.IGNORECASE)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True, slots=True)
class Reference:
    """One link, as written."""

    target: str
    line: int
    column: int

    @property
    def path(self) -> str | None:
        """The path it names, without `?query` and `#fragment`; None where it names none."""
        if _SCHEME.match(self.target) or self.target.startswith("//"):
            return None
        return unquote(re.split(r"[?#]", self.target, maxsplit=1)[0]) or None


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, code blanked out so that columns stay."""
    fence = ""
    for number, line in enumerate(text.splitlines(), start=1):
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line[mark.end() :].strip():
                fence = ""
            continue
        if mark:
            fence = mark[1]
            continue
        yield number, _INLINE_CODE.sub(lambda code: " " * len(code[0]), line)


def references(text: str) -> Iterator[Reference]:
    """Links, images and link definitions, in order."""
    for number, line in prose(text):
        for pattern in (_DEFINITION, _LINK):
            for match in pattern.finditer(line):
                target = match[1].removeprefix("<").removesuffix(">")
                if target:
                    yield Reference(target, number, match.start(1) + 1)


def addresses(text: str) -> Iterator[Reference]:
    """Yield every http(s) address, in code too: an agent follows those as well."""
    for number, line in enumerate(text.splitlines(), start=1):
        for match in _URL.finditer(line):
            yield Reference(match[0].rstrip(".,;:!?*_"), number, match.start() + 1)


# What a skill leans on outside itself: addresses, scripts, other skills, tools.

_TOOL = re.compile(r"#tool:[A-Za-z0-9_./-]+")
_INVOKES = re.compile(r"\bINVOKES\b")
_SCRIPTS = (".sh", ".bash", ".ps1", ".py", ".js", ".mjs", ".ts", ".rb", ".pl", ".cmd", ".bat", ".exe")


def outside_findings(folder: Path, page: Path, text: str, options: LintOptions) -> Iterator[Finding]:
    """Addresses that are not known and dependencies that are not allowed, where lists of them were given."""
    if options.known_domains is not None:
        yield from _addresses(page, text, options.known_domains)
    if options.allowed_deps is not None:
        for name, place in _dependencies(folder, page, text):
            if name not in options.allowed_deps:
                message = (
                    f"the skill depends on something outside its text: {name}. Remove it, or add that line "
                    "to the file of --allowed-external-deps"
                )
                yield finding("skill-external-dependency", message, place)


def _addresses(page: Path, text: str, known: tuple[str, ...]) -> Iterator[Finding]:
    for reference in addresses(text):
        if not any(_covers(entry, reference.target) for entry in known):
            message = (
                f"{_host(reference.target)} is not among the known domains; check {reference.target} and add "
                "it to the file of --known-domains"
            )
            yield finding(
                "skill-unknown-domain", message, SourceLocation(page, reference.line, reference.column)
            )


def _host(address: str) -> str:
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""


def _covers(entry: str, address: str) -> bool:
    """A bare domain covers itself and its subdomains; one with a path, that path and what is below."""
    if "/" not in entry:
        host = _host(address)
        return host == entry.lower() or host.endswith(f".{entry.lower()}")
    rest = address.split("://", 1)[-1].removeprefix("www.").lower()
    start = entry.rstrip("/").lower()
    return rest == start or rest.startswith((f"{start}/", f"{start}?", f"{start}#"))


def _dependencies(folder: Path, page: Path, text: str) -> Iterator[tuple[str, SourceLocation]]:
    """Each as a line of the allow list: `script:SKILL:path`, `invokes:SKILL`, `tool-ref:SKILL:#tool:X`."""
    skill = folder.resolve().name
    for number, line in prose(text):
        for match in _TOOL.finditer(line):
            yield f"tool-ref:{skill}:{match[0].rstrip('.')}", SourceLocation(page, number, match.start() + 1)
    if page != folder / "SKILL.md":
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if number > 1 and line.rstrip() == "---":
            break
        if invokes := _INVOKES.search(line):
            yield f"invokes:{skill}", SourceLocation(page, number, invokes.start() + 1)
    scripts = folder / "scripts"
    for file in sorted(scripts.rglob("*")) if scripts.is_dir() else ():
        if file.suffix.lower() in _SCRIPTS and file.is_file():
            yield f"script:{skill}:{file.relative_to(folder).as_posix()}", SourceLocation(file)


# A skill: SKILL.md, what it links to, and what nothing links to.

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


def _key_place(file: Path, key: str) -> SourceLocation:
    lines = (_read(file) or "").splitlines()
    at = next((number for number, line in enumerate(lines, 1) if line.startswith(f"{key}:")), 1)
    return SourceLocation(file, at)


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
        yield finding("skill-empty", message, SourceLocation(file, len(lines) or 1))
    if len(body) > MAX_LINES:
        message = (
            f"has {len(body)} lines, more than {MAX_LINES}; an agent reads all of it. Move details into "
            "files it links to"
        )
        yield finding("skill-too-long", message, SourceLocation(file, end + MAX_LINES + 1))


def _pages(folder: Path) -> dict[Path, str]:
    """Return every Markdown file of the skill, SKILL.md first."""
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
        place = SourceLocation(page, reference.line, reference.column)
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
        yield finding("skill-orphan-file", message, SourceLocation(file))


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

"""What a skill leans on outside itself: addresses, scripts, other skills, tools."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from valkyrie.lint.codes import finding
from valkyrie.lint.markdown import addresses, prose
from valkyrie.lint.options import LintOptions
from valkyrie.specs.model import Finding, Place

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
            yield finding("skill-unknown-domain", message, Place(page, reference.line, reference.column))


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


def _dependencies(folder: Path, page: Path, text: str) -> Iterator[tuple[str, Place]]:
    """Each as a line of the allow list: `script:SKILL:path`, `invokes:SKILL`, `tool-ref:SKILL:#tool:X`."""
    skill = folder.resolve().name
    for number, line in prose(text):
        for match in _TOOL.finditer(line):
            yield f"tool-ref:{skill}:{match[0].rstrip('.')}", Place(page, number, match.start() + 1)
    if page != folder / "SKILL.md":
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if number > 1 and line.rstrip() == "---":
            break
        if invokes := _INVOKES.search(line):
            yield f"invokes:{skill}", Place(page, number, invokes.start() + 1)
    scripts = folder / "scripts"
    for file in sorted(scripts.rglob("*")) if scripts.is_dir() else ():
        if file.suffix.lower() in _SCRIPTS and file.is_file():
            yield f"script:{skill}:{file.relative_to(folder).as_posix()}", Place(file)

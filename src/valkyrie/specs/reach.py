"""Which files of this machine a spec may name: those of its project, links followed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from valkyrie.permissions import outside
from valkyrie.specs.model import EvalSpec, Finding, GitSource, GraderSpec, Place, Stimulus


def outside_findings(spec: EvalSpec, roots: Sequence[Path]) -> Iterator[Finding]:
    """Yield an error for everything a spec names that lies in none of the `roots`."""
    named = [one for stimulus in spec.stimuli for one in _named(spec, stimulus)]
    executor = spec.defaults.executor or ""
    if executor.startswith("agent:") and "/" in executor:
        path = spec.folder / Path(executor.removeprefix("agent:")).expanduser()
        named.append((path, f"executor: {executor}", spec.defaults.executor_place))
    seen: set[tuple[Path, Place | None]] = set()
    for path, what, place in named:
        if (path, place) in seen:
            continue
        seen.add((path, place))
        if (real := _outside(path, roots)) is not None:
            message = (
                f"{what} leads to {real}, outside the project ({roots[0]}). If a spec of this project may "
                f"read that: --allow-path {shlex.quote(str(real))}."
            )
            yield Finding("outside-project", "error", message, place)


def _outside(path: Path, roots: Sequence[Path]) -> Path | None:
    try:
        return outside(path, *roots)
    except (OSError, RuntimeError, ValueError):
        return None  # a loop of links, or no path at all: whoever opens it says so


def _named(spec: EvalSpec, stimulus: Stimulus) -> Iterator[tuple[Path, str, Place | None]]:
    environment = stimulus.environment
    files = [
        *((entry, "environment.files") for entry in environment.files),
        *((entry, "attachments") for entry in stimulus.attachments),
        *((entry, "grading_environment.files") for entry in stimulus.grading_files),
        *((entry, "golden_patch") for entry in (stimulus.golden_patch_file,) if entry is not None),
    ]
    for entry, what in files:
        yield entry.source, f"{what}: {entry.src!r}", entry.place
    for ref in environment.skills or ():
        yield ref.folder / "SKILL.md", f"environment.skills: {ref.path!r}", ref.place
        yield ref.folder, f"environment.skills: {ref.path!r}", ref.place
    if environment.git is not None and (path := _repository(environment.git)) is not None:
        yield path, f"environment.git: {environment.git.source!r}", environment.git.place
    for grader in stimulus.graders:
        if (named := _grader_file(grader)) is not None:
            folder = grader.place.file.parent if grader.place else spec.folder
            yield folder / named, f"{grader.label}: {named!r}", grader.place


def _repository(source: GitSource) -> Path | None:
    """Return the folder a repository is in; None for one that is fetched from another machine."""
    text = source.source
    if text.startswith("file:"):
        return Path("/", text.removeprefix("file:").lstrip("/"))
    if "://" in text or (source.type == "clone" and ":" in text.partition("/")[0]):
        return None
    return source.base / Path(text).expanduser()


def _grader_file(grader: GraderSpec) -> str | None:
    """Return the file of this machine that a grader's config names."""
    found = grader.config.get("schema" if grader.type.startswith("json") else "file")
    if not isinstance(found, str) or not grader.type.startswith(("json", "diff")):
        return None
    return found or None

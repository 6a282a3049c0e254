"""Which files of this machine a spec may name: those of its project, links followed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from valkyrie.permissions import outside
from valkyrie.specs.model import EvalSpec, Finding, GraderSpec, Place, Stimulus
from valkyrie.specs.project import file_root

_LOGIN = re.compile(r"extraheader|://[^/\s]*@|\[credential|\[include", re.IGNORECASE)


def outside_findings(spec: EvalSpec, roots: Sequence[Path]) -> Iterator[Finding]:
    """Yield an error for everything a spec names that lies in none of the `roots`."""
    named = [one for stimulus in spec.stimuli for one in _named(spec, stimulus)]
    executor = spec.defaults.executor or ""
    if executor.startswith("agent:") and ("/" in executor or executor in ("agent:.", "agent:..")):
        path = spec.folder / _expanded(executor.removeprefix("agent:"))
        named.append((path, f"executor: {executor}", spec.defaults.executor_place))
    yield from _keys_findings(spec, roots)
    told: set[tuple[str, Place | None]] = set()
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


def _named(spec: EvalSpec, stimulus: Stimulus) -> Iterator[tuple[Path, str, Place | None]]:
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

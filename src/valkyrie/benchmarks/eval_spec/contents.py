"""One digest over everything a stimulus' workspace is made of, so that a later run notices what changed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from valkyrie.benchmarks.content import ContentDigests
from valkyrie.benchmarks.eval_spec.git_staging import commit_of, git_dir_of
from valkyrie.benchmarks.eval_spec.options import EvalOptions
from valkyrie.benchmarks.eval_spec.skills_staging import skills_of
from valkyrie.digest import content_digest as digest_of
from valkyrie.specs.model import FileEntry, Stimulus

_REF = re.compile(r"ref: (refs/[^\x00-\x20]+)\s*")


def content_digest(stimulus: Stimulus, options: EvalOptions, digests: ContentDigests | None = None) -> str:
    """Over the contents of files and skills, and the commit of a repository.

    Of `--work-dir` only the commit it is at counts: people work in it, and evals write their results there.
    """
    known = digests or ContentDigests()
    git = stimulus.environment.git
    work_dir = options.work_dir if stimulus.environment.empty else None
    return digest_of(
        {
            "files": _digests(stimulus.environment.files, known),
            "attachments": _digests(stimulus.attachments, known),
            "grading": _digests(stimulus.grading_files, known),
            "skills": [[skill.name, known.whole(skill.folder)] for skill in skills_of(stimulus, options)],
            "git": commit_of(git) if git else None,
            "work_dir": head_of(Path(work_dir)) if work_dir else None,
        }
    )


def _digests(entries: Iterable[FileEntry], known: ContentDigests) -> list[list[str]]:
    return [[entry.dest, _digest(entry.source, known)] for entry in entries]


def _digest(path: Path, known: ContentDigests) -> str:
    if path.is_dir():
        return known.whole(path)
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{content} {'x' if path.stat().st_mode & 0o100 else '-'}"


def head_of(folder: Path) -> str | None:
    """The commit a repository is at, read from its files: too cheap to ask git; None where there is none."""
    git_dir = git_dir_of(folder)
    try:
        head = (git_dir / "HEAD").read_text("utf-8", "replace") if git_dir else ""
        match = _REF.fullmatch(head)
        if git_dir is None or match is None:
            return head.strip() or None
        common = git_dir / "commondir"
        home = git_dir / common.read_text("utf-8").strip() if common.is_file() else git_dir
        loose = home / match[1]
        if loose.is_file():
            return loose.read_text("utf-8").strip()
        packed = (home / "packed-refs").read_text("utf-8", "replace")
    except OSError:
        return None
    return next((line.split()[0] for line in packed.splitlines() if line.endswith(f" {match[1]}")), None)

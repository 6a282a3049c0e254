"""One digest over everything a stimulus' workspace is made of, so that a later run notices what changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from valkyrie.benchmarks.content import ContentDigests
from valkyrie.benchmarks.eval_spec.git_staging import commit_of
from valkyrie.benchmarks.eval_spec.options import EvalOptions
from valkyrie.benchmarks.eval_spec.skills_staging import skills_of
from valkyrie.digest import content_digest as digest_of
from valkyrie.git.local import head_of
from valkyrie.specs.model import FileEntry, Stimulus


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

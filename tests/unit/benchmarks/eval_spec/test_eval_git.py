"""Workspaces that start from a repository."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxes.protocol import Sandbox
from tests.git_repository import git
from tests.unit.benchmarks.eval_spec.stimulus_attempt import StimulusAttempt, write
from valkyrie.benchmarks.eval_spec import workspace
from valkyrie.benchmarks.eval_spec.layout import Checkouts
from valkyrie.benchmarks.eval_spec.source import EvalOptions
from valkyrie.errors import UsageError
from valkyrie.git.local import head_of
from valkyrie.specs.model import WorkspaceRepository


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A repository with two commits on `main`, one more on `next`, and a hook that must not run."""
    folder = write(tmp_path / "source", {"a.txt": "one\n", "docs/d.md": "d\n", "lib/l.py": "l\n"})
    git(folder, "init", "--quiet", "--initial-branch=main", "--template=")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=one")
    (folder / "a.txt").write_text("two\n")
    git(folder, "commit", "--quiet", "--all", "--message=two")
    git(folder, "checkout", "--quiet", "-b", "next")
    (folder / "a.txt").write_text("three\n")
    git(folder, "commit", "--quiet", "--all", "--message=three")
    git(folder, "checkout", "--quiet", "main")
    hook = write(folder / ".git/hooks", {"post-checkout": f"#!/bin/sh\ntouch {tmp_path}/executed\n"})
    (hook / "post-checkout").chmod(0o755)
    return folder


def state(folder: Path) -> dict[str, object]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in (folder, *folder.rglob("*"))
    }


async def in_workspace(sandbox: Sandbox, script: str) -> str:
    done = await sandbox.exec(f"cd /workspace && {script}")
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("kind", ["worktree", "clone"])
async def test_a_workspace_with_a_repository_of_its_own(
    attempt: StimulusAttempt, sandbox: Sandbox, source: Path, kind: str, tmp_path: Path
) -> None:
    before = state(source)
    attempt.set_up_with({}, git=WorkspaceRepository(kind, "../source", attempt.base, ref="next"))  # type: ignore[arg-type]
    assert attempt.problems() == []
    await attempt.prepare(sandbox)
    assert await in_workspace(sandbox, "cat a.txt; git status --short; git branch --show-current") == (
        "three\nnext\n"
    )
    assert await in_workspace(sandbox, "git log --format=%s") == "three\ntwo\none\n"
    await in_workspace(sandbox, "echo four > a.txt && git commit --quiet --all --message four")
    assert "-three\n+four\n" in await attempt.diff(sandbox)
    assert state(source) == before
    assert str(source) not in await in_workspace(sandbox, "cat .git/config; grep -rh . .git/logs || true")
    assert not (tmp_path / "executed").exists()


async def test_one_commit_some_folders(attempt: StimulusAttempt, sandbox: Sandbox, source: Path) -> None:
    attempt.set_up_with(
        {}, git=WorkspaceRepository("clone", str(source), attempt.base, shallow=True, sparse=("docs",))
    )
    await attempt.prepare(sandbox)
    assert await in_workspace(sandbox, "git log --format=%s; ls; git status --short") == "two\ndocs\n"


async def test_files_lie_over_the_repository(
    attempt: StimulusAttempt, sandbox: Sandbox, source: Path
) -> None:
    write(attempt.base, {"mine.txt": "mine\n"})
    (source / "escape").symlink_to("/etc")
    git(source, "add", "--all")
    git(source, "commit", "--quiet", "--message=link")
    attempt.set_up_with(
        {"mine.txt": "escape/mine.txt"}, git=WorkspaceRepository("worktree", "../source", attempt.base)
    )
    await attempt.prepare(sandbox)
    assert await in_workspace(sandbox, "cat escape/mine.txt a.txt") == "mine\ntwo\n"
    assert not Path("/etc/mine.txt").exists()
    assert await attempt.diff(sandbox) == ""


async def test_a_short_commit_is_known_on_this_machine(
    attempt: StimulusAttempt, sandbox: Sandbox, source: Path
) -> None:
    short = git(source, "rev-parse", "--short", "HEAD~1")
    attempt.set_up_with({}, git=WorkspaceRepository("worktree", "../source", attempt.base, ref=short))
    await attempt.prepare(sandbox)
    assert await in_workspace(sandbox, "cat a.txt; git branch --show-current") == "one\n"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source": "../none"}, "there is no folder"),
        ({"source": "."}, "no git repository"),
        ({"ref": "nowhere"}, "no branch, tag or commit 'nowhere'"),
        ({"sparse": ("../up",)}, "sparse path '../up'"),
        ({"type": "clone", "source": "https://user:secret@example.com/a/b"}, "credentials"),
        ({"type": "clone", "source": "--upload-pack=touch /tmp/x"}, "no folder"),
    ],
)
def test_problems_are_told_before_anything_starts(
    attempt: StimulusAttempt, source: Path, change: dict[str, object], words: str
) -> None:
    _ = source
    git_source = replace(WorkspaceRepository("worktree", "../source", attempt.base), **change)  # type: ignore[arg-type]
    attempt.set_up_with({}, git=git_source)
    (problem,) = attempt.problems()
    assert words in problem
    assert "secret@" not in problem


async def test_a_repository_that_cannot_be_had_leaves_nothing(
    attempt: StimulusAttempt, source: Path, tmp_path: Path
) -> None:
    _ = source
    checkouts = Checkouts(tmp_path / "checkouts")
    with pytest.raises(UsageError, match="no branch, tag or commit"):
        await checkouts.of(WorkspaceRepository("worktree", "../source", attempt.base, ref="nowhere"))
    assert list((tmp_path / "checkouts").iterdir()) == []


async def test_a_repository_is_fetched_once(attempt: StimulusAttempt, source: Path) -> None:
    checkouts = Checkouts()
    wanted = WorkspaceRepository("worktree", "../source", attempt.base)
    first, again = await asyncio.gather(checkouts.of(wanted), checkouts.of(replace(wanted)))
    assert again == first
    assert await checkouts.of(replace(wanted, ref="next")) != first
    checkouts.close()
    assert not first.exists()


def test_the_digest_is_of_the_commit(attempt: StimulusAttempt, source: Path, tmp_path: Path) -> None:
    attempt.set_up_with({}, git=WorkspaceRepository("worktree", "../source", attempt.base))
    first = workspace.content_digest(attempt.stimulus, attempt.options)
    (source / "untracked").touch()
    assert workspace.content_digest(attempt.stimulus, attempt.options) == first
    git(source, "commit", "--quiet", "--allow-empty", "--message=more")
    assert workspace.content_digest(attempt.stimulus, attempt.options) != first


def test_where_a_work_dir_is(source: Path, tmp_path: Path) -> None:
    commit = git(source, "rev-parse", "HEAD")
    assert head_of(source) == commit
    git(source, "pack-refs", "--all")
    assert head_of(source) == commit
    git(source, "worktree", "add", "--quiet", "-b", "linked", str(tmp_path / "linked"))
    assert head_of(tmp_path / "linked") == commit
    git(source, "checkout", "--quiet", "--detach")
    assert head_of(source) == commit
    assert head_of(tmp_path) is None


async def test_a_linked_worktree_as_work_dir_has_a_git_that_works(
    attempt: StimulusAttempt, sandbox: Sandbox, source: Path, tmp_path: Path
) -> None:
    git(source, "worktree", "add", "--quiet", "-b", "linked", str(tmp_path / "linked"))
    (tmp_path / "linked/a.txt").write_text("uncommitted\n")
    before = state(source)
    attempt.options = EvalOptions(work_dir=str(tmp_path / "linked"))
    await attempt.prepare(sandbox)
    assert await in_workspace(sandbox, "git status --short; git log --format=%s") == " M a.txt\ntwo\n"
    assert state(source) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
async def test_a_repository_of_another_user(attempt: StimulusAttempt, sandbox: Sandbox, source: Path) -> None:
    for path in (source, *source.rglob("*")):
        os.chown(path, 1234, 1234, follow_symlinks=False)
    attempt.set_up_with({}, git=WorkspaceRepository("worktree", "../source", attempt.base))
    await attempt.prepare(sandbox)
    assert await in_workspace(sandbox, "cat a.txt") == "two\n"

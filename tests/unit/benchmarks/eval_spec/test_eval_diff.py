"""What changed since set-up, as graders are told."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sandboxes.protocol import Sandbox
from tests.unit.benchmarks.eval_spec.stimulus_attempt import StimulusAttempt, write
from valkyrie.benchmarks.eval_spec import snapshots
from valkyrie.benchmarks.eval_spec import snapshots as baseline
from valkyrie.benchmarks.eval_spec.snapshots import InitialWorkspace, WorkspaceSnapshot
from valkyrie.benchmarks.eval_spec.source import EvalOptions
from valkyrie.errors import GraderError


def changes(tmp_path: Path, before: dict[str, str], after: dict[str, str]) -> str:
    folders = [write(tmp_path / name, files) for name, files in (("before", before), ("after", after))]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    return baseline.diff(InitialWorkspace((folders[0],)), WorkspaceSnapshot(folders[1]))


def test_added_changed_removed_and_renamed_files(tmp_path: Path) -> None:
    long = "".join(f"line {number}\n" for number in range(40))
    told = changes(
        tmp_path,
        {"same": "same\n", "changed": "old\n", "gone": "gone\n", "long": long},
        {"same": "same\n", "changed": "new\n", "sub/added": "added\n", "renamed": long},
    )
    assert "-old\n+new\n" in told
    assert "+++ b/sub/added\n@@ -0,0 +1 @@\n+added\n" in told
    assert "--- a/gone\n+++ /dev/null\n" in told
    assert "rename from long\nrename to renamed\n" in told
    assert "same" not in told


def test_nothing_changed(tmp_path: Path) -> None:
    assert changes(tmp_path, {"a": "a", "b/c": "c"}, {"a": "a", "b/c": "c"}) == ""


def test_a_program_is_told_from_a_file_and_binary_files_are_noted(tmp_path: Path) -> None:
    write(tmp_path / "before", {"run.sh": "x"})
    write(tmp_path / "after", {"run.sh": "x"})
    (tmp_path / "after/run.sh").chmod(0o755)
    (tmp_path / "after/picture").write_bytes(b"\x89PNG\0\0")
    told = changes(tmp_path, {}, {})
    assert "old mode 100644\nnew mode 100755\n" in told
    assert "Binary files /dev/null and b/picture differ" in told


def test_gitignore_hides_only_what_is_new(tmp_path: Path) -> None:
    told = changes(
        tmp_path,
        {".gitignore": "built/\n", "built/old.o": "1", "kept.log": "1"},
        {
            ".gitignore": "built/\n*.log\n",
            "built/old.o": "2",
            "built/new.o": "2",
            "kept.log": "2",
            "x.log": "2",
        },
    )
    assert "kept.log" in told and "+*.log" in told
    assert "old.o" not in told and "new.o" not in told and "x.log" not in told


def test_a_name_that_looks_like_a_pattern_changes_nothing_for_others(tmp_path: Path) -> None:
    after = {".gitignore": "*.log\n", ":(glob)x": "1", ":!a": "1", "x.log": "1", "git~1/config": "1"}
    told = changes(tmp_path, {".gitignore": "*.log\n"}, after)
    assert "b/:(glob)x" in told and "b/:!a" in told and "b/git~1/config" in told and "x.log" not in told


def test_nobody_hides_changes_behind_a_gitignore_that_hides_itself(tmp_path: Path) -> None:
    told = changes(tmp_path, {}, {".gitignore": "*\n", "planted": "x"})
    assert "+++ b/.gitignore\n@@ -0,0 +1 @@\n+*\n" in told


def test_no_git_of_the_workspace_has_a_say(tmp_path: Path) -> None:
    after = write(tmp_path / "after", {"sub/new.txt": "new\n", ".gitattributes": "* diff=evil filter=evil\n"})
    planted = f"touch {tmp_path}/executed"
    for folder in (after, after / "sub"):
        subprocess.run(["git", "init", "-q", str(folder)], check=True)
        for key in ("core.fsmonitor", "diff.evil.command", "diff.evil.textconv", "filter.evil.clean"):
            subprocess.run(["git", "-C", str(folder), "config", key, planted], check=True)
        (folder / ".git/info/exclude").write_text("*\n")
    told = changes(tmp_path, {}, {})
    assert "+++ b/sub/new.txt" in told
    assert ".git/config" not in told
    assert not (tmp_path / "executed").exists()


def test_names_of_every_kind(tmp_path: Path) -> None:
    names = ['quote"d', "new\nline", "back\\slash", "späce and ü", "-dash", "a\tb"]
    told = changes(tmp_path, {}, dict.fromkeys(names, "x\n"))
    assert told.count("new file mode") == len(names)
    assert "späce and ü" in told


def test_a_folder_laid_over_another_is_what_was_there(tmp_path: Path) -> None:
    lower = write(tmp_path / "lower", {"a": "low", "b": "low", "c/d": "low"})
    upper = write(tmp_path / "upper", {"a": "high", "b/under": "high", "c": "high"})
    after = write(tmp_path / "after", {"a": "high", "b/under": "high", "c": "high"})
    assert baseline.diff(InitialWorkspace((lower, upper)), WorkspaceSnapshot(after)) == ""


def test_links_that_lead_out_are_neither_followed_nor_told(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("the host's\n")
    for name in ("before", "after"):
        write(tmp_path / name, {"file": "x"})
        (tmp_path / name / "link").symlink_to("file")
    (tmp_path / "before/up").symlink_to("../secret")
    (tmp_path / "after/out").symlink_to(tmp_path / "secret")
    assert changes(tmp_path, {}, {}) == ""
    (tmp_path / "after/link").unlink()
    told = changes(tmp_path, {}, {})
    assert "deleted file mode 120000" in told and "-file" in told


def test_files_too_large_to_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = write(tmp_path / "before", {"small": "x"}), write(tmp_path / "after", {})
    after.mkdir()
    with (before / "always-large").open("wb") as file:
        os.truncate(file.fileno(), snapshots.LIMITS.max_file_bytes + 1)
    final = WorkspaceSnapshot(
        after, too_large=frozenset({"small", "always-large", "made-large", "large-by-set-up"})
    )
    told = baseline.diff(InitialWorkspace((before,), too_large=frozenset({"large-by-set-up"})), final)
    assert told == (
        "Binary files a/made-large and b/made-large differ\nBinary files a/small and b/small differ\n"
    )


def test_a_workspace_cut_short_is_an_error_and_no_diff(tmp_path: Path) -> None:
    with pytest.raises(GraderError, match="too large"):
        baseline.diff(InitialWorkspace((tmp_path,)), WorkspaceSnapshot(tmp_path, cut_short=True))


def test_a_diff_without_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "MAX_DIFF_BYTES", 1 << 20)
    told = changes(tmp_path, {}, {"many": "line\n" * 400_000})
    assert len(told) < (1 << 20) + 100
    assert told.endswith("[the diff is cut here, after 1 MiB]\n")


async def test_from_the_end_of_set_up_commands(attempt: StimulusAttempt, sandbox: Sandbox) -> None:
    write(attempt.base, {"one.txt": "one\n"})
    attempt.set_up_with({"one.txt": "one.txt"}, commands=("echo two >> one.txt; echo made > made.txt",))
    await attempt.prepare(sandbox)
    await sandbox.exec("cd /workspace; echo three >> one.txt; rm made.txt")
    told = await attempt.diff(sandbox)
    assert " one\n two\n+three\n" in told
    assert "-made\n" in told


async def test_nothing_is_fetched_when_nobody_asks_for_a_diff(
    attempt: StimulusAttempt, sandbox: Sandbox
) -> None:
    attempt.set_up_with({}, commands=("true",))
    await attempt.prepare(sandbox, needs_diff=False)
    assert [path.name for path in attempt.start.iterdir()] == ["workspace"]


async def test_a_workspace_the_agent_removed_is_empty(attempt: StimulusAttempt, sandbox: Sandbox) -> None:
    write(attempt.base, {"one.txt": "one\n"})
    attempt.set_up_with({"one.txt": "one.txt"})
    await attempt.prepare(sandbox)
    await sandbox.exec("rm -rf /workspace; ln -s /tmp /workspace")
    assert "--- a/one.txt\n+++ /dev/null" in await attempt.diff(sandbox)
    assert "is taken for empty" in "".join(attempt.said)


async def test_a_second_look_forgets_the_first(attempt: StimulusAttempt, sandbox: Sandbox) -> None:
    write(attempt.base, {"one.txt": "one\n"})
    attempt.set_up_with({"one.txt": "one.txt"})
    await attempt.prepare(sandbox)
    await sandbox.exec("echo x > /workspace/passing")
    assert "passing" in await attempt.diff(sandbox)
    await sandbox.exec("rm /workspace/passing")
    assert await attempt.diff(sandbox) == ""


async def test_what_others_change_in_the_work_dir_is_not_the_agents(
    attempt: StimulusAttempt, sandbox: Sandbox, tmp_path: Path
) -> None:
    work_dir = write(tmp_path / "work", {"a.txt": "a\n", "b.txt": "b\n"})
    attempt.options = EvalOptions(work_dir=str(work_dir), workspace=str(work_dir / "kept"))
    await attempt.prepare(sandbox)
    await sandbox.exec(
        "cd /workspace; echo agent >> a.txt; echo agent > new.txt; mkdir kept; echo x > kept/x"
    )
    results = work_dir / "results.jsonl"
    results.touch()
    while results.stat().st_ctime_ns <= (work_dir / "b.txt").stat().st_ctime_ns:
        results.write_text("{}\n")
    os.utime(attempt.start / "workspace", ns=(0, results.stat().st_ctime_ns - 1))
    told = await attempt.diff(sandbox)
    assert "+++ b/a.txt" in told and "+++ b/new.txt" in told
    assert "results.jsonl" not in told and "kept" not in told


async def test_in_a_null_sandbox_the_workspace_is_a_folder_of_this_machine(
    attempt: StimulusAttempt, null: Sandbox, tmp_path: Path
) -> None:
    work_dir = write(tmp_path / "work", {"a.txt": "a\n"})
    attempt.options = EvalOptions(work_dir=str(work_dir))
    await attempt.prepare(null)
    assert not attempt.start.exists()
    assert await attempt.final(null) == work_dir
    assert await attempt.diff(null) == ""
    await null.upload_file("/workspace/a.txt", b"b\n")
    await null.upload_file("/workspace/sub/new.txt", b"new\n")
    final = await attempt.final(null)
    assert (final / "sub/new.txt").read_text() == "new\n"
    told = await attempt.diff(null)
    assert "-a\n+b\n" in told and "+++ b/sub/new.txt" in told
    assert (work_dir / "a.txt").read_text() == "a\n"
    assert not (work_dir / "sub").exists()


async def test_in_a_null_sandbox_files_are_laid_out_when_looked_at(
    attempt: StimulusAttempt, null: Sandbox
) -> None:
    write(attempt.base, {"one.txt": "one\n"})
    attempt.set_up_with({"one.txt": "in/one.txt"})
    await attempt.prepare(null)
    assert (await attempt.final(null) / "in/one.txt").read_text() == "one\n"
    await null.upload_file("/workspace/in", b"a file now\n")
    assert (await attempt.final(null) / "in").read_text() == "a file now\n"
    assert "--- a/in/one.txt\n+++ /dev/null" in await attempt.diff(null)

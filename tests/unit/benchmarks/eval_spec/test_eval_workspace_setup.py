"""What a workspace holds before the agent starts."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxes.protocol import Sandbox
from tests.unit.benchmarks.eval_spec.stimulus_attempt import StimulusAttempt, write, write_skill
from valkyrie.benchmarks.eval_spec import workspace
from valkyrie.benchmarks.eval_spec.snapshots import files_in
from valkyrie.benchmarks.eval_spec.source import EvalOptions
from valkyrie.errors import BenchmarkError
from valkyrie.specs.model import FileEntry


async def listed(sandbox: Sandbox) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as scratch:
        await sandbox.download_folder("/workspace", Path(scratch))
        return {name: path.read_text() for name, path in files_in(Path(scratch), but=frozenset({".git"}))}


async def test_files_skills_and_commands_in_their_order(attempt: StimulusAttempt, sandbox: Sandbox) -> None:
    write(attempt.base, {"one.txt": "one", "folder/two.txt": "two", "folder/deep/three.txt": "three"})
    write_skill(attempt.base / "skills/writer", "test-writer")
    attempt.set_up_with(
        {"one.txt": "a/renamed.txt", "folder": "b"},
        skills=("skills/writer",),
        commands=("cat a/renamed.txt .agents/skills/*/SKILL.md > seen.txt", "wc -l < seen.txt > lines.txt"),
    )
    assert attempt.problems() == []
    await attempt.prepare(sandbox)
    found = await listed(sandbox)
    assert sorted(found) == [
        ".agents/skills/test-writer/SKILL.md",
        ".agents/skills/test-writer/scripts/run.sh",
        "a/renamed.txt",
        "b/deep/three.txt",
        "b/two.txt",
        "lines.txt",
        "seen.txt",
    ]
    assert found["seen.txt"].startswith("one---\nname: test-writer")
    assert await attempt.diff(sandbox) == "", "what set-up made is the baseline"


async def test_programs_stay_programs_and_a_folder_may_be_the_workspace_itself(
    attempt: StimulusAttempt, sandbox: Sandbox
) -> None:
    (write(attempt.base, {"all/run.sh": "echo ran\n"}) / "all/run.sh").chmod(0o755)
    attempt.set_up_with({"all": "."}, commands=("./run.sh > out.txt",))
    await attempt.prepare(sandbox)
    assert (await listed(sandbox))["out.txt"] == "ran\n"


async def test_a_file_put_into_a_folder_keeps_its_name(attempt: StimulusAttempt, sandbox: Sandbox) -> None:
    write(attempt.base, {"one.txt": "one"})
    attempt.set_up_with({"one.txt": "docs/"})
    await attempt.prepare(sandbox)
    assert await listed(sandbox) == {"docs/one.txt": "one"}


async def test_attachments_are_there_and_grading_files_are_not(
    attempt: StimulusAttempt, sandbox: Sandbox
) -> None:
    write(attempt.base, {"picture": "png", "hidden.py": "assert 0"})
    stimulus = attempt.set_up_with({}, grading={"hidden.py": "tests/hidden.py"})
    attempt.stimulus = replace(stimulus, attachments=(FileEntry("picture", "in/picture.png", attempt.base),))
    await attempt.prepare(sandbox)
    assert await listed(sandbox) == {"in/picture.png": "png"}
    assert "hidden" not in str(list(attempt.start.rglob("*")))


@pytest.mark.parametrize(
    ("dest", "words"),
    [
        ("/etc/passwd", "below the workspace"),
        ("../up", "below the workspace"),
        ("a/../../up", "below the workspace"),
        ("", "below the workspace"),
        ("a\\b", "below the workspace"),
    ],
)
async def test_a_destination_outside_is_refused(
    attempt: StimulusAttempt, sandbox: Sandbox, dest: str, words: str
) -> None:
    write(attempt.base, {"one.txt": "one"})
    attempt.set_up_with({"one.txt": dest})
    assert words in attempt.problems()[0]
    with pytest.raises(BenchmarkError, match=words):
        await attempt.prepare(sandbox)
    assert await listed(sandbox) == {}


async def test_links_are_kept_inside_and_refused_when_they_lead_out(
    attempt: StimulusAttempt, sandbox: Sandbox, tmp_path: Path
) -> None:
    write(attempt.base, {"good/real": "real", "bad/real": "real"})
    (attempt.base / "good/link").symlink_to("real")
    (attempt.base / "bad/link").symlink_to(tmp_path)
    attempt.set_up_with({"good": "good", "bad": "bad"})
    assert [("bad" in problem, "link" in problem) for problem in attempt.problems()] == [(True, True)]
    with pytest.raises(BenchmarkError, match="link"):
        await attempt.prepare(sandbox)
    attempt.set_up_with({"good": "good"})
    await attempt.prepare(sandbox)
    assert (await sandbox.exec("readlink /workspace/good/link")).output == "real\n"


async def test_no_entry_is_written_through_a_link_of_an_earlier_one(
    attempt: StimulusAttempt, sandbox: Sandbox, tmp_path: Path
) -> None:
    write(attempt.base, {"one/inner/kept": "kept", "two/file": "two"})
    (attempt.base / "one/link").symlink_to("inner")
    outside = write(tmp_path / "outside", {"file": "precious"})
    attempt.set_up_with({"one": "a", "two": "a/link"})
    await attempt.prepare(sandbox)
    assert (outside / "file").read_text() == "precious"
    assert (await listed(sandbox))["a/link/file"] == "two"


def test_problems_name_what_is_missing_and_where(attempt: StimulusAttempt) -> None:
    write(attempt.base, {"no-skill/README.md": "x"})
    write(attempt.base, {"broken/SKILL.md": "no front matter"})
    attempt.set_up_with({"none.txt": "a"}, skills=("gone", "no-skill", "broken"), grading={"none.py": "b"})
    told = "\n".join(map(str, workspace.problems(attempt.stimulus, attempt.options)))
    for words in (
        "environment.files: src 'none.txt' is not there",
        "grading_environment.files: src 'none.py'",
    ):
        assert words in told
    assert str(attempt.base) in told
    assert all(name in told for name in ("gone", "no-skill", "broken"))


def test_two_skills_of_one_name(attempt: StimulusAttempt) -> None:
    for folder in ("one", "two"):
        write_skill(attempt.base / folder, "same")
    attempt.set_up_with({}, skills=("one", "two"))
    assert ["two skills are called 'same'" in problem for problem in attempt.problems()] == [True]
    attempt.set_up_with({}, skills=("one", "one/SKILL.md"))
    assert attempt.problems() == []


async def test_a_declared_list_of_skills_replaces_the_folder_of_skills(
    attempt: StimulusAttempt, sandbox: Sandbox
) -> None:
    for name in ("alpha", "beta"):
        write_skill(attempt.base / "all" / name, name)
    write_skill(attempt.base / "own", "own")
    attempt.options = EvalOptions(skill_dir=str(attempt.base / "all"), skills_at=".claude/skills")
    names = {
        skills: workspace.skill_names(attempt.set_up_with({}, skills=skills), attempt.options)
        for skills in (None, (), ("own",))
    }
    assert names == {None: ["alpha", "beta"], (): [], ("own",): ["own"]}
    await attempt.prepare(sandbox)
    assert ".claude/skills/own/SKILL.md" in await listed(sandbox)


async def test_a_failing_command_is_named_with_its_exit_code_and_output(
    attempt: StimulusAttempt, sandbox: Sandbox
) -> None:
    attempt.set_up_with({}, commands=("true", "echo working; echo broken >&2; exit 7", "touch never"))
    with pytest.raises(BenchmarkError) as caught:
        await attempt.prepare(sandbox)
    assert caught.value.cause == "task_setup_failed"
    for words in ("`echo working; echo broken >&2; exit 7`", "exit code 7", "broken"):
        assert words in str(caught.value)
    assert await listed(sandbox) == {}


async def test_a_command_that_does_not_end(attempt: StimulusAttempt, sandbox: Sandbox) -> None:
    attempt.set_up_with({}, commands=("sleep 60",), timeout=0.2)
    with pytest.raises(BenchmarkError, match=r"did not end within 0.2 s \(commandTimeout\)"):
        await attempt.prepare(sandbox)


async def test_commands_need_a_sandbox_that_runs_them(attempt: StimulusAttempt, null: Sandbox) -> None:
    attempt.set_up_with({}, commands=("true",))
    with pytest.raises(BenchmarkError, match="--provider local"):
        await attempt.prepare(null)


async def test_a_work_dir_is_copied_where_it_cannot_be_shown(
    attempt: StimulusAttempt, sandbox: Sandbox, tmp_path: Path
) -> None:
    work_dir = write(tmp_path / "work", {"a.txt": "a", "sub/b.txt": "b"})
    (work_dir / "out").symlink_to("/nowhere/at/all")
    (work_dir / "in").symlink_to("a.txt")
    write_skill(attempt.base / "skill", "own")
    attempt.options = EvalOptions(work_dir=str(work_dir))
    attempt.set_up_with(skills=("skill",))
    (view,) = workspace.mounts(attempt.stimulus, attempt.options)
    assert (view.source, view.target, view.copy_on_write) == (str(work_dir), "/workspace", True)
    await attempt.prepare(sandbox)
    await sandbox.exec("cd /workspace; echo changed > a.txt; rm sub/b.txt")
    assert (await sandbox.exec("cd /workspace; readlink out in")).output == "/nowhere/at/all\na.txt\n"
    assert (work_dir / "a.txt").read_text() == "a"
    told = await attempt.diff(sandbox)
    assert told.count("diff --git") == 2
    assert "SKILL.md" not in told


def test_a_declared_environment_has_nothing_to_do_with_the_work_dir(
    attempt: StimulusAttempt, tmp_path: Path
) -> None:
    write(attempt.base, {"one.txt": "one"})
    attempt.options = EvalOptions(work_dir=str(tmp_path / "gone"))
    assert workspace.mounts(attempt.set_up_with({"one.txt": "one.txt"}), attempt.options) == ()
    assert attempt.problems() == []
    attempt.set_up_with()
    assert [problem.startswith("--work-dir") for problem in attempt.problems()] == [True]


def test_the_digest_tells_every_change_of_content(attempt: StimulusAttempt, tmp_path: Path) -> None:
    write(attempt.base, {"one.txt": "one", "folder/two.txt": "two", "test.py": "test"})
    write_skill(attempt.base / "skill", "own")
    attempt.set_up_with(
        {"one.txt": "a", "folder": "b"}, skills=("skill",), grading={"test.py": "tests/test.py"}
    )
    attempt.options = EvalOptions(work_dir=str(tmp_path))

    def digest() -> str:
        return workspace.content_digest(attempt.stimulus, attempt.options)

    seen = [digest()]
    assert digest() == seen[0]
    for name in ("one.txt", "folder/two.txt", "skill/scripts/run.sh", "test.py"):
        (attempt.base / name).write_text(f"other {name}")
        seen.append(digest())
    (attempt.base / "one.txt").chmod(0o755)
    seen.append(digest())
    (attempt.base / "folder/three.txt").touch()
    seen.append(digest())
    assert len(set(seen)) == 7
    (tmp_path / "unrelated").touch()
    assert digest() == seen[-1]

"""What a workspace holds before the agent starts."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxes.protocol import Sandbox
from tests.unit.benchmarks.eval_spec.workspace_world import World, write, write_skill
from valkyrie.benchmarks.eval_spec import workspace
from valkyrie.benchmarks.eval_spec.snapshots import files_in
from valkyrie.benchmarks.eval_spec.source import EvalOptions
from valkyrie.errors import BenchmarkError
from valkyrie.specs.model import FileEntry


async def listed(sandbox: Sandbox) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as scratch:
        await sandbox.download_folder("/workspace", Path(scratch))
        return {name: path.read_text() for name, path in files_in(Path(scratch), but=frozenset({".git"}))}


async def test_files_skills_and_commands_in_their_order(world: World, sandbox: Sandbox) -> None:
    write(world.base, {"one.txt": "one", "folder/two.txt": "two", "folder/deep/three.txt": "three"})
    write_skill(world.base / "skills/writer", "test-writer")
    world.set_up_with(
        {"one.txt": "a/renamed.txt", "folder": "b"},
        skills=("skills/writer",),
        commands=("cat a/renamed.txt .agents/skills/*/SKILL.md > seen.txt", "wc -l < seen.txt > lines.txt"),
    )
    assert world.problems() == []
    await world.prepare(sandbox)
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
    assert await world.diff(sandbox) == "", "what set-up made is the baseline"


async def test_programs_stay_programs_and_a_folder_may_be_the_workspace_itself(
    world: World, sandbox: Sandbox
) -> None:
    (write(world.base, {"all/run.sh": "echo ran\n"}) / "all/run.sh").chmod(0o755)
    world.set_up_with({"all": "."}, commands=("./run.sh > out.txt",))
    await world.prepare(sandbox)
    assert (await listed(sandbox))["out.txt"] == "ran\n"


async def test_a_file_put_into_a_folder_keeps_its_name(world: World, sandbox: Sandbox) -> None:
    write(world.base, {"one.txt": "one"})
    world.set_up_with({"one.txt": "docs/"})
    await world.prepare(sandbox)
    assert await listed(sandbox) == {"docs/one.txt": "one"}


async def test_attachments_are_there_and_grading_files_are_not(world: World, sandbox: Sandbox) -> None:
    write(world.base, {"picture": "png", "hidden.py": "assert 0"})
    stimulus = world.set_up_with({}, grading={"hidden.py": "tests/hidden.py"})
    world.stimulus = replace(stimulus, attachments=(FileEntry("picture", "in/picture.png", world.base),))
    await world.prepare(sandbox)
    assert await listed(sandbox) == {"in/picture.png": "png"}
    assert "hidden" not in str(list(world.start.rglob("*")))


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
    world: World, sandbox: Sandbox, dest: str, words: str
) -> None:
    write(world.base, {"one.txt": "one"})
    world.set_up_with({"one.txt": dest})
    assert words in world.problems()[0]
    with pytest.raises(BenchmarkError, match=words):
        await world.prepare(sandbox)
    assert await listed(sandbox) == {}


async def test_links_are_kept_inside_and_refused_when_they_lead_out(
    world: World, sandbox: Sandbox, tmp_path: Path
) -> None:
    write(world.base, {"good/real": "real", "bad/real": "real"})
    (world.base / "good/link").symlink_to("real")
    (world.base / "bad/link").symlink_to(tmp_path)
    world.set_up_with({"good": "good", "bad": "bad"})
    assert [("bad" in problem, "link" in problem) for problem in world.problems()] == [(True, True)]
    with pytest.raises(BenchmarkError, match="link"):
        await world.prepare(sandbox)
    world.set_up_with({"good": "good"})
    await world.prepare(sandbox)
    assert (await sandbox.exec("readlink /workspace/good/link")).output == "real\n"


async def test_no_entry_is_written_through_a_link_of_an_earlier_one(
    world: World, sandbox: Sandbox, tmp_path: Path
) -> None:
    write(world.base, {"one/inner/kept": "kept", "two/file": "two"})
    (world.base / "one/link").symlink_to("inner")
    outside = write(tmp_path / "outside", {"file": "precious"})
    world.set_up_with({"one": "a", "two": "a/link"})
    await world.prepare(sandbox)
    assert (outside / "file").read_text() == "precious"
    assert (await listed(sandbox))["a/link/file"] == "two"


def test_problems_name_what_is_missing_and_where(world: World) -> None:
    write(world.base, {"no-skill/README.md": "x"})
    write(world.base, {"broken/SKILL.md": "no front matter"})
    world.set_up_with({"none.txt": "a"}, skills=("gone", "no-skill", "broken"), grading={"none.py": "b"})
    told = "\n".join(map(str, workspace.problems(world.stimulus, world.options)))
    for words in (
        "environment.files: src 'none.txt' is not there",
        "grading_environment.files: src 'none.py'",
    ):
        assert words in told
    assert str(world.base) in told
    assert all(name in told for name in ("gone", "no-skill", "broken"))


def test_two_skills_of_one_name(world: World) -> None:
    for folder in ("one", "two"):
        write_skill(world.base / folder, "same")
    world.set_up_with({}, skills=("one", "two"))
    assert ["two skills are called 'same'" in problem for problem in world.problems()] == [True]
    world.set_up_with({}, skills=("one", "one/SKILL.md"))
    assert world.problems() == []


async def test_a_declared_list_of_skills_replaces_the_folder_of_skills(
    world: World, sandbox: Sandbox
) -> None:
    for name in ("alpha", "beta"):
        write_skill(world.base / "all" / name, name)
    write_skill(world.base / "own", "own")
    world.options = EvalOptions(skill_dir=str(world.base / "all"), skills_at=".claude/skills")
    names = {
        skills: workspace.skill_names(world.set_up_with({}, skills=skills), world.options)
        for skills in (None, (), ("own",))
    }
    assert names == {None: ["alpha", "beta"], (): [], ("own",): ["own"]}
    await world.prepare(sandbox)
    assert ".claude/skills/own/SKILL.md" in await listed(sandbox)


async def test_a_failing_command_is_named_with_its_exit_code_and_output(
    world: World, sandbox: Sandbox
) -> None:
    world.set_up_with({}, commands=("true", "echo working; echo broken >&2; exit 7", "touch never"))
    with pytest.raises(BenchmarkError) as caught:
        await world.prepare(sandbox)
    assert caught.value.cause == "task_setup_failed"
    for words in ("`echo working; echo broken >&2; exit 7`", "exit code 7", "broken"):
        assert words in str(caught.value)
    assert await listed(sandbox) == {}


async def test_a_command_that_does_not_end(world: World, sandbox: Sandbox) -> None:
    world.set_up_with({}, commands=("sleep 60",), timeout=0.2)
    with pytest.raises(BenchmarkError, match=r"did not end within 0.2 s \(commandTimeout\)"):
        await world.prepare(sandbox)


async def test_commands_need_a_sandbox_that_runs_them(world: World, null: Sandbox) -> None:
    world.set_up_with({}, commands=("true",))
    with pytest.raises(BenchmarkError, match="--provider local"):
        await world.prepare(null)


async def test_a_work_dir_is_copied_where_it_cannot_be_shown(
    world: World, sandbox: Sandbox, tmp_path: Path
) -> None:
    work_dir = write(tmp_path / "work", {"a.txt": "a", "sub/b.txt": "b"})
    (work_dir / "out").symlink_to("/nowhere/at/all")
    (work_dir / "in").symlink_to("a.txt")
    write_skill(world.base / "skill", "own")
    world.options = EvalOptions(work_dir=str(work_dir))
    world.set_up_with(skills=("skill",))
    (view,) = workspace.mounts(world.stimulus, world.options)
    assert (view.source, view.target, view.copy_on_write) == (str(work_dir), "/workspace", True)
    await world.prepare(sandbox)
    await sandbox.exec("cd /workspace; echo changed > a.txt; rm sub/b.txt")
    assert (await sandbox.exec("cd /workspace; readlink out in")).output == "/nowhere/at/all\na.txt\n"
    assert (work_dir / "a.txt").read_text() == "a"
    told = await world.diff(sandbox)
    assert told.count("diff --git") == 2
    assert "SKILL.md" not in told


def test_a_declared_environment_has_nothing_to_do_with_the_work_dir(world: World, tmp_path: Path) -> None:
    write(world.base, {"one.txt": "one"})
    world.options = EvalOptions(work_dir=str(tmp_path / "gone"))
    assert workspace.mounts(world.set_up_with({"one.txt": "one.txt"}), world.options) == ()
    assert world.problems() == []
    world.set_up_with()
    assert [problem.startswith("--work-dir") for problem in world.problems()] == [True]


def test_the_digest_tells_every_change_of_content(world: World, tmp_path: Path) -> None:
    write(world.base, {"one.txt": "one", "folder/two.txt": "two", "test.py": "test"})
    write_skill(world.base / "skill", "own")
    world.set_up_with(
        {"one.txt": "a", "folder": "b"}, skills=("skill",), grading={"test.py": "tests/test.py"}
    )
    world.options = EvalOptions(work_dir=str(tmp_path))

    def digest() -> str:
        return workspace.content_digest(world.stimulus, world.options)

    seen = [digest()]
    assert digest() == seen[0]
    for name in ("one.txt", "folder/two.txt", "skill/scripts/run.sh", "test.py"):
        (world.base / name).write_text(f"other {name}")
        seen.append(digest())
    (world.base / "one.txt").chmod(0o755)
    seen.append(digest())
    (world.base / "folder/three.txt").touch()
    seen.append(digest())
    assert len(set(seen)) == 7
    (tmp_path / "unrelated").touch()
    assert digest() == seen[-1]

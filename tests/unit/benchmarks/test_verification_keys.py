"""Where a task's tests run, what is carried there, and what its author is told before the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.benchmarks.task_folders import WriteTask
from valkyrie.benchmarks.task_dir.benchmark import TaskDirBenchmark
from valkyrie.benchmarks.task_dir.task_toml import ParsedToml
from valkyrie.domain import TaskSpec, VerifyMode
from valkyrie.errors import BenchmarkError


async def described(folder: Path) -> TaskSpec:
    return await TaskDirBenchmark(folder).describe(folder.name)


async def problems(folder: Path) -> list[str]:
    return [str(problem) for problem in await TaskDirBenchmark(folder).check()]


@pytest.mark.parametrize(
    ("verifier", "mode", "carry", "keep"),
    [
        ("", VerifyMode.BOTH, (), False),
        ('environment_mode = "shared"', VerifyMode.SHARED, (), False),
        ('environment_mode = "fresh"', VerifyMode.FRESH, (), False),
        ('carry = ["/etc/nginx", "/usr/local"]', VerifyMode.BOTH, ("/etc/nginx", "/usr/local"), False),
        ('environment_mode = "shared"\nkeep_processes = true', VerifyMode.SHARED, (), True),
    ],
)
async def test_the_keys(
    write_task: WriteTask, verifier: str, mode: VerifyMode, carry: tuple[str, ...], keep: bool
) -> None:
    task = await described(write_task("t", {"task.toml": f"[verifier]\n{verifier}\n"}))
    assert (task.verify, task.carry, task.keep_processes) == (mode, carry, keep)


@pytest.mark.parametrize(
    "path",
    [
        "etc/nginx",
        "/",
        "//etc",
        "/etc/",
        "/etc/../usr",
        "/etc\\u0000",
        "/proc/1",
        "/tests",
        "/logs/verifier/x",
    ],
)
def test_what_is_never_carried(path: str) -> None:
    with pytest.raises(BenchmarkError, match=r"verifier.carry: .* cannot be carried"):
        ParsedToml.parse(f'[verifier]\ncarry = ["{path}"]', "task.toml")


@pytest.mark.parametrize("mode", ["", 'environment_mode = "fresh"\n'])
async def test_processes_live_on_only_in_a_shared_environment(write_task: WriteTask, mode: str) -> None:
    folder = write_task("t", {"task.toml": f"[verifier]\n{mode}keep_processes = true\n"})
    (problem,) = await problems(folder)
    assert 'environment_mode = "shared"' in problem


async def test_a_separate_environment_is_still_refused(write_task: WriteTask) -> None:
    folder = write_task("t", {"task.toml": '[verifier]\nenvironment_mode = "separate"\n'})
    (problem,) = await problems(folder)
    assert "not supported" in problem


async def test_steps_inherit(write_task: WriteTask) -> None:
    toml = (
        '[verifier]\nenvironment_mode = "shared"\nkeep_processes = true\ncarry = ["/etc/a"]\n'
        '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\nverifier.environment_mode = "fresh"\n'
        'verifier.keep_processes = false\nverifier.carry = ["/etc/b"]\n'
    )
    steps = {f"steps/{name}/instruction.md": "Do." for name in ("one", "two")}
    task = await described(write_task("t", {"task.toml": toml, **steps}))
    one, two = task.steps
    assert (one.verify, one.keep_processes, one.carry) == (VerifyMode.SHARED, True, ("/etc/a",))
    assert (two.verify, two.keep_processes, two.carry) == (VerifyMode.FRESH, False, ("/etc/a", "/etc/b"))


@pytest.mark.parametrize(
    "toml",
    [
        '[environment.env]\n"A=B" = "1"\n',
        '[verifier.env]\n"" = "1"\n',
        '[solution.env]\n"A\\u0000" = "1"\n',
        '[environment.env]\nA = "x\\u0000y"\n',
    ],
)
async def test_variables_no_process_can_have(write_task: WriteTask, toml: str) -> None:
    (problem,) = await problems(write_task("t", {"task.toml": toml}))
    assert ".env: " in problem and "task.toml" in problem


@pytest.mark.parametrize("user", ['""', '"-x"', '"a:b"', "-1", '"4294967295"'])
async def test_users_that_cannot_be(write_task: WriteTask, user: str) -> None:
    (problem,) = await problems(write_task("t", {"task.toml": f"[verifier]\nuser = {user}\n"}))
    assert "verifier.user" in problem


@pytest.mark.parametrize("part", ["tests", "solution", "environment"])
async def test_links_that_leave_their_folder(write_task: WriteTask, part: str) -> None:
    folder = write_task("t", {f"{part}/data.txt": "x"})
    (folder / part / "inside").symlink_to("data.txt")
    (folder / part / "absolute").symlink_to(folder / part / "data.txt")
    assert await problems(folder) == []
    (folder / part / "out").symlink_to("../instruction.md")
    (folder / part / "gone").symlink_to("/nowhere/at/all")
    found = await problems(folder)
    assert [f"{part}/gone" in found[0], f"{part}/out" in found[1], len(found)] == [True, True, 2]
    assert all("leaves its folder" in problem for problem in found)

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from sandboxes.types import SandboxLimits
from tests.unit.benchmarks.task_folders import WriteTask, write_files
from valkyrie.agents.protocol import mcp_servers
from valkyrie.benchmarks.task_dir.benchmark import TaskDirBenchmark
from valkyrie.domain import Grade, TaskSpec, Timeouts
from valkyrie.errors import BenchmarkError, UsageError, UserError


def benchmark(tmp_path: Path, **options: object) -> TaskDirBenchmark:
    return TaskDirBenchmark(tmp_path / "tasks", **options)  # type: ignore[arg-type]


async def described(tmp_path: Path, write_task: WriteTask, **files: str) -> TaskSpec:
    paths = {re.sub("_(toml|md)$", r".\1", name.replace("__", "/")): text for name, text in files.items()}
    write_task("t", paths)
    return await benchmark(tmp_path, host_env={"KEY": "value"}).describe("t")


async def test_tasks_are_found_in_nested_folders(tmp_path: Path, write_task: WriteTask) -> None:
    for task_id in ("b", "group/x", "a", ".hidden", "group/deeper/y"):
        write_task(task_id)
    write_files(tmp_path / "tasks", {"docs/readme.txt": "", "a/environment/inner/task.toml": ""})
    assert await benchmark(tmp_path).list_tasks() == ["a", "b", "group/deeper/y", "group/x"]


async def test_a_link_to_a_task_counts_and_a_loop_does_no_harm(tmp_path: Path, write_task: WriteTask) -> None:
    task = write_task("a")
    (tmp_path / "tasks" / "linked").symlink_to(task)
    (tmp_path / "tasks" / "loop").symlink_to(tmp_path / "tasks")
    assert await benchmark(tmp_path).list_tasks() == ["a", "linked"]


async def test_a_single_task_is_a_benchmark(write_task: WriteTask) -> None:
    single = TaskDirBenchmark(write_task("alone"))
    assert (single.name, await single.list_tasks()) == ("alone", ["alone"])
    assert (await single.describe("alone")).instruction == "Do it.\n"


@pytest.mark.parametrize("kind", ["missing", "empty", "file"])
async def test_nothing_to_run_is_a_usage_error(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "tasks"
    if kind == "empty":
        (folder / "nothing").mkdir(parents=True)
    elif kind == "file":
        folder.write_text("")
    with pytest.raises(UsageError, match=str(folder)):
        await TaskDirBenchmark(folder).list_tasks()


async def test_a_task_is_described_as_its_file_says(tmp_path: Path, write_task: WriteTask) -> None:
    write_task(
        "t",
        {
            "instruction.md": "<!-- canary GUID 1 -->\n# benchmark-canary: x\n\nReal text.\n",
            "task.toml": '[task]\nname = "o/t"\n[metadata]\ndifficulty = "hard"\n'
            '[agent]\ntimeout_sec = 9\nuser = "dev"\n'
            "[verifier]\ntimeout_sec = 8\n[environment]\nbuild_timeout_sec = 7\ncpus = 2\nmemory_mb = 64\n"
            'gpus = 1\nstorage_mb = 32\nworkdir = "/w"\nnetwork_mode = "no-network"\nunknwon = 1\n'
            '[environment.env]\nA = "${KEY}-${B:-b}"\n',
            "solution/solve.sh": "true",
        },
    )
    spec = await benchmark(tmp_path, host_env={"KEY": "value"}).describe("t")
    assert spec.instruction == "Real text.\n"
    assert spec.limits == SandboxLimits(cpus=2, memory_mb=64, disk_mb=32, gpus=1)
    assert spec.timeouts == Timeouts(build=7, agent=9, grade=8)
    assert (spec.cwd, spec.network, spec.user, spec.image) == ("/w", "none", "dev", None)
    assert (spec.env, spec.has_solution) == ({"A": "value-b"}, True)
    assert spec.metadata["difficulty"] == "hard"
    assert spec.metadata["host_variables"] == ["KEY", "B"]
    assert "unknown key environment.unknwon" in spec.metadata["warnings"][0]


async def test_defaults(tmp_path: Path, write_task: WriteTask) -> None:
    spec = await described(tmp_path, write_task)
    assert spec.timeouts == Timeouts(build=600.0, agent=None, grade=600.0)
    assert (spec.cwd, spec.network, spec.image, spec.has_solution) == ("/app", "public", None, False)


async def test_a_heading_is_no_canary(tmp_path: Path, write_task: WriteTask) -> None:
    write_task("t", {"instruction.md": "# Title\n\nText with a canary.\n"})
    assert (await benchmark(tmp_path).describe("t")).instruction.startswith("# Title")


@pytest.mark.parametrize(
    ("files", "image", "cwd"),
    [
        ({"task_toml": '[environment]\ndocker_image = "debian:12"'}, "debian:12", "/app"),
        ({"environment__Dockerfile": "FROM x\nWORKDIR /srv\n"}, "Dockerfile", "/srv"),
        ({"environment__docker-compose.yaml": "services: {}"}, "Dockerfile", "/app"),
        ({"environment__data": "x"}, None, "/app"),
    ],
)
async def test_images(
    tmp_path: Path, write_task: WriteTask, files: dict[str, str], image: str | None, cwd: str
) -> None:
    spec = await described(tmp_path, write_task, **files)
    assert (spec.image, spec.cwd) == (image, cwd)


async def test_host_image_is_another_task_on_the_same_files(tmp_path: Path, write_task: WriteTask) -> None:
    write_task("with", {"environment/Dockerfile": "FROM x\nENV A=1\n"})
    write_task("without")
    own, host = benchmark(tmp_path), benchmark(tmp_path, host_image=True)
    with_image, on_host = await own.describe("with"), await host.describe("with")
    assert (on_host.image, on_host.env, on_host.metadata["named_image"]) == (None, {"A": "1"}, "Dockerfile")
    assert with_image.digest != on_host.digest
    assert (await own.describe("without")).digest == (await host.describe("without")).digest


BROKEN = {
    "no-tests": ({}, ("tests/test.sh",), "has no tests/test.sh; write one"),
    "no-instruction": ({}, ("instruction.md",), "cannot read"),
    "empty-instruction": ({"instruction.md": "<!-- canary -->\n \n"}, (), "instruction.md is empty"),
    "no-toml": ({}, ("task.toml",), "has no task.toml"),
    "bad-toml": ({"task.toml": "x ="}, (), "not valid TOML"),
    "step-untold": ({"task.toml": '[[steps]]\nname = "one"'}, (), "step 'one' has no instruction.md"),
    "step-untested": (
        {"task.toml": '[[steps]]\nname = "one"', "steps/one/instruction.md": "Do."},
        ("tests/test.sh",),
        "step 'one' has no tests/test.sh",
    ),
    "step-empty": (
        {"task.toml": '[[steps]]\nname = "one"', "steps/one/instruction.md": " \n"},
        (),
        "steps/one/instruction.md is empty",
    ),
    "steps-alike": (
        {"task.toml": '[[steps]]\nname = "One"\n[[steps]]\nname = "one"', "steps/One/instruction.md": "Do."},
        (),
        "two steps are called 'One' and 'one'",
    ),
    "step-nameless": ({"task.toml": '[[steps]]\nname = "a/b"'}, (), "no name a step's folder can have"),
    "separate": ({"task.toml": '[verifier]\nenvironment_mode = "separate"'}, (), "separate verifier"),
    "separate-2": ({"task.toml": "[verifier.environment]\ncpus = 1"}, (), "separate verifier"),
    "windows": ({"task.toml": '[environment]\nos = "windows"'}, (), "only linux"),
    "tpu": ({"task.toml": '[environment.tpu]\ntype = "v4"\ntopology = "2x2"'}, (), "TPU"),
    "com,ma": ({}, (), "rename it"),
}


@pytest.mark.parametrize("task_id", BROKEN)
async def test_a_broken_task_says_where_and_what(tmp_path: Path, write_task: WriteTask, task_id: str) -> None:
    files, without, message = BROKEN[task_id]
    folder = write_task(task_id, files, without=without)
    with pytest.raises(BenchmarkError, match=message) as caught:
        await benchmark(tmp_path).describe(task_id)
    assert caught.value.cause == "task_broken"
    assert str(folder) in str(caught.value)


async def test_check_lists_all_problems_of_all_tasks(tmp_path: Path, write_task: WriteTask) -> None:
    write_task("fine")
    for task_id, (files, without, _) in BROKEN.items():
        write_task(task_id, files, without=without)
    os.mkfifo(write_task("fifo") / "tests" / "pipe")
    problems = await benchmark(tmp_path).check()
    assert sorted(problem.task_id for problem in problems) == sorted([*BROKEN, "fifo"])
    only = await benchmark(tmp_path).check(task_ids=["fine", "tpu"])
    assert [problem.task_id for problem in only] == ["tpu"]


async def test_two_problems_of_one_task_come_together(tmp_path: Path, write_task: WriteTask) -> None:
    write_task("t", without=("tests/test.sh", "instruction.md"))
    assert len(await benchmark(tmp_path).check()) == 2


async def test_unknown_names(tmp_path: Path, write_task: WriteTask) -> None:
    write_task("sort-lines")
    with pytest.raises(UsageError, match=r"has no task 'sort-line'. Did you mean 'sort-lines'"):
        await benchmark(tmp_path).describe("sort-line")
    with pytest.raises(UsageError, match="unknown dataset 'big'"):
        await benchmark(tmp_path).list_tasks("big")


async def test_a_missing_host_variable_is_told_before_the_start(
    tmp_path: Path, write_task: WriteTask
) -> None:
    write_task("t", {"task.toml": '[environment]\nenv = { K = "${NOT_SET}" }'})
    with pytest.raises(UserError, match=r"task t: environment.env asks for NOT_SET"):
        await benchmark(tmp_path, host_env={}).describe("t")


async def test_changed_files_are_seen(tmp_path: Path, write_task: WriteTask) -> None:
    folder = write_task("t")
    opened = benchmark(tmp_path)
    before = await opened.describe("t")
    (folder / "instruction.md").write_text("Something else.\n")
    after = await opened.describe("t")
    assert after.instruction == "Something else.\n"
    assert after.digest != before.digest


async def test_what_was_left_out_is_warned_about(tmp_path: Path, write_task: WriteTask) -> None:
    text = (
        '[verifier]\nnetwork_mode = "no-network"\ncollect = [{ command = "x", service = "db" }]\n'
        '[environment]\ngpu_types = ["x"]\n'
        '[[steps]]\nname = "one"\nartifacts = [{ source = "/x", service = "web" }]\n'
    )
    told = await described(tmp_path, write_task, task_toml=text, steps__one__instruction_md="Do.")
    warnings = told.metadata["warnings"]
    assert [text.split(":")[0] for text in warnings] == [
        "verifier.network_mode = 'no-network' is not applied",
        "environment.gpu_types are not looked at",
        "nothing is collected from the service 'db'",
        "nothing is collected from the service 'web'",
    ]


async def test_tool_servers_and_skills_are_for_the_agent(tmp_path: Path, write_task: WriteTask) -> None:
    text = (
        '[environment]\nskills_dir = "/skills"\n[[environment.mcp_servers]]\nname = "near"\n'
        'transport = "stdio"\ncommand = "serve"\nargs = ["-q"]\n'
        '[[environment.mcp_servers]]\nname = "far"\nurl = "http://far/mcp"\nheaders = { a = "b" }\n'
    )
    task = await described(tmp_path, write_task, task_toml=text)
    near, far = mcp_servers(task)
    assert (near.argv, near.kind) == (("serve", "-q"), "stdio")
    assert (far.url, far.kind, far.headers) == ("http://far/mcp", "sse", {"a": "b"})
    assert task.skills_dir == "/skills" and "warnings" not in task.metadata


async def test_the_solution_has_an_environment_of_its_own(tmp_path: Path, write_task: WriteTask) -> None:
    write_task("t", {"task.toml": '[solution]\nenv = { KEY = "${KEY}", LEVEL = "${LEVEL:-1}" }'})
    task = await benchmark(tmp_path, host_env={"KEY": "k", "OTHER": "o"}).describe("t")
    assert (task.solution_env, task.env) == ({"KEY": "k", "LEVEL": "1"}, {})
    assert task.metadata["host_variables"] == ["KEY", "LEVEL"]
    without = await benchmark(tmp_path, host_env={}).describe("t")
    assert without.solution_env == {}, "only the oracle would need it"
    assert "KEY is not set" in without.metadata["warnings"][0]


async def test_final_score(tmp_path: Path) -> None:
    one, half, zero = Grade(1.0, True), Grade(0.5, False), Grade(0.0, False)
    final = await benchmark(tmp_path).final_score(
        {"a": [one, one], "b": [one, zero], "c": [half], "d": [None], "e": [one, None], "f": []}
    )
    assert final.score == pytest.approx((1 + 0.5 + 0.5 + 0 + 0.5 + 0) / 6)
    assert final.properties == {"tasks": 6, "resolved": 1, "unresolved": 3, "ungraded": 2}
    assert (await benchmark(tmp_path).final_score({})).score is None


async def test_a_thousand_tasks_are_described(tmp_path: Path, write_task: WriteTask) -> None:
    for number in range(1000):
        write_task(f"t{number:04}")
    opened = benchmark(tmp_path)
    ids = await opened.list_tasks()
    assert len({(await opened.describe(task_id)).id for task_id in ids}) == 1000

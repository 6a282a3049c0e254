from __future__ import annotations

from pathlib import Path

import pytest

from sandboxes.protocol import Sandbox
from sandboxes.types import Command
from valkyrie.benchmarks import open_benchmark
from valkyrie.benchmarks.protocol import Grading
from valkyrie.benchmarks.scaffold import init_benchmark
from valkyrie.benchmarks.task_dir.benchmark import TaskDirBenchmark
from valkyrie.errors import UsageError


def ignore(*_: str) -> None:
    return


@pytest.mark.parametrize(("solve", "score"), [(True, 1.0), (False, 0.0)])
async def test_what_it_writes_is_a_benchmark_that_works(
    tmp_path: Path, sandbox: Sandbox, solve: bool, score: float
) -> None:
    folder = init_benchmark("my-bench", tmp_path)
    assert folder == tmp_path / "my-bench"
    benchmark = open_benchmark(str(folder))
    assert benchmark.name == "my-bench"
    assert await TaskDirBenchmark(folder).check() == []
    (task_id,) = await benchmark.list_tasks("smoke")
    task = await benchmark.describe(task_id)
    assert task.metadata.get("warnings") is None
    await benchmark.setup(task, sandbox, ignore, tmp_path / "start")
    solution = benchmark.solution(task)
    if solve and solution is not None:
        await sandbox.upload_folder(solution, "/solution")
        assert await sandbox.run(Command(("bash", "/solution/solve.sh"), cwd=task.cwd)) == 0
    grading = Grading(task, sandbox, ignore, tmp_path / "evidence")
    assert (await benchmark.evaluate(grading)).score == score


@pytest.mark.parametrize("name", ["", "1st", "a b", "../up", "a/b", ".hidden", "x" * 65, "ü"])
def test_bad_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a benchmark"):
        init_benchmark(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="already exists"):
        init_benchmark("b", tmp_path)
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["mine.txt"]

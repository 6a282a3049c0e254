"""The shipped tasks as files: whole, alike where they should be, and free of warnings."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from valkyrie.benchmarks import open_benchmark
from valkyrie.benchmarks.task_dir import TaskDirBenchmark

FOLDER = Path(open_benchmark("quickstart").source["path"])
TASKS = sorted(path.parent for path in FOLDER.glob("*/task.toml"))


async def test_nothing_is_wrong_with_any_of_them() -> None:
    assert await TaskDirBenchmark(FOLDER).check() == []


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
async def test_each_is_described_in_full(task: Path) -> None:
    spec = await open_benchmark("quickstart").describe(task.name)
    assert spec.metadata.get("warnings") is None
    assert spec.metadata["name"] == f"quickstart/{task.name}"
    assert spec.metadata["description"]
    assert spec.metadata["keywords"]
    assert spec.metadata["difficulty"] in ("easy", "medium", "hard")
    assert (spec.network, spec.image, spec.cwd, spec.has_solution) == ("none", None, "/app", True)
    assert (spec.limits.cpus, spec.limits.memory_mb, spec.limits.disk_mb) == (1, 512, 512)
    assert spec.timeouts.agent is not None and 300 <= spec.timeouts.agent <= 600
    assert spec.timeouts.grade == 60


@pytest.mark.parametrize("name", ["tests/checks.py", "tests/test.sh"])
def test_shared_files_are_the_same_everywhere(name: str) -> None:
    assert len({(task / name).read_bytes() for task in TASKS}) == 1


def test_the_answers_are_not_in_what_the_agent_gets() -> None:
    for task in TASKS:
        given = {path.read_bytes() for path in (task / "environment").rglob("*") if path.is_file()}
        hidden = [path for path in (task / "solution").rglob("*") if path.is_file()]
        assert not any(path.read_bytes() in given for path in hidden)


def test_the_manifest_names_it() -> None:
    assert tomllib.loads((FOLDER / "benchmark.toml").read_text())["name"] == "quickstart"

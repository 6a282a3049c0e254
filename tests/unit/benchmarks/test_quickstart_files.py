"""The shipped tasks as files: whole, alike where they should be, and free of warnings."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from valkyrie.benchmarks import open_benchmark
from valkyrie.benchmarks.task_dir.benchmark import TaskDirBenchmark, parse_lock
from valkyrie.domain import VerifyMode

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
    assert spec.timeouts.grade == 300


@pytest.mark.parametrize("name", ["tests/checks.py", "tests/test.sh"])
def test_shared_files_are_the_same_everywhere(name: str) -> None:
    assert len({(task / name).read_bytes() for task in TASKS}) == 1


def test_the_answers_are_not_in_what_the_agent_gets() -> None:
    for task in TASKS:
        given = {path.read_bytes() for path in (task / "environment").rglob("*") if path.is_file()}
        hidden = [path for path in (task / "solution").rglob("*") if path.is_file()]
        assert not any(path.read_bytes() in given for path in hidden)


@pytest.mark.parametrize(
    ("began", "said"),
    [
        ("0", "TimeoutError: sleep 100 took longer than 0.1 s, TimeoutError: sleep 100 took longer than"),
        ("50", "TimeoutError: sleep 100 took longer than 0.1 s, TimeoutError: no time left after sleep"),
        ("239.9", "no program of the agent is to blame"),
        ("250", "no program of the agent is to blame"),
    ],
)
def test_a_machine_that_is_too_busy_costs_no_agent_its_score(began: str, said: str) -> None:
    program = """
import sys; sys.path.insert(0, sys.argv[1])
import checks
checks.BEGAN -= float(sys.argv[2])
found = []
for timeout in (0.1 if float(sys.argv[2]) < 200 else 5, 0.1):
    try:
        checks.run(["sleep", "100"], timeout=timeout)
    except TimeoutError as error:
        found.append(f"TimeoutError: {error}")
print(", ".join(found))
"""
    words = [sys.executable, "-B", "-c", program, str(TASKS[0] / "tests"), began]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert said in done.stdout + done.stderr


def test_the_manifest_names_it() -> None:
    assert tomllib.loads((FOLDER / "benchmark.toml").read_text())["name"] == "quickstart"


async def test_the_lock_is_of_these_tasks_and_grades_them_in_a_fresh_sandbox() -> None:
    """After a change: `valk benchmark check src/valkyrie/benchmarks/quickstart` writes it anew."""
    benchmark = TaskDirBenchmark(FOLDER)
    lock = parse_lock(FOLDER / "benchmark.lock")
    specs = {task.name: await benchmark.describe(task.name) for task in TASKS}
    assert {name: entry.digest for name, entry in lock.tasks.items()} == {
        name: spec.digest for name, spec in specs.items()
    }
    assert {spec.verify for spec in specs.values()} == {VerifyMode.FRESH}
    assert all(entry.oracle == [1.0, 1.0] and entry.nop == 0.0 for entry in lock.tasks.values())
    assert [entry.open_to for entry in lock.tasks.values() if entry.open_to] == []

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.benchmarks.task_folders import WriteTask
from valkyrie.benchmarks import open_benchmark, open_frozen, shipped
from valkyrie.benchmarks.protocol import BenchmarkRequest
from valkyrie.benchmarks.task_dir.benchmark import TaskDirBenchmark
from valkyrie.errors import UsageError, UserError


class PluggedIn(TaskDirBenchmark):
    def __init__(self) -> None:
        super().__init__(Path(open_benchmark("quickstart").source["path"]), "plugged-in")

    @property
    def source(self) -> dict[str, object]:
        return {"kind": "plugin", "target": f"{__name__}:PluggedIn"}


async def test_the_shipped_benchmark() -> None:
    benchmark = open_benchmark("quickstart")
    assert benchmark.name == "quickstart"
    assert await benchmark.datasets() == ["default", "smoke"]
    assert len(await benchmark.list_tasks()) == 12
    assert len(await benchmark.list_tasks("smoke")) == 3
    ((name, description, tasks),) = shipped()
    assert (name, tasks) == ("quickstart", 12)
    assert description


async def test_a_folder_by_path(
    tmp_path: Path, write_task: WriteTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task("a")
    monkeypatch.chdir(tmp_path)
    for spec in ("./tasks", "tasks", str(tmp_path / "tasks")):
        benchmark = open_benchmark(spec)
        assert (benchmark.name, await benchmark.list_tasks()) == ("tasks", ["a"])


async def test_frozen_and_opened_again(tmp_path: Path, write_task: WriteTask) -> None:
    write_task("a", {"environment/Dockerfile": "FROM x"})
    benchmark = open_benchmark(str(tmp_path / "tasks"), BenchmarkRequest(host_image=True))
    again = open_frozen(json.loads(json.dumps(benchmark.source)))
    assert again.source == benchmark.source
    assert await again.describe("a") == await benchmark.describe("a")


async def test_module_and_class(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = open_benchmark(f"{__name__}:PluggedIn")
    assert benchmark.name == "plugged-in"
    assert open_frozen(dict(benchmark.source)).name == "plugged-in"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("quikstart", "unknown benchmark 'quikstart'.*Did you mean 'quickstart'"),
        ("away", r"service set away URL` \(none at http://127\.0\.0\.1:8001"),
        ("./nowhere", "no folder ./nowhere"),
        ("/nowhere", "no folder /nowhere"),
        ("no_such_module:Thing", "no_such_module:Thing: there is no module"),
        ("json:Thing", "json:Thing: json has no 'Thing'"),
        ("", "unknown benchmark ''"),
    ],
)
def test_unknown_benchmarks(spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_benchmark(spec)


def test_a_kind_from_the_future() -> None:
    with pytest.raises(UserError, match="kind 'hologram'"):
        open_frozen({"kind": "hologram"})

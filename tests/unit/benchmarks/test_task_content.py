from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.benchmarks.task_folders import WriteTask
from valkyrie.benchmarks.task_dir.benchmark import ContentDigests
from valkyrie.errors import BenchmarkError

FILES = {"environment/data.txt": "data", "solution/solve.sh": "true\n", "tests/extra/e.txt": "e"}


def test_the_same_content_elsewhere_has_the_same_digest(write_task: WriteTask) -> None:
    digests = ContentDigests()
    assert digests.of(write_task("one", FILES)) == digests.of(write_task("two", FILES))


@pytest.mark.parametrize(
    "change",
    [
        lambda task: (task / "task.toml").write_text("# x"),
        lambda task: (task / "instruction.md").write_text("Do that.\n"),
        lambda task: (task / "environment/data.txt").write_text("dat4"),
        lambda task: (task / "environment/data.txt").rename(task / "environment/other.txt"),
        lambda task: (task / "environment/data.txt").chmod(0o755),
        lambda task: (task / "environment/empty").mkdir(),
        lambda task: (task / "environment/link").symlink_to("data.txt"),
        lambda task: (task / "tests/extra/e.txt").unlink(),
        lambda task: (task / "solution/solve.sh").write_text("fals\n"),
    ],
)
def test_every_change_shows(write_task: WriteTask, change: Callable[[Path], object]) -> None:
    task, digests = write_task("one", FILES), ContentDigests()
    before = digests.of(task)
    change(task)
    assert digests.of(task) != before
    assert ContentDigests().of(task) == digests.of(task)


@pytest.mark.parametrize(
    "name", ["README.md", "notes/x.txt", "tests/__pycache__/x.pyc", "environment/.DS_Store"]
)
def test_what_is_no_part_of_the_task_does_not_show(write_task: WriteTask, name: str) -> None:
    task, digests = write_task("one", FILES), ContentDigests()
    before = digests.of(task)
    (task / name).parent.mkdir(exist_ok=True)
    (task / name).write_text("x")
    assert digests.of(task) == ContentDigests().of(task) == before


def test_a_task_that_did_not_change_is_not_read_again(
    write_task: WriteTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, digests = write_task("one", FILES), ContentDigests()
    digest = digests.of(task)

    def no_reading(*_: object, **__: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(Path, "open", no_reading)
    assert digests.of(task) == digest


def test_a_fifo_is_no_content(write_task: WriteTask) -> None:
    task = write_task("one")
    os.mkfifo(task / "tests" / "pipe")
    with pytest.raises(BenchmarkError, match="neither file, folder nor link"):
        ContentDigests().of(task)

"""The lock file: read by digest, kept beside the benchmark or in the data folder, part of no task."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.unit.benchmarks.task_folders import WriteTask
from valkyrie.benchmarks.task_dir.benchmark import (
    LOCK_FILE_NAME,
    TaskDirBenchmark,
    kept_lock,
    lock_file,
    own_lock,
    parse_lock,
    read_lock,
    write_lock,
)
from valkyrie.benchmarks.task_dir.task import LockedTask
from valkyrie.benchmarks.task_dir.upload import pack_upload, unpack_upload
from valkyrie.domain import TaskSpec, VerifyMode
from valkyrie.errors import BenchmarkError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VALKYRIE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


async def described(folder: Path, task_id: str = "t") -> TaskSpec:
    return await TaskDirBenchmark(folder).describe(task_id)


async def test_an_entry_counts_while_its_digest_is_the_tasks(tmp_path: Path, write_task: WriteTask) -> None:
    folder = write_task("t", {}).parent
    before = await described(folder)
    assert before.verify is VerifyMode.BOTH and not before.keep_processes
    entry = LockedTask(digest=before.digest, mode=VerifyMode.SHARED, keep_processes=True)
    write_lock(own_lock(folder), {"t": entry})
    after = await described(folder)
    assert (after.verify, after.keep_processes) == (VerifyMode.SHARED, True)
    assert after.digest == before.digest
    (folder / "t" / "instruction.md").write_text("Something else.")
    assert (await described(folder)).verify is VerifyMode.BOTH


async def test_what_the_task_says_wins(tmp_path: Path, write_task: WriteTask) -> None:
    folder = write_task("t", {"task.toml": '[verifier]\nenvironment_mode = "fresh"\n'}).parent
    digest = (await described(folder)).digest
    write_lock(own_lock(folder), {"t": LockedTask(digest=digest, mode=VerifyMode.SHARED)})
    assert (await described(folder)).verify is VerifyMode.FRESH


async def test_a_single_task_has_its_lock_beside_it(write_task: WriteTask) -> None:
    folder = write_task("t", {})
    before = await described(folder)
    write_lock(own_lock(folder), {"t": LockedTask(digest=before.digest, mode=VerifyMode.FRESH)})
    after = await described(folder)
    assert (after.digest, after.verify) == (before.digest, VerifyMode.FRESH)


async def test_the_folders_own_lock_wins_over_the_kept_one(write_task: WriteTask, home: Path) -> None:
    folder = write_task("t", {}).parent
    digest = (await described(folder)).digest
    write_lock(kept_lock(folder), {"t": LockedTask(digest=digest, mode=VerifyMode.SHARED)})
    assert kept_lock(folder).is_relative_to(home / "locks")
    assert (await described(folder)).verify is VerifyMode.SHARED
    write_lock(own_lock(folder), {"t": LockedTask(digest=digest, mode=VerifyMode.FRESH)})
    assert lock_file(folder) == folder / LOCK_FILE_NAME
    assert (await described(folder)).verify is VerifyMode.FRESH


@pytest.mark.parametrize("own", [True, False])
async def test_the_lock_travels_with_the_benchmark(tmp_path: Path, write_task: WriteTask, own: bool) -> None:
    folder = write_task("t", {}).parent
    digest = (await described(folder)).digest
    path = own_lock(folder) if own else kept_lock(folder)
    write_lock(path, {"t": LockedTask(digest=digest, mode=VerifyMode.SHARED)})
    packed = tmp_path / "packed.zip"
    sha256 = pack_upload(folder, packed)
    with zipfile.ZipFile(packed) as archive:
        assert f"{folder.name}/{LOCK_FILE_NAME}" in archive.namelist()
    there = unpack_upload(packed, tmp_path / "cache", sha256)
    assert (await described(there)).verify is VerifyMode.SHARED


def test_the_same_entries_give_the_same_bytes(tmp_path: Path) -> None:
    entries = {name: LockedTask(digest="1" * 64, mode=VerifyMode.FRESH) for name in ("b", "a")}
    write_lock(tmp_path / "x", entries)
    write_lock(tmp_path / "y", {"a": entries["a"]})
    write_lock(tmp_path / "y", {"b": entries["b"]})
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()
    assert list(json.loads((tmp_path / "x").read_bytes())["tasks"]) == ["a", "b"]
    assert [path.name for path in tmp_path.glob("*lock*")] == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not valid JSON"),
        ('{"version": 2}', "version 2"),
        ("[]", "benchmark.lock"),
        ('{"version": 1, "tasks": {"t": {"digest": "x", "mode": "best"}}}', "tasks.t.mode"),
        ('{"version": 1, "task": {}}', "task"),
    ],
)
def test_a_file_that_is_no_lock_is_told(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / LOCK_FILE_NAME).write_text(content)
    with pytest.raises(BenchmarkError, match=said):
        read_lock(tmp_path)
    with pytest.raises(BenchmarkError, match="benchmark check"):
        parse_lock(tmp_path / LOCK_FILE_NAME)

"""A benchmark's folder, packed for a server and unpacked there: the same benchmark, task by task."""

from __future__ import annotations

import hashlib
import os
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.benchmarks.task_folders import WriteTask
from valkyrie.benchmarks import open_benchmark, open_frozen, pack_upload, unpack_upload
from valkyrie.benchmarks.protocol import Benchmark, BenchmarkRequest
from valkyrie.errors import BenchmarkError, BundleError, UnknownError, UsageError


def names(archive: Path) -> list[str]:
    with zipfile.ZipFile(archive) as opened:
        return opened.namelist()


async def digests(benchmark: Benchmark) -> dict[str, str]:
    return {task: (await benchmark.describe(task)).digest for task in await benchmark.list_tasks()}


def sent(folder: Path, tmp_path: Path) -> Path:
    digest = pack_upload(folder, tmp_path / "sent.zip")
    assert digest == hashlib.sha256((tmp_path / "sent.zip").read_bytes()).hexdigest()
    return unpack_upload(tmp_path / "sent.zip", tmp_path / "cache", digest)


async def assert_same(folder: Path, tmp_path: Path) -> Benchmark:
    here, there = open_benchmark(str(folder)), open_benchmark(str(sent(folder, tmp_path)))
    assert there.name == here.name
    assert await there.datasets() == await here.datasets()
    assert await digests(there) == await digests(here)
    return there


async def test_quickstart(tmp_path: Path) -> None:
    there = await assert_same(Path(open_benchmark("quickstart").source["path"]), tmp_path)
    assert len(await there.list_tasks()) == 12


async def test_everything_a_digest_sees(write_task: WriteTask, tmp_path: Path) -> None:
    task = write_task("deep/one", {"environment/.env": "A=1", "tests/.git/config": "x", "tests/a.pyc": "x"})
    (task / "steps" / "first" / "workdir").mkdir(parents=True)
    (task / "environment" / "empty").mkdir()
    (task / "environment" / "left" / "__pycache__").mkdir(parents=True)
    (task / "environment" / "run").write_text("#!/bin/sh\n")
    (task / "environment" / "run").chmod(0o755)
    (task / "environment" / "link").symlink_to("./run")
    (task / "environment" / "gone").symlink_to("nowhere/at/all")
    (task / "steps" / "up").symlink_to("../environment/run")
    (task / "tests" / "ö ü").write_text("x")
    write_task("two")
    await assert_same(tmp_path / "tasks", tmp_path)
    there = tmp_path / "cache" / "benchmarks"
    (link,) = there.rglob("link")
    assert str(link.readlink()) == "run"


async def test_what_is_no_part_of_it_stays_behind(write_task: WriteTask, tmp_path: Path) -> None:
    folder = write_task("one", {"README.md": "x", "tests/__pycache__/m.pyc": "x"}).parent
    for name in (".env", ".git/config", "results/big", "benchmark.toml"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text('name = "mine"\n')
    await assert_same(folder, tmp_path)
    assert names(tmp_path / "sent.zip") == [
        "tasks/benchmark.toml",
        "tasks/one/task.toml",
        "tasks/one/instruction.md",
        "tasks/one/tests/test.sh",
    ]


async def test_a_folder_that_is_one_task(write_task: WriteTask, tmp_path: Path) -> None:
    there = await assert_same(write_task("only"), tmp_path)
    assert (there.name, await there.list_tasks()) == ("only", ["only"])


async def test_a_task_that_is_a_link(write_task: WriteTask, tmp_path: Path) -> None:
    inside = write_task("real").rename(tmp_path / "tasks" / ".kept")
    (tmp_path / "tasks" / "linked").symlink_to(inside)
    there = await assert_same(tmp_path / "tasks", tmp_path)
    assert await there.list_tasks() == ["linked"]
    inside.rename(tmp_path / "elsewhere")
    (tmp_path / "tasks" / "linked").unlink()
    (tmp_path / "tasks" / "linked").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleError, match="linked leads out of"):
        pack_upload(tmp_path / "tasks", tmp_path / "b.zip")
    with pytest.raises(BenchmarkError, match=r"leads out of .*--allow-path"):
        await open_benchmark(str(tmp_path / "tasks")).describe("linked")
    allowed = BenchmarkRequest(allow_paths=(str(tmp_path / "elsewhere"),))
    assert (await open_benchmark(str(tmp_path / "tasks"), allowed).describe("linked")).id == "linked"


def test_the_same_content_gives_the_same_bytes(write_task: WriteTask, tmp_path: Path) -> None:
    task = write_task("one")
    first = pack_upload(task.parent, tmp_path / "1.zip")
    os.utime(task / "task.toml", (1, 1))
    (task / "task.toml").chmod(0o600)
    assert pack_upload(task.parent, tmp_path / "2.zip") == first
    assert (tmp_path / "1.zip").read_bytes() == (tmp_path / "2.zip").read_bytes()


def test_the_folder_one_stands_in(
    write_task: WriteTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task("one")
    monkeypatch.chdir(tmp_path / "tasks")
    pack_upload(Path(), tmp_path / "1.zip")
    monkeypatch.chdir(tmp_path / "tasks" / "one")
    pack_upload(Path(".."), tmp_path / "2.zip")
    assert (tmp_path / "1.zip").read_bytes() == (tmp_path / "2.zip").read_bytes()
    assert names(tmp_path / "1.zip")[0] == "tasks/one/task.toml"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda task: (task / "tests" / "l").symlink_to("/etc/passwd"),
            "outside the benchmark's folder; put a copy",
        ),
        (lambda task: (task / "tests" / "l").symlink_to("../../../x"), "outside the benchmark's folder"),
        (lambda task: os.mkfifo(task / "tests" / "p"), "neither file, folder nor link"),
        (lambda task: (task / "tests" / "a\\b").touch(), "backslashes"),
        (lambda task: (task / "tests" / "a\nb").touch(), "control characters"),
        (lambda task: (task / "tests" / os.fsdecode(b"\xff")).touch(), "rename it"),
        (lambda task: (task / "tests" / ("d/" * 120)).mkdir(parents=True), "folders in folders"),
    ],
)
def test_what_cannot_be_packed(
    write_task: WriteTask, tmp_path: Path, make: Callable[[Path], object], says: str
) -> None:
    make(write_task("one"))
    with pytest.raises(BundleError, match=says):
        pack_upload(tmp_path / "tasks", tmp_path / "out" / "a.zip")
    assert list((tmp_path / "out").iterdir()) == []


def test_limits(write_task: WriteTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_task("one", {"tests/data": "x" * 5000})
    digest = pack_upload(tmp_path / "tasks", tmp_path / "a.zip")
    for variable, value in (
        ("AGENT_UPLOAD_MAX_BYTES", "100"),
        ("AGENT_ARCHIVE_MAX_EXPANDED_BYTES", "4999"),
        ("AGENT_ARCHIVE_MAX_ENTRIES", "2"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            with pytest.raises(BundleError, match=variable):
                pack_upload(tmp_path / "tasks", tmp_path / "b.zip")
            with pytest.raises(BundleError, match=variable):
                unpack_upload(tmp_path / "a.zip", tmp_path / "cache", digest)
    assert list((tmp_path / "cache" / "benchmarks").iterdir()) == []


def test_no_tasks(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no task"):
        pack_upload(tmp_path, tmp_path / "a.zip")
    assert not (tmp_path / "a.zip").exists()


def test_unpacked_once_by_whoever_comes_first(write_task: WriteTask, tmp_path: Path) -> None:
    write_task("one")
    digest = pack_upload(tmp_path / "tasks", tmp_path / "a.zip")
    found: list[Path] = []

    def ask() -> None:
        found.append(unpack_upload(tmp_path / "a.zip", tmp_path / "cache", digest))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    place = tmp_path / "cache" / "benchmarks" / digest
    assert found == [place / "tasks"] * 8
    assert list(place.parent.iterdir()) == [place]
    (tmp_path / "a.zip").unlink()
    assert unpack_upload(tmp_path / "a.zip", tmp_path / "cache", digest) == place / "tasks"


def test_what_is_not_what_its_digest_says(write_task: WriteTask, tmp_path: Path) -> None:
    write_task("one")
    pack_upload(tmp_path / "tasks", tmp_path / "a.zip")
    with pytest.raises(BundleError, match="not what its digest says"):
        unpack_upload(tmp_path / "a.zip", tmp_path / "cache", "0" * 64)
    for digest in ("", "../../x", "A" * 64):
        with pytest.raises(UnknownError, match="no sha256 digest"):
            unpack_upload(tmp_path / "a.zip", tmp_path / "cache", digest)


async def test_an_uploaded_benchmark_by_name(write_task: WriteTask, tmp_path: Path) -> None:
    write_task("one")
    digest = pack_upload(tmp_path / "tasks", tmp_path / "a.zip")
    asked: list[str] = []

    def uploads(wanted: str) -> Path:
        asked.append(wanted)
        if wanted != digest:
            raise UnknownError("nothing was uploaded as that")
        return tmp_path / "a.zip"

    def again(spec: str) -> Benchmark:
        return open_benchmark(
            spec, BenchmarkRequest(trusted=False, uploads=uploads, cache=tmp_path / "cache")
        )

    benchmark = again(f"upload:{digest}")
    assert again(f"upload:{digest}").source == benchmark.source
    assert asked == [digest, digest], "asked every time: not everybody may name everything"
    assert benchmark.source["upload"] == digest
    assert benchmark.name == "tasks"
    with pytest.raises(UnknownError, match="nothing was uploaded"):
        again(f"upload:{'0' * 64}")
    with pytest.raises(UsageError, match="not taken from elsewhere"):
        again("upload:abc")
    with pytest.raises(UsageError, match="module 'upload'"):
        open_benchmark(f"upload:{'a' * 64}")


async def test_an_uploaded_benchmark_on_another_machine(write_task: WriteTask, tmp_path: Path) -> None:
    write_task("one")
    digest = pack_upload(tmp_path / "tasks", tmp_path / "a.zip")
    cache = tmp_path / "cache"
    first = open_benchmark(
        f"upload:{digest}", BenchmarkRequest(trusted=False, uploads=lambda _: tmp_path / "a.zip", cache=cache)
    )
    expected = await digests(first)
    folder = unpack_upload(tmp_path / "a.zip", tmp_path / "other", digest)
    there = open_frozen({**first.source, "path": str(folder)}, {})
    assert (there.name, await digests(there)) == ("tasks", expected)
    assert there.source["upload"] == digest
    here = open_frozen(first.source, {})
    assert here.source == first.source

"""`benchmark add`: what is there afterwards, under which names, and what a second one changes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.git_repository import Repository, served
from valkyrie.benchmarks import open_benchmark
from valkyrie.benchmarks.catalog import known_benchmarks
from valkyrie.benchmarks.named import catalog
from valkyrie.benchmarks.named.catalog import AddedBenchmark, find_added, remove
from valkyrie.benchmarks.named.installation import AddRequest, add
from valkyrie.benchmarks.protocol import BenchmarkRequest
from valkyrie.domain import TaskSpec
from valkyrie.errors import BenchmarkError, UnknownError, UsageError, UserError


class Counting:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.counted = 0

    def say(self, line: str) -> None:
        self.said.append(line)

    def count(self, done: int, total: int | None) -> None:
        self.counted = done


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VALKYRIE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "config" / "valkyrie.yaml"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def aime(path: str, numbers: range) -> str:
    rows = [{"id": n, "problem": f"What is {n}?", "answer": str(n)} for n in numbers]
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def added(name: str, source: str | None = None, **more: object) -> tuple[AddedBenchmark, bool]:
    return add(AddRequest(name, source, **more), Counting())  # type: ignore[arg-type]


async def ids(spec: str, dataset: str = "default", **options: bool) -> list[str]:
    return await open_benchmark(spec, BenchmarkRequest(**options)).list_tasks(dataset)  # type: ignore[arg-type]


async def described(spec: str, task_id: str) -> TaskSpec:
    return await open_benchmark(spec).describe(task_id)


async def test_added_once_named_like_a_shipped_one(home: Path) -> None:
    watcher = Counting()
    new, changed = add(AddRequest("AIME", aime("a.jsonl", range(3))), watcher)
    assert (new.name, new.tasks, changed, watcher.counted, watcher.said) == ("aime", 3, True, 3, [])
    assert new.folder.is_relative_to(home / "benchmarks" / "aime")
    for written in ("aime", "AIME", "Maxwell-Jia/AIME_2024"):
        assert await ids(written) == ["aime_0", "aime_1", "aime_2"]
        assert await ids(written, trusted=False) == ["aime_0", "aime_1", "aime_2"]
    view = next(one for one in known_benchmarks() if one.name == "aime")
    assert (view.tasks, view.source) == (3, f"added: a.jsonl@{new.revision[:12]}")


async def test_tasks_are_pinned() -> None:
    new, _ = added("aime", aime("a.jsonl", range(1)))
    kept = (await described("aime", "aime_0")).metadata
    assert kept["source_revision"] == new.revision
    assert len(kept["record_sha256"]) == 64 and kept["source_id"] == "0"


async def test_the_same_again_changes_nothing_and_another_needs_overwrite() -> None:
    first, _ = added("aime", aime("a.jsonl", range(2)))
    digest = (await described("aime", "aime_1")).digest
    assert added("aime", "a.jsonl") == (first, False)
    aime("b.jsonl", range(1, 4))
    with pytest.raises(UsageError, match=r"there already \(2 tasks from a.jsonl\).*--overwrite"):
        added("aime", "b.jsonl")
    second, changed = added("aime", "b.jsonl", overwrite=True)
    assert changed and await ids("aime") == ["aime_1", "aime_2", "aime_3"]
    assert not first.folder.exists()
    # Made anew from the same records, the tasks are the same: a run of them can go on.
    third, changed = added("aime", "b.jsonl", overwrite=True)
    assert not changed and third.folder == second.folder
    assert (await described("aime", "aime_1")).digest != digest, "the file they are pinned to is another"


async def test_limit_and_ids() -> None:
    aime("a.jsonl", range(9))
    added("aime", "a.jsonl", limit=2)
    assert await ids("aime") == ["aime_0", "aime_1"]
    added("aime", "a.jsonl", task_ids=["aime_7", "3"], overwrite=True)
    assert await ids("aime") == ["aime_3", "aime_7"]
    with pytest.raises(UsageError, match=r"no task 'aime_77'.*Did you mean 'aime_7'"):
        added("aime", "a.jsonl", task_ids=["aime_77"], overwrite=True)
    assert await ids("aime") == ["aime_3", "aime_7"], "what was there stays"


async def test_a_limit_reads_no_further() -> None:
    aime("a.jsonl", range(2))
    with Path("a.jsonl").open("a") as file:
        file.write("broken\n")
    added("aime", "a.jsonl", limit=2)
    with pytest.raises(UsageError, match=r"a\.jsonl line 3"):
        added("aime", "a.jsonl", overwrite=True)


async def test_known_bad_tasks_are_marked_and_left_out_of_a_dataset() -> None:
    row = {"complete_prompt": "def f():\n", "instruct_prompt": "f", "code_prompt": "def f():"}
    row |= {"canonical_solution": "    return 1", "test": "class TestCases: ...", "entry_point": "f"}
    rows = [{**row, "task_id": f"BigCodeBench/{n}"} for n in (100, 101)]
    Path("bcb.json").write_text(json.dumps(rows))
    new, _ = added("bigcodebench", "bcb.json")
    assert await ids("bigcodebench") == ["bigcodebench_0100", "bigcodebench_0101"]
    assert await ids("bigcodebench", "sound") == ["bigcodebench_0100"]
    assert "network" in (await described("bigcodebench", "bigcodebench_0101")).metadata["known_bad"]
    assert any("1 tasks are known to be bad" in notice for notice in new.notices)


async def test_the_network_is_closed_unless_asked_for() -> None:
    added("aime", aime("a.jsonl", range(1)))
    assert (await described("aime", "aime_0")).network == "none"
    added("aime", "a.jsonl", network="public", overwrite=True)
    assert (await described("aime", "aime_0")).network == "public"


def test_what_to_bring_is_said() -> None:
    with pytest.raises(UsageError, match=r"gpqa-diamond needs --from: the file gpqa_diamond.csv"):
        added("gpqa")
    with pytest.raises(UsageError, match=r"'Amie' is no benchmark of the catalogue.*Did you mean 'aime'"):
        added("Amie", "a.jsonl")
    with pytest.raises(UsageError, match="no such file or folder"):
        added("aime", "nowhere.jsonl")
    with pytest.raises(UsageError, match=r"was not added yet: `valk benchmark add aime --from FILE`"):
        open_benchmark("AIME")
    with pytest.raises(UsageError, match="`valk benchmark add terminal-bench-2` where the tracker runs"):
        open_benchmark("Laude Institute/Terminal-Bench-2.0", BenchmarkRequest(trusted=False))


@pytest.mark.parametrize(
    ("name", "row", "said"),
    [
        ("aime", {"id": 1, "problem": "p"}, "line 1: the record has no field 'answer' or 'Answer'"),
        ("aime", {"id": 1, "problem": "p", "answer": "1000"}, "not an integer from 0 to 999"),
        ("aime", {"id": "../x", "problem": "p", "answer": "1"}, "cannot be a folder's name"),
        ("gsm8k", {"question": "q", "answer": "5"}, "without `#### NUMBER`"),
        ("gpqa", {"Question": "q", "Correct Answer": "a"}, "no field 'Incorrect Answer 1'"),
        ("humaneval", {"task_id": "Other/x", "prompt": "p", "entry_point": "f"}, "not HumanEval/N"),
        ("bigcodebench", {"task_id": "BigCodeBench/1", "test": "t"}, "no field 'complete_prompt'"),
    ],
)
def test_a_wrong_file_is_told_by_line_and_field(
    name: str, row: dict[str, object], said: str, home: Path
) -> None:
    Path("a.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(UsageError, match=said):
        added(name, "a.jsonl")
    assert find_added(name) is None
    assert [path.name for path in (home / "benchmarks").iterdir()] == [".lock"], "nothing half is left"


def test_a_wrong_puzzle_is_told() -> None:
    Path("p.json").write_text(json.dumps({"train": [{"input": [[10]], "output": [[1]]}], "test": []}))
    with pytest.raises(UsageError, match=r"pair 1 of 'train' has no 'input' that is a grid"):
        added("arc-agi-2", "p.json")


def test_two_records_of_one_name_are_refused() -> None:
    row = json.dumps({"id": 1, "problem": "p", "answer": "1"})
    Path("a.jsonl").write_text(f"{row}\n{row}\n")
    with pytest.raises(UsageError, match="two records are called '1'"):
        added("aime", "a.jsonl")


def write_tasks(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name / "tests").mkdir(parents=True)
        (folder / name / "task.toml").write_text("")
        (folder / name / "instruction.md").write_text("Do it.\n")
        (folder / name / "tests" / "test.sh").write_text("echo 1\n")
    return folder


async def test_a_folder_of_tasks_under_a_name_of_ones_own(tmp_path: Path) -> None:
    folder = write_tasks(tmp_path / "ours", "one", "two")
    new, _ = added("our-tasks", str(folder))
    assert (new.tasks, await ids("our-tasks")) == (2, ["one", "two"])
    assert (await described("our-tasks", "one")).digest == (await described(str(folder), "one")).digest
    with pytest.raises(UsageError, match="folder of task directories, not a file"):
        added("others", aime("a.jsonl", range(1)))
    with pytest.raises(UsageError, match="say --from where"):
        added("others")


async def test_what_a_folder_says_of_itself_is_kept(tmp_path: Path) -> None:
    folder = write_tasks(tmp_path / "ours", "one", "two", "three")
    (folder / "benchmark.toml").write_text(
        'name = "ours"\ndescription = "All of ours."\n[datasets]\nsmoke = ["t*"]\nlast = ["three"]\n'
    )
    (folder / "benchmark.lock").write_text('{"version": 1, "tasks": {}}')
    new, _ = added("our-tasks", str(folder))
    assert new.description == "All of ours."
    assert next(one for one in known_benchmarks() if one.name == "our-tasks").description == "All of ours."
    assert await open_benchmark("our-tasks").datasets() == ["default", "smoke", "last"]
    assert await ids("our-tasks", "smoke") == await ids(str(folder), "smoke") == ["three", "two"]
    assert (new.folder / "benchmark.lock").is_file()
    some, _ = added("some-tasks", str(folder), task_ids=("two",))
    assert await ids("some-tasks", "smoke") == ["two"]
    assert await open_benchmark("some-tasks").datasets() == ["default", "smoke"]
    assert any("'last'" in notice for notice in some.notices)
    (folder / "benchmark.toml").write_text('[datasets]\nsmoke = ["one"]\n')
    with pytest.raises(UsageError, match="--overwrite"):
        added("our-tasks", str(folder))
    (folder / "benchmark.toml").unlink()
    (folder / "benchmark.toml").symlink_to("/etc/hostname")
    with pytest.raises(BenchmarkError, match=r"benchmark\.toml"):
        added("other-tasks", str(folder))


async def test_a_list_of_tasks(tmp_path: Path) -> None:
    folder = write_tasks(tmp_path / "hub", "one", "two")
    (folder / "dataset.toml").write_text('[dataset]\nname = "org/hub"\n[[tasks]]\nname = "org/two"\n')
    added("hub", str(folder / "dataset.toml"))
    assert await ids("hub") == ["two"]


async def test_a_repository_of_tasks(tmp_path: Path) -> None:
    made = Repository(tmp_path / "repos" / "tasks")
    commit = made.commit({"one/task.toml": "", "one/instruction.md": "Do it.", "one/tests/test.sh": "echo"})
    new, _ = added("theirs", made.url)
    assert (new.revision, new.origin) == (commit, f"{made.url}@{commit}")
    assert await ids("theirs") == ["one"]
    assert added("bare", str(made.path))[0].revision == commit
    with pytest.raises(UsageError, match="--network is for converted tasks"):
        added("theirs", made.url, overwrite=True, network="public")


async def test_records_in_a_repository_and_the_network_is_said_first(tmp_path: Path) -> None:
    grid = {"input": [[1]], "output": [[2]]}
    made = Repository(tmp_path / "repos" / "arc")
    commit = made.commit({"data/evaluation/00aa.json": json.dumps({"train": [grid], "test": [grid]})})
    watcher = Counting()
    with served(tmp_path / "repos") as url:
        new, _ = add(AddRequest("arc-agi-2", f"{url}/arc"), watcher)
    assert watcher.said == [f"Fetching {url}/arc: this needs the network."]
    assert (new.revision, await ids("arc-agi-2")) == (commit, ["00aa"])


def test_a_pinned_benchmark_is_taken_at_its_commit(tmp_path: Path) -> None:
    made = Repository(tmp_path / "clone")
    made.commit({"one/task.toml": ""})
    with pytest.raises(UsageError, match="69671fbaac6d"):
        added("terminal-bench-2", str(made.path))


async def test_removed_is_gone(home: Path) -> None:
    added("aime", aime("a.jsonl", range(1)))
    assert remove("AIME").name == "aime"
    assert find_added("aime") is None and not (home / "benchmarks" / "aime").exists()
    with pytest.raises(UnknownError, match="no benchmark 'aime' was added; none was"):
        remove("aime")


def test_one_at_a_time() -> None:
    with catalog.locked(), pytest.raises(UserError, match="being added or removed already"):
        added("aime", aime("a.jsonl", range(1)))


KILLED = """
import os, signal, sys
from valkyrie.benchmarks.named.installation import AddRequest, add
class Killer:
    def say(self, line): ...
    def count(self, done, total):
        if done == 3:
            os.kill(os.getpid(), signal.SIGKILL)
add(AddRequest("aime", sys.argv[1], overwrite=True), Killer())
"""


@pytest.mark.parametrize("before", [0, 2])
async def test_killed_in_the_middle_leaves_what_was_there(before: int, home: Path) -> None:
    if before:
        added("aime", aime("a.jsonl", range(before)))
    killed = subprocess.run([sys.executable, "-c", KILLED, aime("b.jsonl", range(9))], check=False)
    assert killed.returncode == -signal.SIGKILL
    there = find_added("aime")
    assert (there.tasks if there else 0) == before
    assert list((home / "benchmarks").glob(".new-*")), "it was killed while it wrote"
    added("aime", "b.jsonl", overwrite=True)
    assert len(await ids("aime")) == 9
    assert not list((home / "benchmarks").glob(".new-*"))

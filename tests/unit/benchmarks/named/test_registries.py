"""`registry.json` and `dataset.toml`: lists of tasks by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.git_repository import Repository
from valkyrie.benchmarks.named.registries import choose, read_dataset, read_registry
from valkyrie.benchmarks.task_dir.benchmark import ContentDigests
from valkyrie.errors import UsageError

COMMIT = "c" * 40


def entry(**more: Any) -> dict[str, Any]:
    return {"name": "one", "git_url": "file:///r.git", "git_commit_id": COMMIT, "path": "tasks/one", **more}


def registry(folder: Path, *datasets: Any) -> Path:
    path = folder / "registry.json"
    path.write_text(json.dumps(list(datasets)))
    return path


def test_tasks_of_a_registry_are_fetched(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "r.git")
    commit = repository.commit({"tasks/one/task.toml": "", "tasks/two/task.toml": "", "x": "y"})
    tasks = [
        {"name": name, "git_url": repository.url, "git_commit_id": commit, "path": f"tasks/{name}/"}
        for name in ("one", "two")
    ]
    path = registry(tmp_path, {"name": "terminal", "version": "2.0", "description": "d", "tasks": tasks})
    chosen = choose(read_registry(path), "terminal@2.0", str(path))
    folders, notices = chosen.fetch(tmp_path / "cache")
    assert notices == []
    assert {name: [file.name for file in folder.iterdir()] for name, folder in folders.items()} == {
        "one": ["task.toml"],
        "two": ["task.toml"],
    }


def test_a_registry_names_no_other_repository_of_this_machine(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "mine.git")
    commit = repository.commit({"tasks/one/task.toml": "", "tasks/one/instruction.md": "x"})
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/link").symlink_to(repository.path)
    for url in (repository.url, str(repository.path), str(tmp_path / "theirs/link")):
        task = {"name": "one", "git_url": url, "git_commit_id": commit, "path": "tasks/one"}
        path = registry(tmp_path / "theirs", {"name": "b", "version": "1", "tasks": [task]})
        with pytest.raises(UsageError, match=r"task one names the repository .*mine\.git.*outside of"):
            choose(read_registry(path), "b", str(path)).fetch(tmp_path / "cache")


def test_versions(tmp_path: Path) -> None:
    path = registry(
        tmp_path,
        {"name": "Bench", "version": "1.0", "tasks": [entry()]},
        {"name": "Bench", "version": "2.0", "tasks": [entry()]},
        {"name": "other", "version": "head", "tasks": [entry(path="")]},
    )
    datasets = read_registry(path)
    assert choose(datasets, "bench", "here").version == "2.0"
    assert choose(datasets, "bench@1.0", "here").version == "1.0"
    with pytest.raises(UsageError, match=r"no data set 'bench@3'; it has Bench@1\.0, Bench@2\.0"):
        choose(datasets, "bench@3", "here")
    with pytest.raises(UsageError, match="other@head"):
        choose(datasets, "otter", "here")


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ({"git_commit_id": "main"}, "all 40 digits"),
        ({"git_url": ""}, "git_url is missing"),
        ({"path": "../x"}, "no folder"),
        ({"path": ".git/hooks"}, "no folder"),
        ({"name": "a/b"}, "no task's name"),
    ],
)
def test_tasks_that_are_none(task: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = registry(tmp_path, {"name": "b", "version": "1", "tasks": [entry(**task)]})
    with pytest.raises(UsageError, match=says):
        read_registry(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("{}", "is a list of data sets"),
        ('[{"name": "a"}]', "no list of tasks"),
        ('[{"name": "a", "tasks": []}]', "lists no tasks"),
        (json.dumps([{"name": "a", "tasks": [entry(), entry(name="ONE")]}]), "two tasks are called"),
    ],
)
def test_files_that_are_none(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "registry.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=says):
        read_registry(path)


def make_task(folder: Path, name: str = "") -> Path:
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text(f'[task]\nname = "{name}"\n' if name else "")
    (folder / "tests" / "test.sh").write_text("exit 0\n")
    return folder


def test_a_data_set_beside_its_tasks(tmp_path: Path) -> None:
    one = make_task(tmp_path / "tasks" / "one")
    two = make_task(tmp_path / "tasks" / "b", "org/two")
    digest = ContentDigests().of(one)
    listing = tmp_path / "dataset.toml"
    listing.write_text(
        f'[dataset]\nname = "org/mine"\n[[tasks]]\nname = "org/one"\ndigest = "sha256:{digest}"\n'
        '[[tasks]]\nname = "org/two"\ndigest = "sha256:00"\n'
    )
    found = read_dataset(listing)
    assert (found.name, found.tasks) == ("mine", {"one": one, "two": two})
    assert list(found.notices) == ["digests made by another tool were not checked (1 tasks: org/two)"]


def test_a_data_set_without_its_tasks(tmp_path: Path) -> None:
    make_task(tmp_path / "one")
    listing = tmp_path / "dataset.toml"
    listing.write_text('[dataset]\nname = "x"\n[[tasks]]\nname = "org/on"\n')
    with pytest.raises(UsageError, match=r"lists the task 'org/on', which is not in"):
        read_dataset(listing)
    listing.write_text('[dataset]\nname = "x"\n')
    with pytest.raises(UsageError, match=r"\[\[tasks\]\]"):
        read_dataset(listing)

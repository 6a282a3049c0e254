"""What a path holds that can be checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from valkyrie.errors import UsageError
from valkyrie.evals.lint.linter import specs_of, targets_of

FILES = {
    ".vally.yaml": "{}",
    "evals/a/eval.yaml": "stimuli: []",
    "evals/b.eval.yml": "stimuli: []",
    "evals/x.experiment.yaml": "variants: {}",
    "evals/other.yaml": "variants: {}\nevals: []",
    "evals/plain.yaml": "stimuli: []",
    ".github/skills/s/SKILL.md": "---\n---",
    ".github/skills/s/evals/eval.yaml": "stimuli: []",
    ".hidden/eval.yaml": "stimuli: []",
    "node_modules/p/eval.yaml": "stimuli: []",
    "agents/mine/contract.yaml": "name: mine",
    "agents/mine/eval.yaml": "not ours",
    "tasks/t1/task.toml": "",
    "tasks/t1/eval.yaml": "not ours",
    "bench/benchmark.toml": "",
    "bench/t/task.toml": "",
    "notes.txt": "",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def kinds(folder: Path, path: str) -> list[tuple[str, str]]:
    return [(one.kind, str(one.path.relative_to(folder))) for one in targets_of(folder / path)]


def test_a_folder_is_searched(folder: Path) -> None:
    assert kinds(folder, ".") == [
        ("project", ".vally.yaml"),
        ("skill", ".github/skills/s"),
        ("spec", ".github/skills/s/evals/eval.yaml"),
        ("agent", "agents/mine"),
        ("benchmark", "bench"),
        ("spec", "evals/b.eval.yml"),
        ("experiment", "evals/x.experiment.yaml"),
        ("spec", "evals/a/eval.yaml"),
        ("task", "tasks/t1"),
    ]


@pytest.mark.parametrize(
    ("path", "kind", "where"),
    [
        (".vally.yaml", "project", ".vally.yaml"),
        ("evals/plain.yaml", "spec", "evals/plain.yaml"),
        ("evals/other.yaml", "experiment", "evals/other.yaml"),
        ("evals/x.experiment.yaml", "experiment", "evals/x.experiment.yaml"),
        (".github/skills/s/SKILL.md", "skill", ".github/skills/s"),
        ("agents/mine", "agent", "agents/mine"),
        ("agents/mine/contract.yaml", "agent", "agents/mine"),
        ("tasks/t1/task.toml", "task", "tasks/t1"),
        ("bench", "benchmark", "bench"),
    ],
)
def test_one_thing_is_known_by_its_name_or_its_keys(folder: Path, path: str, kind: str, where: str) -> None:
    assert kinds(folder, path) == [(kind, where)]


@pytest.mark.parametrize("path", ["gone", "notes.txt", ".hidden/none"])
def test_what_is_nothing_is_refused(folder: Path, path: str) -> None:
    with pytest.raises(UsageError):
        targets_of(folder / path)


def test_an_empty_folder_says_how_to_begin(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="valk init"):
        targets_of(tmp_path)


def test_eval_spec_takes_any_file_and_only_the_specs_of_a_folder(folder: Path) -> None:
    assert [one.kind for one in specs_of(folder / "evals/other.yaml")] == ["spec"]
    assert [one.path.name for one in specs_of(folder / "evals")] == ["b.eval.yml", "eval.yaml"]
    with pytest.raises(UsageError, match="no eval spec"):
        specs_of(folder / "tasks")
    with pytest.raises(UsageError, match="no eval spec"):
        specs_of(folder / "gone")


def test_links_to_folders_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "eval.yaml").write_text("stimuli: []")
    assert kinds(tmp_path, ".") == [("spec", "eval.yaml")]

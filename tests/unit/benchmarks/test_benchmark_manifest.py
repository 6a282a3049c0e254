from __future__ import annotations

from pathlib import Path

import pytest

from valkyrie.benchmarks.task_dir.benchmark import BenchmarkManifest, read_manifest
from valkyrie.errors import BenchmarkError, UsageError

IDS = ["a-1", "a-2", "b/x", "c"]


def manifest(folder: Path, text: str) -> BenchmarkManifest:
    (folder / "benchmark.toml").write_text(text)
    return read_manifest(folder)


def test_without_a_file_there_is_the_default_dataset(tmp_path: Path) -> None:
    found = read_manifest(tmp_path)
    assert found.dataset_names == ["default"]
    assert found.choose("default", IDS, "b") == IDS


def test_datasets_are_lists_of_ids_and_globs(tmp_path: Path) -> None:
    found = manifest(tmp_path, 'name = "n"\n[datasets]\nsome = ["c", "a-*", "a-1"]\ndefault = ["b/*"]\n')
    assert found.dataset_names == ["default", "some"]
    assert found.choose("some", IDS, "b") == ["c", "a-1", "a-2"]
    assert found.choose("default", IDS, "b") == ["b/x"]


def test_an_unknown_dataset_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"it has: default, smoke. Did you mean 'smoke'"):
        manifest(tmp_path, '[datasets]\nsmoke = ["c"]').choose("smok", IDS, "b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nmae = 'x'", "unknown key nmae. Did you mean 'name'"),
        ("name = 3", "name: Input should be a valid string"),
        ("name = ''", "name: String should have at least 1"),
        ("[datasets]\nx = 'c'", "datasets.x"),
        ("name =", "not valid TOML"),
    ],
)
def test_bad_manifests(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BenchmarkError, match=message) as caught:
        manifest(tmp_path, text)
    assert "benchmark.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"), [('[datasets]\nx = ["z*"]', "fits no task"), ("[datasets]\nx = []", "is empty")]
)
def test_datasets_without_tasks(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises((BenchmarkError, UsageError), match=message):
        manifest(tmp_path, text).choose("x", IDS, "b")

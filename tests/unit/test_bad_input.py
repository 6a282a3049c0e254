"""Input that is no file, has no end, or is nested without one: refused in words, not waited for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from valkyrie.benchmarks.named.registries import read_dataset
from valkyrie.benchmarks.task_dir.benchmark import read_manifest
from valkyrie.benchmarks.task_dir.task_toml import ParsedToml
from valkyrie.cli.main import main
from valkyrie.cli.options import read_task_ids
from valkyrie.config import file
from valkyrie.errors import UsageError, ValkyrieError
from valkyrie.secrets.sources import LONGEST_VALUE, SecretStore
from valkyrie.specs.model import SpecError
from valkyrie.specs.yaml_nodes import load_yaml
from valkyrie.text import read_regular, shorten_names

DEEP = "[" * 5000 + "]" * 5000


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_only_regular_files_are_read(pipe: Path, tmp_path: Path) -> None:
    for path in (pipe, Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match="not a"):
            read_regular(path, 100)
    (tmp_path / "file").write_bytes(b"x" * 100)
    assert read_regular(tmp_path / "file", 100) == b"x" * 100
    with pytest.raises(OSError, match="larger than"):
        read_regular(tmp_path / "file", 99)


def test_task_ids_files_are_regular(pipe: Path) -> None:
    for path in ("/dev/zero", str(pipe)):
        with pytest.raises(click.UsageError, match=r"not a regular file.*--task-ids-file -"):
            read_task_ids(path)


@pytest.mark.parametrize("words", [("lint",), ("eval", "-e"), ("eval", "--dry-run", "-e")])
def test_specs_are_regular(pipe: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, str(pipe)]) in (1, 2)
    assert "bug in Valkyrie" not in capsys.readouterr().err
    with pytest.raises(SpecError, match="not a regular file"):
        load_yaml(Path("/dev/zero"))


def _toml(path: Path) -> object:
    path.write_text(f"x = {DEEP}\n")
    return ParsedToml.read(path)


def _manifest(path: Path) -> object:
    (path.parent / "benchmark.toml").write_text(f"name = {DEEP}\n")
    return read_manifest(path.parent)


def _dataset(path: Path) -> object:
    path.write_text(f"x = {DEEP}\n")
    return read_dataset(path)


def _config(path: Path) -> object:
    return file.parse(f"x: {DEEP}\n", path)


def _registry(path: Path) -> object:
    path.write_text(f"x: {DEEP}\n")
    return file.read_registry(path)


def _spec(path: Path) -> object:
    path.write_text(f"x: {DEEP}\n")
    return load_yaml(path)


@pytest.mark.parametrize("read", [_toml, _manifest, _dataset, _config, _registry, _spec])
def test_what_is_nested_without_end_is_the_authors_mistake(
    read: Callable[[Path], object], tmp_path: Path
) -> None:
    with pytest.raises(ValkyrieError, match=r"(?i)nested|deep"):
        read(tmp_path / "file")


def test_a_secret_is_text_of_at_most_64_kib(tmp_path: Path) -> None:
    store = SecretStore(tmp_path / "secrets.json")
    store.set("key", "ü" * (LONGEST_VALUE // 2))
    for value, why in (("x" * (LONGEST_VALUE + 1), "64 KiB"), ("\udcff", "UTF-8")):
        with pytest.raises(UsageError, match=why):
            store.set("key", value)
    assert store.get("key") == "ü" * (LONGEST_VALUE // 2)


def test_long_names_are_shortened_in_messages() -> None:
    path = "/tmp/" + "a/" * 150
    told = shorten_names(f"No agent is called {'x' * 9000!r}. Did you mean {'y z' * 500!r}? See {path}.")
    assert len(told) < 900 and path in told
    assert told.startswith(f"No agent is called '{'x' * 199}…'. Did you mean 'y z")
    assert shorten_names("a" * 200) == "a" * 200


@pytest.mark.parametrize(
    "words",
    [
        ("run", "start", "--agent", "x" * 5000, "--benchmark", "quickstart"),
        ("run", "fetch", "x" * 5000),
        ("config", "get", "x" * 5000),
        ("agent", "remove", "x" * 5000, "--yes"),
        ("x" * 5000,),
        ("run", "list", f"--{'x' * 5000}"),
    ],
)
def test_commands_shorten_names(
    words: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VALKYRIE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "config.yaml"))
    assert main(list(words)) == 2
    assert len(capsys.readouterr().err) < 2000

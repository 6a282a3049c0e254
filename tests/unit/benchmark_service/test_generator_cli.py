"""The command create-benchmark-service."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from benchmark_service import __version__
from benchmark_service.cli.cli import main

ROOT = Path(__file__).resolve().parents[3]


def create(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="create-benchmark-service")


def dependencies(project: Path) -> list[str]:
    described = tomllib.loads((project / "pyproject.toml").read_text())
    found: list[str] = described["project"]["dependencies"]
    return found


def test_success_says_where_and_what_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = create("Demo_Bench", "--framework", str(ROOT))
    assert (done.exit_code, done.stderr) == (0, "")
    project = tmp_path / "demo-bench-benchmark-service"
    assert done.stdout.startswith(f"Created demo-bench-benchmark-service at {project}\n")
    steps = [
        "cd demo-bench-benchmark-service",
        "make install",
        "make test",
        "make dev",
        "valk config service add demo-bench http://127.0.0.1:8001",
        "valk run start --benchmark demo-bench --agent ./agents/example",
    ]
    positions = [done.stdout.index(f"\n  {step}") for step in steps]
    assert positions == sorted(positions)
    assert dependencies(project) == [f"valkyrie-bench[daytona] @ {ROOT.as_uri()}"]


def test_left_out_the_framework_is_the_installed_one(tmp_path: Path) -> None:
    done = create("demo", "--output-dir", str(tmp_path / "new" / "folder"))
    assert done.exit_code == 0
    project = tmp_path / "new" / "folder" / "demo-benchmark-service"
    assert dependencies(project) == [f"valkyrie-bench[daytona] @ {ROOT.as_uri()}"]
    assert "which this command was installed from" in done.stdout
    assert f"\n  cd {project}\n" in done.stdout  # no chain of `..`


@pytest.mark.parametrize("name", ["", "my bench", "1st", "json"])
def test_a_bad_name_is_one_line_on_stderr_and_exit_1(tmp_path: Path, name: str) -> None:
    done = create(name, "--output-dir", str(tmp_path))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_existing_project_is_exit_1(tmp_path: Path) -> None:
    assert create("demo", "--output-dir", str(tmp_path)).exit_code == 0
    again = create("demo", "--output-dir", str(tmp_path))
    assert again.exit_code == 1
    assert "already exists" in again.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("demo", "more"),
        ("demo", "--framework", "no/such/path"),
        ("demo", "--framework", str(ROOT / "src")),
        ("demo", "--framework", str(ROOT / "README.md")),
        ("demo", "--image", 'x" or evil()'),
        ("demo", "--image", ""),
        ("demo", "--colour"),
    ],
)
def test_wrong_usage_is_exit_2_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = create(*arguments)
    assert done.exit_code == 2
    assert "Error: " in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_version_and_help() -> None:
    assert __version__ in create("--version").stdout
    for word in ("NAME", "--framework", "--image", "--output-dir"):
        assert word in create("--help").stdout

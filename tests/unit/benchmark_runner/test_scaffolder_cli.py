"""The command create-benchmark-runner."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from benchmark_runner.scaffolder.main import main
from benchmark_service import __version__

ROOT = Path(__file__).resolve().parents[3]


def create(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="create-benchmark-runner")


def dependencies(project: Path) -> list[str]:
    described = tomllib.loads((project / "pyproject.toml").read_text())
    found: list[str] = described["project"]["dependencies"]
    return found


def test_success_says_where_and_what_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = create("Demo_Bench", "--framework", str(ROOT))
    assert (done.exit_code, done.stderr) == (0, "")
    project = tmp_path / "demo-bench-runner"
    assert done.stdout.startswith(f"Created demo-bench-runner at {project}\n")
    steps = ["cd demo-bench-runner", "make install", "make test", ".venv/bin/demo-bench-runner run"]
    positions = [done.stdout.index(f"\n  {step}") for step in steps]
    assert positions == sorted(positions)
    assert dependencies(project) == [f"valkyrie-bench @ {ROOT.as_uri()}"]


def test_left_out_the_framework_is_the_installed_one(tmp_path: Path) -> None:
    done = create("demo", "--output-dir", str(tmp_path / "new" / "folder"))
    assert done.exit_code == 0
    project = tmp_path / "new" / "folder" / "demo-runner"
    assert dependencies(project) == [f"valkyrie-bench @ {ROOT.as_uri()}"]
    assert "which this command was installed from" in done.stdout


def test_other_templates_are_used_instead(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "hello.txt.jinja").write_text("{{ benchmark_camel }}")
    done = create("demo", "--templates-dir", str(tmp_path / "mine"), "--output-dir", str(tmp_path))
    assert done.exit_code == 0 and "make install" not in done.stdout
    assert [path.name for path in (tmp_path / "demo-runner").iterdir()] == ["hello.txt"]
    assert (tmp_path / "demo-runner" / "hello.txt").read_text() == "Demo"


@pytest.mark.parametrize("name", ["", "my bench", "1st", "json"])
def test_a_bad_name_is_one_line_on_stderr_and_exit_1(tmp_path: Path, name: str) -> None:
    done = create(name, "--output-dir", str(tmp_path))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_broken_template_is_one_line_and_exit_1(tmp_path: Path) -> None:
    (tmp_path / "a.jinja").write_text("{{ oops }}")
    done = create("demo", "--templates-dir", str(tmp_path), "--output-dir", str(tmp_path / "out"))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: Template a.jinja, line 1: 'oops' is undefined")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("demo", "more"),
        ("demo", "--framework", "no/such/path"),
        ("demo", "--framework", str(ROOT / "README.md")),
        ("demo", "--templates-dir", "no/such/folder"),
        ("demo", "--templates-dir", str(ROOT / "README.md")),
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
    for word in ("NAME", "--framework", "--templates-dir", "--output-dir"):
        assert word in create("--help").stdout

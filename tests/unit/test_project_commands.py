"""The commands create-benchmark-service and create-benchmark-runner."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import benchmark_runner.scaffolder.main
import benchmark_service.cli.cli
from benchmark_service import __version__

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class ProjectCommand:
    """One of the commands, and what it makes."""

    name: str
    command: click.Command
    suffix: str
    """What follows the benchmark's name in the project's."""
    extras: str
    steps: tuple[str, ...]
    """What it says one does next, besides installing and testing."""
    option: str
    """An option the other one does not have."""

    def create(self, *arguments: str) -> Result:
        return CliRunner().invoke(self.command, arguments, prog_name=self.name)

    @property
    def dependencies(self) -> list[str]:
        return [f"valkyrie-bench{self.extras} @ {ROOT.as_uri()}"]


SERVICE = ProjectCommand(
    "create-benchmark-service",
    benchmark_service.cli.cli.main,
    "benchmark-service",
    "[daytona]",
    (
        "make dev",
        "valk config service add demo-bench http://127.0.0.1:8001",
        "valk run start --benchmark demo-bench --agent ./agents/example",
    ),
    "--image",
)
RUNNER = ProjectCommand(
    "create-benchmark-runner",
    benchmark_runner.scaffolder.main.main,
    "runner",
    "",
    (".venv/bin/demo-bench-runner run",),
    "--templates-dir",
)


@pytest.fixture(params=[SERVICE, RUNNER], ids=lambda made: made.suffix)
def project_command(request: pytest.FixtureRequest) -> ProjectCommand:
    found: ProjectCommand = request.param
    return found


def dependencies(project: Path) -> list[str]:
    described = tomllib.loads((project / "pyproject.toml").read_text())
    found: list[str] = described["project"]["dependencies"]
    return found


def test_success_says_where_and_what_next(
    project_command: ProjectCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = project_command.create("Demo_Bench", "--framework", str(ROOT))
    assert (done.exit_code, done.stderr) == (0, "")
    project = tmp_path / f"demo-bench-{project_command.suffix}"
    assert done.stdout.startswith(f"Created {project.name} at {project}\n")
    steps = [f"cd {project.name}", "make install", "make test", *project_command.steps]
    positions = [done.stdout.index(f"\n  {step}") for step in steps]
    assert positions == sorted(positions)
    assert dependencies(project) == project_command.dependencies


def test_left_out_the_framework_is_the_installed_one(project_command: ProjectCommand, tmp_path: Path) -> None:
    done = project_command.create("demo", "--output-dir", str(tmp_path / "new" / "folder"))
    assert done.exit_code == 0
    project = tmp_path / "new" / "folder" / f"demo-{project_command.suffix}"
    assert dependencies(project) == project_command.dependencies
    assert "which this command was installed from" in done.stdout
    assert f"\n  cd {project}\n" in done.stdout  # no chain of `..`


def test_other_templates_are_used_instead(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "hello.txt.jinja").write_text("{{ benchmark_camel }}")
    done = RUNNER.create("demo", "--templates-dir", str(tmp_path / "mine"), "--output-dir", str(tmp_path))
    assert done.exit_code == 0 and "make install" not in done.stdout
    assert [path.name for path in (tmp_path / "demo-runner").iterdir()] == ["hello.txt"]
    assert (tmp_path / "demo-runner" / "hello.txt").read_text() == "Demo"


@pytest.mark.parametrize("name", ["", "my bench", "1st", "json"])
def test_a_bad_name_is_one_line_on_stderr_and_exit_1(
    project_command: ProjectCommand, tmp_path: Path, name: str
) -> None:
    done = project_command.create(name, "--output-dir", str(tmp_path))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_existing_project_is_exit_1(project_command: ProjectCommand, tmp_path: Path) -> None:
    assert project_command.create("demo", "--output-dir", str(tmp_path)).exit_code == 0
    again = project_command.create("demo", "--output-dir", str(tmp_path))
    assert again.exit_code == 1
    assert "already exists" in again.stderr


def test_a_broken_template_is_one_line_and_exit_1(tmp_path: Path) -> None:
    (tmp_path / "a.jinja").write_text("{{ oops }}")
    done = RUNNER.create("demo", "--templates-dir", str(tmp_path), "--output-dir", str(tmp_path / "out"))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: Template a.jinja, line 1: 'oops' is undefined")
    assert done.stderr.count("\n") == 1


WRONG_USAGE = (
    (),
    ("demo", "more"),
    ("demo", "--framework", "no/such/path"),
    ("demo", "--framework", str(ROOT / "src")),
    ("demo", "--framework", str(ROOT / "README.md")),
    ("demo", "--colour"),
)
BAD_IMAGES = (("demo", "--image", 'x" or evil()'), ("demo", "--image", ""))
BAD_TEMPLATES = (
    ("demo", "--templates-dir", "no/such/folder"),
    ("demo", "--templates-dir", str(ROOT / "README.md")),
)


@pytest.mark.parametrize(
    ("made", "arguments"),
    [
        *((SERVICE, arguments) for arguments in (*WRONG_USAGE, *BAD_IMAGES)),
        *((RUNNER, arguments) for arguments in (*WRONG_USAGE, *BAD_TEMPLATES)),
    ],
)
def test_wrong_usage_is_exit_2_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: ProjectCommand, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = made.create(*arguments)
    assert done.exit_code == 2
    assert "Error: " in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_version_and_help(project_command: ProjectCommand) -> None:
    assert __version__ in project_command.create("--version").stdout
    for word in ("NAME", "--framework", project_command.option, "--output-dir"):
        assert word in project_command.create("--help").stdout

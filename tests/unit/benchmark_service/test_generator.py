"""What create-benchmark-service writes."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from benchmark_runner.agent_bundle.contract import load_contract
from benchmark_service.cli.generator import ProjectSpec, generate
from benchmark_service.scaffold import GenerationError, benchmark_name

REQUIREMENT = "valkyrie-bench[daytona]>=0.1,<0.2"
TREE = """
.dockerignore .gitignore .python-version Dockerfile Makefile README.md main.py pyproject.toml
.github/workflows/auto-tag-release.yml .github/workflows/check-pr-title.yml .github/workflows/style.yml
.github/workflows/test.yml .github/workflows/typecheck.yml
agents/example/contract.yaml agents/example/run.sh
src/demo_bench_benchmark_service/__init__.py src/demo_bench_benchmark_service/benchmark_service.py
tests/__init__.py tests/memory_sandbox.py tests/test_benchmark.py tests/test_http.py
""".split()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return generate(ProjectSpec("demo-bench", REQUIREMENT), tmp_path)


@pytest.mark.parametrize(
    ("given", "name"), [("demo", "demo"), ("Demo_Bench", "demo-bench"), ("a1-B2_c3", "a1-b2-c3"), ("x", "x")]
)
def test_names_are_lower_case_and_hyphenated(given: str, name: str) -> None:
    assert benchmark_name(given) == name


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "cannot be empty"),
        ("  ", "cannot be empty"),
        ("my bench", "alphanumeric"),
        ("../up", "alphanumeric"),
        ("bench\n", "alphanumeric"),
        ("bänk", "alphanumeric"),
        ("1st", "must start with a letter"),
        ("-dash", "must start with a letter"),
        ("_under", "must start with a letter"),
        ("json", "conflicts with Python standard library"),
        ("JSON", "conflicts with Python standard library"),
        ("concurrent", "conflicts with Python standard library"),
    ],
)
def test_what_cannot_be_a_name_is_refused(given: str, message: str) -> None:
    with pytest.raises(GenerationError, match=message):
        benchmark_name(given)


def test_the_tree_is_complete_and_no_mark_is_left(project: Path) -> None:
    assert project.name == "demo-bench-benchmark-service"
    written = {str(path.relative_to(project)): path for path in project.rglob("*") if path.is_file()}
    assert sorted(written) == sorted(TREE)
    assert [name for name, path in written.items() if "{{ " in path.read_text().replace("${{ ", "")] == []
    assert os.access(project / "agents/example/run.sh", os.X_OK)
    assert project.stat().st_mode & 0o777 == 0o755


def test_the_project_file_names_the_project_and_its_framework(project: Path) -> None:
    described = tomllib.loads((project / "pyproject.toml").read_text())
    assert described["project"]["name"] == "demo-bench-benchmark-service"
    assert described["project"]["dependencies"] == [REQUIREMENT]
    assert described["project"]["requires-python"] == ">=3.11"
    assert described["tool"]["ruff"]["line-length"] == 120
    assert described["tool"]["basedpyright"]["typeCheckingMode"] == "strict"


def test_the_readme_and_the_ignores_are_as_promised(project: Path) -> None:
    assert (project / "README.md").read_text().startswith("# demo-bench Service\n")
    assert ".git/" in (project / ".dockerignore").read_text().splitlines()
    assert ".venv/" in (project / ".gitignore").read_text().splitlines()
    version = (project / ".python-version").read_text().strip()
    assert version == f"{sys.version_info.major}.{sys.version_info.minor}"


def test_every_workflow_is_yaml_with_jobs(project: Path) -> None:
    for workflow in (project / ".github/workflows").iterdir():
        jobs = yaml.safe_load(workflow.read_text())["jobs"]
        assert all(job["steps"] for job in jobs.values()), workflow.name


def test_the_example_agent_is_a_valid_agent(project: Path) -> None:
    contract = load_contract(project / "agents/example")
    assert contract.name == "example"
    assert contract.final_output == "/workspace/answer.txt"


@pytest.mark.parametrize(("image", "line"), [(None, "= None"), ("python:3.12-slim", '= "python:3.12-slim"')])
def test_an_image_is_named_only_when_asked_for(tmp_path: Path, image: str | None, line: str) -> None:
    project = generate(ProjectSpec("demo", REQUIREMENT, image), tmp_path)
    source = (project / "src/demo_benchmark_service/benchmark_service.py").read_text()
    assert f"IMAGE: str | None {line}\n" in source


@pytest.mark.slow
def test_the_generated_code_is_clean_and_its_tests_pass(project: Path) -> None:
    for command in (
        ["ruff", "check", "--no-cache", "."],
        ["ruff", "format", "--no-cache", "--check", "."],
        # Nothing is installed here, so there is no distribution for /version to name.
        [
            "pytest",
            "-p",
            "no:cacheprovider",
            "--deselect",
            "tests/test_http.py::test_version_names_this_service",
        ],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=project,
            env={**os.environ, "PYTHONPATH": str(project / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["a", "zz-top", "a-", "c--d", "n" * 50])
def test_every_name_gives_clean_code(tmp_path: Path, name: str) -> None:
    generate(ProjectSpec(name, REQUIREMENT), tmp_path)
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "."],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout


def test_what_is_there_already_is_left_alone(project: Path) -> None:
    (project / "main.py").write_text("mine")
    with pytest.raises(GenerationError, match="already exists"):
        generate(ProjectSpec("demo-bench", REQUIREMENT), project.parent)
    assert (project / "main.py").read_text() == "mine"
    assert list(project.parent.iterdir()) == [project]


def test_a_dangling_link_counts_as_there(tmp_path: Path) -> None:
    (tmp_path / "demo-benchmark-service").symlink_to("nowhere")
    with pytest.raises(GenerationError, match="already exists"):
        generate(ProjectSpec("demo", REQUIREMENT), tmp_path)


def test_a_failure_half_way_leaves_nothing(tmp_path: Path) -> None:
    # Too long for the folder's final name, while the temporary one could be written.
    with pytest.raises(GenerationError, match="cannot be written"):
        generate(ProjectSpec("n" * 240, REQUIREMENT), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_parent_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GenerationError, match="cannot be written"):
        generate(ProjectSpec("demo", REQUIREMENT), tmp_path / "file")

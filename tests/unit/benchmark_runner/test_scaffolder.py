"""What create-benchmark-runner writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from benchmark_runner.agent_bundle.bundle import list_folder
from benchmark_runner.agent_bundle.contract import load_contract
from benchmark_runner.agent_bundle.resolution import resolve
from benchmark_runner.scaffolder.generator import RunnerSpec, generate
from benchmark_service.scaffold import GenerationError

ROOT = Path(__file__).resolve().parents[3]
REQUIREMENT = "valkyrie-bench>=0.1,<0.2"
TREE = """
.dockerignore .gitignore .python-version .valkyrieignore Dockerfile Makefile README.md pyproject.toml
.github/workflows/auto-tag-release.yml .github/workflows/check-pr-title.yml .github/workflows/style.yml
.github/workflows/test.yml .github/workflows/typecheck.yml
contract.yaml install.py run.sh push_snapshot.py
data/sample.json runner/__init__.py runner/benchmark.py runner/cli.py
tests/__init__.py tests/loopback.py tests/test_runner.py
""".split()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return generate(RunnerSpec("demo-bench", REQUIREMENT), tmp_path)


def test_the_tree_is_complete_and_nothing_is_left_to_fill_in(project: Path) -> None:
    assert project.name == "demo-bench-runner"
    written = {str(path.relative_to(project)): path for path in project.rglob("*") if path.is_file()}
    assert sorted(written) == sorted(TREE)
    for name, path in written.items():
        text = path.read_text()
        assert "{%" not in text and "{{ " not in text.replace("${{ ", ""), name
    assert os.access(project / "run.sh", os.X_OK)


def test_the_project_file_names_the_command_and_the_framework(project: Path) -> None:
    described = tomllib.loads((project / "pyproject.toml").read_text())
    assert described["project"]["name"] == "demo-bench-runner"
    assert described["project"]["scripts"] == {
        "demo-bench-runner": "runner.cli:cli",
        "benchmark": "benchmark_runner.sandbox.cli:main",
    }
    assert described["project"]["dependencies"] == [REQUIREMENT]
    assert described["tool"]["mypy"]["strict"] is True
    assert {"ruff", "pytest"} <= described["tool"].keys()


def test_the_runner_is_named_after_the_benchmark(project: Path) -> None:
    source = (project / "runner" / "benchmark.py").read_text()
    assert "class DemoBenchRunner(BenchmarkRunner):" in source
    assert 'NAME = "demo-bench"' in source
    assert 'GENERATION_VERSION_ENV = "DEMO_BENCH_GENERATION_VERSION"' in source


def test_the_image_is_as_promised(project: Path) -> None:
    lines = (project / "Dockerfile").read_text().splitlines()
    assert 'ENTRYPOINT ["demo-bench-runner"]' in lines
    assert "ARG DEMO_BENCH_GENERATION_VERSION=dev" in lines
    assert "ENV DEMO_BENCH_GENERATION_VERSION=${DEMO_BENCH_GENERATION_VERSION}" in lines
    assert "VOLUME /app/results" in lines
    assert lines.index("USER runner") > max(at for at, line in enumerate(lines) if line.startswith("RUN"))
    assert "uv.lock" not in "\n".join(lines)
    assert ".env" in (project / ".dockerignore").read_text().splitlines()


def test_make_lists_what_is_promised(project: Path) -> None:
    listed = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=project, capture_output=True, text=True, check=True
    ).stdout
    words = "help install lock sync test lint format typecheck agent docker-build docker-run snapshot clean"
    assert [line.split()[1] for line in listed.splitlines()] == words.split()


def test_the_sample_is_what_the_example_service_asks(project: Path) -> None:
    sample = json.loads((project / "data" / "sample.json").read_text())
    asked = json.loads((ROOT / "examples" / "services" / "trivia" / "questions.json").read_text())
    tests = {test["id"]: test["question"] for test in sample["tests"]}
    assert tests == {task_id: entry["question"] for task_id, entry in asked.items()}
    assert len(sample["tests"]) == len(tests)
    assert sample["dataset_name"] == "default"


def test_every_workflow_is_yaml_with_jobs(project: Path) -> None:
    for workflow in (project / ".github/workflows").iterdir():
        jobs = yaml.safe_load(workflow.read_text())["jobs"]
        assert all(job["steps"] for job in jobs.values()), workflow.name


def test_the_folder_is_an_agent(project: Path) -> None:
    contract = load_contract(project)
    assert contract.name == "demo-bench-runner"
    command = resolve(contract, "a/model", {}).command("/tmp/problem.txt", "a task")
    assert command.endswith("/run.sh '/tmp/problem.txt' 'a task' 'a/model' ''")


def test_only_what_runs_goes_into_the_sandbox(project: Path) -> None:
    for folder in ("results/first", ".mypy_cache", "vendor", "wheels", "lib"):
        (project / folder).mkdir(parents=True)
        (project / folder / "file").touch()
    tops = {name.split("/")[0] for name, _ in list_folder(project)}
    assert {"contract.yaml", "install.py", "run.sh", "runner", "vendor"} <= tops
    assert not tops & {"results", "data", "tests", "wheels", "lib", ".mypy_cache", ".github"}


def test_the_pushed_snapshot_holds_no_secret_and_no_result(project: Path) -> None:
    (project / ".env").write_text("CUSTOM_API_KEY=secret")
    (project / "results").mkdir()

    def push(**environment: str) -> str:
        command = [sys.executable, "push_snapshot.py", "--dry-run"]
        return subprocess.run(
            command, cwd=project, env=environment, capture_output=True, text=True, check=True
        ).stdout

    said = push()
    assert said == "Snapshot demo-bench-runner-pkg: Dockerfile, pyproject.toml, README.md, data, runner\n"
    assert "Snapshot our-demo-bench-runner-pkg-7: " in push(
        DAYTONA_SNAPSHOT_PREFIX="our-", DAYTONA_SNAPSHOT_VERSION="7"
    )
    assert "Snapshot mine: " in push(DAYTONA_SNAPSHOT_NAME="mine", DAYTONA_SNAPSHOT_VERSION="7")


@pytest.mark.parametrize("name", ["a", "zz-top", "a-", "c--d", "n" * 57])
def test_every_name_gives_clean_code_and_an_agent(tmp_path: Path, name: str) -> None:
    project = generate(RunnerSpec(name, REQUIREMENT), tmp_path)
    assert load_contract(project).name == f"{name}-runner"
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "."],
            cwd=project,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_generated_tests_pass(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_name_too_long_for_an_agent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GenerationError, match="at most 57 characters"):
        generate(RunnerSpec("n" * 58, REQUIREMENT), tmp_path)


def test_what_is_there_already_is_left_alone(project: Path) -> None:
    with pytest.raises(GenerationError, match="already exists"):
        generate(RunnerSpec("demo-bench", REQUIREMENT), project.parent)
    assert list(project.parent.iterdir()) == [project]

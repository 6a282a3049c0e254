"""A service made by create-benchmark-service, taken from generation to a running server without an edit."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.ports import free_port
from valkyrie.executor.client import ExecutorClient
from valkyrie.store.layout import DataFolder

ROOT = Path(__file__).resolve().parents[2]
NAME = "demo-bench"
CREATE = "from benchmark_service.cli.cli import main; main(prog_name='create-benchmark-service')"
OURS = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHONPATH", "VIRTUAL_ENV", "AUTH_REQUIRED", "BENCHMARK_API_KEY")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def author_environment() -> dict[str, str]:
    """The environment of someone with a terminal of their own: nothing of this test run's."""
    return {name: value for name, value in os.environ.items() if name not in OURS}


def run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**author_environment(), **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated project, installed and checked by its own `make`."""
    folder = tmp_path_factory.mktemp("scaffold")
    probe = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), "basedpyright"]
    if subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("pip cannot fetch packages here")
    run(sys.executable, "-c", CREATE, NAME, "--framework", str(ROOT), cwd=folder)
    made = folder / f"{NAME}-benchmark-service"
    said = run("make", "install", "test", "lint", "typecheck", f"PYTHON={sys.executable}", cwd=made)
    for green in ("passed", "All checks passed!", "already formatted", "0 errors"):
        assert green in said
    return made


@pytest.fixture(scope="module")
def service_url(project: Path) -> Iterator[str]:
    """The address of the generated service, served by its `make dev`."""
    port = free_port()
    server = subprocess.Popen(
        ["make", "dev", f"PORT={port}"],
        cwd=project,
        env=author_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until_serving(server)
        yield f"http://127.0.0.1:{port}"
    finally:
        stop(server)


def wait_until_serving(server: subprocess.Popen[str]) -> None:
    assert server.stdout is not None
    said: list[str] = []
    for line in server.stdout:
        said.append(line)
        if "Application startup complete" in line:
            return
    raise AssertionError(f"make dev ended:\n{''.join(said)}")


def stop(server: subprocess.Popen[str]) -> None:
    """End make, the reloader and the server together, as Ctrl-C in a terminal does."""
    os.killpg(server.pid, signal.SIGINT)
    try:
        server.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.communicate()


def test_make_dev_serves_the_project_under_its_own_name(service_url: str) -> None:
    assert httpx.get(f"{service_url}/health").json() == {"status": "ok"}
    version = httpx.get(f"{service_url}/version").json()
    assert version["service_name"] == f"{NAME}-benchmark-service"
    assert version["service_version"] == "0.1.0"
    # Not declared, so that the platform grades in the sandbox.
    assert version.get("eval_mode") is None


def test_the_example_tasks_are_graded(service_url: str) -> None:
    ids = httpx.get(f"{service_url}/verify-task-ids").json()["task_ids"]
    assert ids == ["example-task-1", "example-task-2"]
    body = {"task_id": "example-task-2", "response": "4"}
    assert httpx.post(f"{service_url}/evaluate-response/", json=body).json()["resolved"] is True


def test_an_installed_framework_can_create_the_next_project(project: Path, tmp_path: Path) -> None:
    create = str(project / ".venv" / "bin" / "create-benchmark-service")
    said = run(create, "another", cwd=tmp_path)
    assert "which this command was installed from" in said
    ours = (project / "pyproject.toml").read_text()
    theirs = (tmp_path / "another-benchmark-service" / "pyproject.toml").read_text()
    assert theirs == ours.replace("demo-bench", "another").replace("demo_bench", "another")


def test_from_scaffold_to_score(project: Path, service_url: str, tmp_path: Path) -> None:
    """The README's last step, by the program of the project's own environment."""
    if not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed; scripts/setup-system installs it")
    valk = str(project / ".venv" / "bin" / "valk")
    env = {
        "VALKYRIE_HOME": str(tmp_path / "home"),
        "VALKYRIE_CONFIG_PATH": str(tmp_path / "config.yaml"),
        "VALKYRIE_EXECUTOR_IDLE_S": "1",
    }
    run(valk, "config", "service", "add", NAME, service_url, cwd=project, env=env)
    start = ("run", "start", "--benchmark", NAME, "--agent", "./agents/example", "--connect")
    said = run(valk, *start, cwd=project, env=env)
    assert re.search(r"final_score +100\b", said), said
    executor = ExecutorClient(DataFolder(tmp_path / "home"))
    executor.ask("end")
    while executor.status() is not None:
        time.sleep(0.05)

"""What importing the runner brings in: no server, no vendor, nothing it does not need."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    *("fastapi", "starlette", "uvicorn", "scipy", "numpy", "sqlalchemy", "alembic", "rich", "jinja2", "yaml"),
    *("openai", "anthropic", "google", "daytona", "modal", "descope", "boto3", "docker", "aiodocker"),
    *("model_library", "valkyrie"),
)
RUNNER = """
from pathlib import Path
from benchmark_runner import BenchmarkRunner, GenerationResult, Task, make_cli
class Runner(BenchmarkRunner):
    NAME = "tiny"
    def load_tasks(self, dataset_file):
        return [Task(id="a", question="?")]
    async def generate(self, task, model, llm_config=None, log_dir=None):
        return GenerationResult(task_id="a", status="success", data="x")
Path("tasks").touch()
make_cli(Runner, default_dataset_file="tasks")(
    ["run", "--model", "m", "--run-id", "r", "--skip-eval"], standalone_mode=False
)
"""


def loaded(statement: str, names: tuple[str, ...], cwd: object = None) -> str:
    script = f"{statement}\nimport sys\nprint([name for name in {names!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=str(cwd or ".")
    )
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "statement",
    [
        "from benchmark_runner import BenchmarkRunner, make_cli, Task, GenerationResult",
        "from benchmark_runner import *; import benchmark_runner as b; [getattr(b, n) for n in dir(b)]",
    ],
)
def test_no_server_and_no_vendor(statement: str) -> None:
    assert loaded(statement, HEAVY) == "[]"


def test_the_package_itself_loads_nothing() -> None:
    assert loaded("import benchmark_runner", (*HEAVY, "pydantic", "click", "httpx", "asyncio")) == "[]"


def test_nor_does_a_run(tmp_path: object) -> None:
    by_httpx = ("rich",)
    assert loaded(RUNNER, tuple(name for name in HEAVY if name not in by_httpx), tmp_path) == "[]"

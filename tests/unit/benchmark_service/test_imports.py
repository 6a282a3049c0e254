"""Importing the framework brings in no vendor, and no more than it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

VENDORS = ("daytona", "descope", "boto3", "docker", "aiodocker", "modal", "ray")


def loaded(statement: str, names: tuple[str, ...]) -> str:
    script = f"{statement}\nimport sys\nprint([name for name in {names!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    "statement",
    [
        "import benchmark_service",
        "from benchmark_service import BenchmarkServiceApp, BenchmarkService",
        "from benchmark_service.utils import stream_command",
        "from benchmark_service import DaytonaProviderConfig, Sandbox, SandboxCreateRequest",
        "import benchmark_service.auth, benchmark_service.v1",
    ],
)
def test_no_vendor_is_imported(statement: str) -> None:
    assert loaded(statement, VENDORS) == "[]"


def test_the_package_itself_loads_nothing() -> None:
    assert loaded("import benchmark_service", ("pydantic", "fastapi", "httpx", "yaml")) == "[]"


def test_the_app_loads_neither_a_server_nor_a_client() -> None:
    heavy = ("uvicorn", "websockets", "httpx", "yaml", "sandboxes.local.provider")
    assert loaded("from benchmark_service import BenchmarkServiceApp", heavy) == "[]"

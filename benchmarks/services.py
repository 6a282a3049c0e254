"""What benchmark services cost: imports, many evaluations at once, a task by way of a service."""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 7
AT_ONCE = 200
WAVES = 5


def imports() -> Iterator[dict[str, Any]]:
    """The two imports authors and callers pay for, beside those they cannot do without."""
    found = {
        name: _import_s(statement)
        for name, statement in {
            "pydantic": "import pydantic",
            "package": "import pydantic, benchmark_service",
            "libraries": "import fastapi, httpx, websockets",
            "app": "from benchmark_service import BenchmarkServiceApp",
        }.items()
    }
    over = (found["package"] - found["pydantic"]) * 1000
    yield {"name": "import_benchmark_service_ms", "value": round(over, 1), "over": "import pydantic"}
    yield {
        "name": "import_app_ratio",
        "value": round(found["app"] / found["libraries"], 2),
        "over": "import fastapi, httpx, websockets",
        "seconds": round(found["app"], 3),
    }


def _import_s(statement: str) -> float:
    """Seconds of an import in a fresh interpreter, its own start not counted; the median of several."""
    program = f"import time; began = time.perf_counter(); {statement}; print(time.perf_counter() - began)"
    times = [float(subprocess.check_output([sys.executable, "-c", program])) for _ in range(ROUNDS)]
    return statistics.median(times)


def evaluations() -> Iterator[dict[str, Any]]:
    """So many evaluations at once over WebSockets on one service process, wave after wave."""
    with _service() as (url, pid):
        sizes, began = [], time.monotonic()
        for _ in range(WAVES):
            asyncio.run(_wave(url))
            sizes.append(_rss_mb(pid))
        took = time.monotonic() - began
    yield {
        "name": "concurrent_evaluations",
        "value": AT_ONCE,
        "waves": WAVES,
        "evaluations_per_s": round(AT_ONCE * WAVES / took, 1),
        "rss_mb": [round(size, 1) for size in sizes],
        "growth_mb": round(sizes[-1] - sizes[1], 1),
    }


async def _wave(url: str) -> None:
    from benchmark_service.client import BenchmarkServiceClient
    from sandboxes.configs import DaytonaProviderConfig

    access = DaytonaProviderConfig(DAYTONA_API_KEY="k", DAYTONA_API_URL=url, DAYTONA_TARGET="t")
    async with BenchmarkServiceClient(url) as client, asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(client.evaluate_instance("task-0", f"s{n}", sandbox_provider=access))
            for n in range(AT_ONCE)
        ]
    assert all(task.result()["resolved"] for task in tasks)


def _rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def _service() -> Iterator[tuple[str, int]]:
    """A service whose evaluations say fifty lines and take a fifth of a second."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "benchmarks" / "measured_service.py"), str(port)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(url)
            yield url, process.pid
        finally:
            process.terminate()
            process.wait()


def _wait(url: str) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"{url} does not come up")

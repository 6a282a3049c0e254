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

from benchmarks.engine import line

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 7
AT_ONCE = 200
WAVES = 5


def imports() -> Iterator[dict[str, Any]]:
    """The two imports authors and callers pay for, beside those they cannot do without."""
    statements = {
        "pydantic": "import pydantic",
        "package": "import pydantic, benchmark_service",
        "libraries": "import fastapi, httpx, websockets",
        "app": "from benchmark_service import BenchmarkServiceApp",
    }
    # Interleaved, so that a machine that changes its speed changes it for all of them.
    rounds = [{name: import_s(statement) for name, statement in statements.items()} for _ in range(ROUNDS)]
    found = {name: statistics.median(one[name] for one in rounds) for name in statements}
    over = (found["package"] - found["pydantic"]) * 1000
    yield line("import_benchmark_service_ms", over, None, "ms", "over import pydantic; bar: 60")
    note = "BenchmarkServiceApp over import fastapi, httpx, websockets; bar: 1.3"
    yield line("import_app_s", found["app"], found["libraries"], "s", note)


def import_s(statement: str) -> float:
    """Seconds of an import in a fresh interpreter, its own start not counted."""
    program = f"import time; began = time.perf_counter(); {statement}; print(time.perf_counter() - began)"
    return float(subprocess.check_output([sys.executable, "-c", program]))


def evaluations() -> Iterator[dict[str, Any]]:
    """So many evaluations at once over WebSockets on one service process, wave after wave."""
    with _service() as (url, pid):
        sizes, began = [], time.monotonic()
        for _ in range(WAVES):
            asyncio.run(_wave(url))
            sizes.append(_rss_mb(pid))
        took = time.monotonic() - began
    note = f"{WAVES} waves of {AT_ONCE} at once on one service process; bar: memory stays flat"
    memory = [round(size, 1) for size in sizes]
    yield line("evaluations_per_s", AT_ONCE * WAVES / took, None, "1/s", note, rss_mb=memory)


async def _wave(url: str) -> None:
    from benchmark_service.client import BenchmarkServiceClient
    from sandboxes.types import DaytonaProviderConfig

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

"""A tracker under load: many who watch one run, requests besides, and what that costs the executor."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.engine import NAP, NULL, line, scratch_home, work_off
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest

WATCHERS = 300
REQUESTS_PER_S = 50
DATASET, CONCURRENCY = "2000x0.5", 50
PATHS = ("/v1/runs/{run}", "/v1/runs", "/v1/runs/{run}/trials?limit=50", "/v1/queue", "/v1/runs/{run}/errors")


@dataclass
class Seen:
    """What the load saw."""

    latencies: list[float] = field(default_factory=list)
    failures: int = 0
    events: int = 0
    received: int = 0
    ended: int = 0
    cpu: dict[str, float] = field(default_factory=dict)
    """Seconds of it each process took; the load is made on the same cores as the server."""


def watched_run() -> Iterator[dict[str, Any]]:
    """The same run alone, and while it is watched."""
    with scratch_home() as home:
        alone = _work_s(home, _enqueue(home))
    with scratch_home() as home, _server(home) as server:
        run_id = _enqueue(home)
        seen = asyncio.run(_load(home, server, run_id))
        watched = _run_seconds(home, run_id)
    latencies = sorted(seen.latencies)
    p95 = latencies[int(len(latencies) * 0.95)] * 1000
    note = f"{WATCHERS} who watch every trial of a run of 2,000, {REQUESTS_PER_S} requests/s; bar: 100"
    more = {
        "p50_ms": round(latencies[len(latencies) // 2] * 1000, 1),
        "requests": len(latencies),
        "failures": seen.failures,
        "events": seen.events,
        "received_mb": round(seen.received / 1e6, 1),
        "streams_ended": seen.ended,
        "cpu_s": {name: round(seconds, 1) for name, seconds in seen.cpu.items()},
    }
    yield line("tracker_p95_ms", p95, None, "ms", note, **more)
    rate = f"2,000 trials in {watched:.1f} s, alone {alone:.1f} s; bar: 0.85"
    yield line("watched_throughput", 2000 / watched, 2000 / alone, "1/s", rate)


def _enqueue(home: Path) -> str:
    tracker = LocalTracker(home)
    try:
        return tracker.enqueue(
            RunRequest(agent=NAP, benchmark=NULL, dataset=DATASET, concurrency=CONCURRENCY, provider="null")
        )
    finally:
        tracker.close()


def _work_s(home: Path, run_id: str) -> float:
    work_off(home)
    return _run_seconds(home, run_id)


def _run_seconds(home: Path, run_id: str) -> float:
    tracker = LocalTracker(home)
    try:
        run = tracker.fetch(run_id)
    finally:
        tracker.close()
    if run.state != "FINISHED":
        raise RuntimeError(f"the measured run ended as {run.state}: {run.counts} {run.error}")
    return (run.finished_at or 0.0) - (run.started_at or 0.0)


@dataclass(frozen=True, slots=True)
class Server:
    """A tracker that serves."""

    port: int
    key: str
    pid: int

    def cpu_s(self) -> float:
        """Seconds of CPU it has taken so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _server(home: Path) -> Iterator[Server]:
    """A real server without an executor, and a key for it."""
    environment = {**os.environ, "VALKYRIE_HOME": str(home)}
    environment.pop("TRACKER_SERVICE_URL", None)
    valkyrie = [sys.executable, "-m", "valkyrie"]
    made = subprocess.check_output(
        [*valkyrie, "admin", "key", "create", "--name", "bench", "--json"], env=environment
    )
    key = json.loads(made)["key"]
    command = [*valkyrie, "serve", "--port", "0", "--no-executor", "--json"]
    with (
        (home / "server.log").open("w") as log,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout
            ready = json.loads(process.stdout.readline())
            yield Server(int(ready["url"].rpartition(":")[2]), key, process.pid)
        finally:
            process.terminate()
            process.wait(30)


async def _load(home: Path, server: Server, run_id: str) -> Seen:
    """Those who watch are read here, requests are made by a process of their own: who waits for an answer
    must not wait for this one to read what others are sent."""
    seen = Seen()
    loop = asyncio.get_running_loop()
    readers, serving = time.process_time(), server.cpu_s()
    async with asyncio.TaskGroup() as group:
        streams = [group.create_task(_watch(server, run_id, seen)) for _ in range(WATCHERS)]
        await asyncio.sleep(1.0)  # all of them watch before the first trial begins
        with _requester(server, run_id) as requester:
            _wall, executor, _memory = await loop.run_in_executor(None, work_off, home)
            requester.terminate()
            said, _ = await loop.run_in_executor(None, requester.communicate)
        asked = json.loads(said)
        seen.latencies, seen.failures = asked["latencies"], asked["failures"]
        await asyncio.wait(streams, timeout=10)
        for task in streams:
            task.cancel()
    seen.cpu = {
        "server": server.cpu_s() - serving,
        "executor": executor,
        "readers": time.process_time() - readers,
        "requester": asked["cpu_s"],
    }
    return seen


def _requester(server: Server, run_id: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.tracker", str(server.port), run_id]
    environment = {**os.environ, "BENCH_KEY": server.key}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


async def _watch(server: Server, run_id: str, seen: Seen) -> None:
    """One event stream, read but not parsed: the reader must cost little next to the server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 20)
    try:
        head = f"GET /v1/runs/{run_id}/events?trials=true HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        writer.write(f"{head}Authorization: Bearer {server.key}\r\n\r\n".encode())
        status = await reader.readuntil(b"\r\n")
        if b" 200 " not in status:
            raise RuntimeError(f"one of those who watch was refused: {status.decode()}")
        while piece := await reader.read(1 << 18):
            seen.received += len(piece)
            seen.events += piece.count(b"\nevent: ") + piece.startswith(b"event: ")
            if b"event: end" in piece:
                seen.ended += 1
                return
    finally:
        writer.close()


async def _requests(port: int, key: str, run_id: str, seen: Seen) -> None:
    import httpx

    headers = {"Authorization": f"Bearer {key}"}
    limits = httpx.Limits(max_connections=100)
    base = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=base, headers=headers, limits=limits) as client:
        async with asyncio.TaskGroup() as group:
            number = 0
            while True:
                path = PATHS[number % len(PATHS)].format(run=run_id)
                group.create_task(_one(client, path, seen))
                number += 1
                await asyncio.sleep(1 / REQUESTS_PER_S)


async def _one(client: Any, path: str, seen: Seen) -> None:
    began = time.perf_counter()
    answer = await client.get(path, timeout=30)
    seen.latencies.append(time.perf_counter() - began)
    seen.failures += answer.status_code != 200


def _ask(port: int, run_id: str) -> None:
    """The process that makes requests until it is told to end, and says how long each took."""
    seen = Seen()
    asking = asyncio.Runner()
    loop = asking.get_loop()
    task = loop.create_task(_requests(port, os.environ["BENCH_KEY"], run_id, seen))
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        loop.run_until_complete(task)
    except asyncio.CancelledError:
        pass
    asking.close()
    told = {"latencies": seen.latencies, "failures": seen.failures, "cpu_s": time.process_time()}
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    _ask(int(sys.argv[1]), sys.argv[2])

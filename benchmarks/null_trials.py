"""The engine by itself: trials that do nothing, on the durable store."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from benchmarks.engine import Timed, line, timed_run
from valkyrie.testing.null import durations

CONCURRENCY = 50


def measure(peer_rate: float | None) -> Iterator[dict[str, Any]]:
    """Rate and CPU from the difference between two sizes; memory and time at three."""
    runs = {n: timed_run(str(n), CONCURRENCY) for n in (1000, 5000, 10000)}
    small, large = runs[1000], runs[5000]
    rate = 4000 / (large.wall_s - small.wall_s)
    yield line("null_trials_per_s", rate, peer_rate, "1/s", "marginal, N = 1,000 to 5,000; bar: 20 × Inspect")
    cpu = (large.cpu_s - small.cpu_s) / 4000 * 1000
    yield line("null_cpu_ms", cpu, None, "ms", "CPU of one trial, marginal; bar: 0.8")
    for n, run in runs.items():
        yield line("peak_rss_mb", run.peak_rss_mb, None, "MB", f"N = {n:,}; bar: 100, flat", n=n)
    for n, run in runs.items():
        yield line("seconds_per_1000", run.work_s / n * 1000, None, "s", f"N = {n:,}; bar: linear in N", n=n)


def waits(peer_s: float | None) -> Iterator[dict[str, Any]]:
    """Two thousand trials that wait 5 s, all at once."""
    run = timed_run("2000x5", 2000)
    yield line("concurrent_waits_s", run.wall_s, peer_s, "s", "2,000 trials of 5 s at once; bar: 7")


def utilisation() -> Iterator[dict[str, Any]]:
    """Log-normal times: how close the schedule comes to one without any overhead."""
    dataset, slots = "500~2", 50
    run: Timed = timed_run(dataset, slots)
    ideal = fifo(durations(dataset), slots)
    yield line(
        "slot_utilisation",
        ideal / run.work_s,
        None,
        "",
        f"ideal {ideal:.2f} s, ours {run.work_s:.2f} s; bar: 0.97",
    )


def fifo(times: list[float], slots: int) -> float:
    """When the last trial of a zero-overhead first-in-first-out schedule ends."""
    free = [0.0] * slots
    for seconds in times:
        heapq.heappush(free, heapq.heappop(free) + seconds)
    return max(free)

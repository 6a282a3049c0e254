"""Create, one command, destroy: on the `local` provider under the whole engine, against bare bubblewrap."""

from __future__ import annotations

import asyncio
import shutil
import statistics
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.engine import ONE_COMMAND, line, timed_run

TRIALS = 300
AT_ONCE = 16
ROUNDS = 3
BARE = (
    "bwrap",
    "--unshare-all",
    "--die-with-parent",
    "--ro-bind",
    "/",
    "/",
    "--dev",
    "/dev",
    "--proc",
    "/proc",
    "true",
)


def measure(peer_rate: float | None) -> Iterator[dict[str, Any]]:
    """Interleaved rounds, medians."""
    if not shutil.which("bwrap"):
        yield line("sandboxed_trials_per_s", 0.0, None, "1/s", "skipped: bubblewrap is not installed")
        return
    bare, ours = [], []
    for _ in range(ROUNDS):
        bare.append(asyncio.run(bare_rate()))
        ours.append(marginal_rate())
    floor, rate = statistics.median(bare), statistics.median(ours)
    yield line("bare_bwrap_per_s", floor, None, "1/s", f"{AT_ONCE} at once, median of {ROUNDS}")
    yield line("sandboxed_trials_per_s", rate, peer_rate, "1/s", "bar: 2 × Inspect's unisolated rate")
    yield line("sandboxed_of_bare", rate, floor, "1/s", "bar: 0.35 of bare_bwrap_per_s")


def marginal_rate() -> float:
    """Trials a second, start-up taken out."""
    small, large = (timed_run(str(n), AT_ONCE, ONE_COMMAND, "local") for n in (50, 50 + TRIALS))
    return TRIALS / (large.wall_s - small.wall_s)


async def bare_rate() -> float:
    """`true` in a bare bubblewrap, so many at once."""
    left = TRIALS

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            process = await asyncio.create_subprocess_exec(*BARE)
            if await process.wait() != 0:
                raise RuntimeError("bubblewrap does not work here")

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())
    return TRIALS / (time.perf_counter() - began)

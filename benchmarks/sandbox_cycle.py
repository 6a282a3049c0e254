"""How fast sandboxes come and go, against bare bubblewrap in the same minute on the same machine.

A cycle is create + one command + delete. The bare side is the cheapest there is: `bwrap --unshare-all`
over the host's root, started by posix_spawn and awaited by pidfd. Both run eight at once, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from sandboxes.local.provider import LocalProvider
from sandboxes.types import Command, SandboxCreateRequest, SandboxLimits

BARE = ("/usr/bin/bwrap", "--unshare-all", "--ro-bind", "/", "/", "true")


async def bare_cycle() -> None:
    """One bare bubblewrap, from start to exit."""
    loop = asyncio.get_running_loop()
    pid = os.posix_spawn(BARE[0], BARE, os.environ)  # noqa: ASYNC221 - takes no time
    pidfd = os.pidfd_open(pid)
    exited = loop.create_future()
    loop.add_reader(pidfd, lambda: exited.done() or exited.set_result(None))
    try:
        await exited
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        os.waitpid(pid, 0)  # noqa: ASYNC222 - it has exited


async def rate(cycle: Callable[[], Awaitable[None]], count: int, at_once: int) -> float:
    """Cycles per second."""
    numbers = iter(range(count))

    async def worker() -> None:
        for _ in numbers:
            await cycle()

    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(at_once)))
    return count / (time.perf_counter() - start)


async def measure(count: int, at_once: int, rounds: int, limits: SandboxLimits | None) -> None:
    """Print the rates of each round and their medians."""
    with tempfile.TemporaryDirectory() as state:
        async with LocalProvider(Path(state)) as provider:
            request = SandboxCreateRequest(network="none", limits=limits)

            async def cycle() -> None:
                sandbox = await provider.create_sandbox(request)
                assert await sandbox.run(Command(argv=("true",))) == 0
                await provider.delete_sandbox(sandbox.id)

            await rate(cycle, 16, at_once)
            pairs = []
            for number in range(rounds):
                bare, ours = await rate(bare_cycle, count, at_once), await rate(cycle, count, at_once)
                pairs.append((bare, ours))
                print(f"round {number + 1}: {report(bare, ours, ours / bare)}")
    bare, ours = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
    share = statistics.median(ours / bare for bare, ours in pairs)
    print(f"median:  {report(bare, ours, share)}")


def report(bare: float, ours: float, share: float) -> str:
    """One line of the result."""
    return f"bare bwrap {bare:6.1f}/s   local sandbox {ours:6.1f}/s   {share:.0%}"


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="cycles per round and side")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-mb", type=int, default=None, help="also set a memory limit")
    options = parser.parse_args()
    limits = SandboxLimits(memory_mb=options.memory_mb) if options.memory_mb else None
    asyncio.run(measure(options.count, options.at_once, options.rounds, limits))


if __name__ == "__main__":
    main()

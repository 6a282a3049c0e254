"""`python -m benchmarks [NAME …]`: one JSON object per line. PEERS=1 measures Inspect in the same run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import commands, evals, graded, null_trials, reads, runners, sandboxed, services, tracker

Rows = Iterator[dict[str, Any]]


def peers() -> dict[str, float]:
    """Inspect's numbers, when asked for."""
    if os.environ.get("PEERS") != "1":
        return {}
    from benchmarks.peers import inspect_peer

    return {
        "trivial": inspect_peer.marginal_rate("trivial", 200, 1000)[0],
        "sandbox": inspect_peer.marginal_rate("sandbox", 100, 400)[0],
        "sleepy": inspect_peer.measure("sleepy", 2000).wall_s,
    }


def eval_peer() -> evals.Speed | None:
    """Inspect's best on the cases of `evals`, when asked for."""
    if os.environ.get("PEERS") != "1":
        return None
    from benchmarks.peers import inspect_peer

    few = min(inspect_peer.measure("graded", evals.FEW).wall_s for _ in range(evals.ROUNDS))
    runs = [inspect_peer.measure("graded", evals.CASES) for _ in range(evals.ROUNDS)]
    wall, work = min(one.wall_s for one in runs), min(one.work_s for one in runs)
    return evals.Speed(evals.CASES / wall, (evals.CASES - evals.FEW) / (wall - few), evals.CASES / work)


def coverage_rows() -> Rows:
    """Simulate; numpy is loaded only then, for the memory of other measurements counts what is loaded."""
    from benchmarks import coverage

    return coverage.measure()


def main(names: list[str]) -> int:
    """Measure what was named, or everything but the simulation of coverage, which measures no speed."""
    found = peers()
    suites: dict[str, Callable[[], Rows]] = {
        "version": commands.version,
        "first_trial": commands.first_trial,
        "null": lambda: null_trials.measure(found.get("trivial")),
        "waits": lambda: null_trials.waits(found.get("sleepy")),
        "utilisation": null_trials.utilisation,
        "sandboxed": lambda: sandboxed.measure(found.get("sandbox")),
        "graded": graded.measure,
        "evals": lambda: evals.measure(eval_peer()),
        "large_store": commands.large_store,
        "reads": reads.measure,
        "tracker": tracker.watched_run,
        "service_imports": services.imports,
        "service_evaluations": services.evaluations,
        "runner_imports": runners.imports,
        "runner_tasks": runners.tasks,
        "coverage": coverage_rows,
    }
    unknown = [name for name in names if name not in suites]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are {', '.join(suites)}", file=sys.stderr)
        return 2
    for name in names or [name for name in suites if name != "coverage"]:
        for row in suites[name]():
            print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

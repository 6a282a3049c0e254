"""What an agent may leave in place of its work: every task gives it a verdict, and that is 0."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from sandboxes.types import Command, SandboxCreateRequest
from valkyrie.benchmarks import open_benchmark
from valkyrie.benchmarks.protocol import Grading

TARGETS = {
    "dedupe-contacts-csv": "clean.csv",
    "fix-interval-merge": "intervals.py",
    "flatten-orders-csv": "flatten.py",
    "next-cron-runs": "nextrun.py",
    "order-build-steps": "plan.py",
    "query-shop-sales": "report.sql",
    "rank-word-counts": "topwords.sh",
    "recover-lost-commits": "pricing.md",
    "repair-backup-script": "backup.sh",
    "salvage-damaged-archive": "recovered",
    "summarise-access-log": "summary.json",
    "write-duration-cli": "duration.py",
}
"""Task → what it is graded by."""
ODD = {
    "a fifo": "mkfifo {0}",
    "a folder": "mkdir -p {0}/{0}",
    "a link to itself": "ln -s {0} {0}",
    "a link to an endless device": "ln -s /dev/zero {0}",
    "a link to the answers": "ln -s /tests/expected.json {0}",
    "a huge file": "truncate -s 300M {0}",
    "a program that reads the tests": (
        "printf '#!/bin/sh\\n' > {0}; chmod +x {0}; "
        "printf 'import glob\\nprint(*map(open, glob.glob(\"/tests/*\")))\\n' >> {0}"
    ),
}


@pytest.mark.slow
async def test_odd_files_are_graded_0(tmp_path: Path) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    from sandboxes.local.provider import LocalProvider

    benchmark = open_benchmark("quickstart")
    assert sorted(TARGETS) == await benchmark.list_tasks()
    found: dict[tuple[str, str], float | None] = {}
    room = asyncio.Semaphore(2)
    async with LocalProvider(tmp_path / "state") as provider:

        async def try_task(task_id: str) -> None:
            async with room:
                task = await benchmark.describe(task_id)
                request = SandboxCreateRequest(limits=task.limits, network=task.network)
                sandbox = await provider.create_sandbox(request)
                await benchmark.setup(task, sandbox, lambda *_: None, tmp_path / "start")
                for kind, script in ODD.items():
                    target = TARGETS[task_id]
                    words = f"rm -rf {target}; {script.format(target)}"
                    assert await sandbox.run(Command.bash(words, cwd=task.cwd)) == 0
                    evidence = tmp_path / task_id / kind
                    grade = await benchmark.evaluate(Grading(task, sandbox, lambda *_: None, evidence))
                    found[task_id, kind] = grade.score
                await provider.delete_sandbox(sandbox.id)

        await asyncio.gather(*map(try_task, TARGETS))
    assert {key: score for key, score in found.items() if score != 0.0} == {}
    assert len(found) == len(TARGETS) * len(ODD)

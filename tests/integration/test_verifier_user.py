"""Tests that run as a user of their own, who has a reward folder of their own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from sandboxes.types import SandboxCreateRequest
from valkyrie.benchmarks.protocol import Grading
from valkyrie.benchmarks.task_dir.benchmark import TaskDirBenchmark
from valkyrie.errors import GraderError

TEST = """
[ "$(/usr/bin/id -u)" = 65534 ] || exit 1
! /usr/bin/touch /tests/mine 2>/dev/null || exit 1
echo 1 > "$VERIFIER_DIR/reward.txt"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="other users need root")
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@pytest.mark.parametrize("user", ['"nobody"', "65534"])
async def test_tests_run_as_their_own_user(tmp_path: Path, user: str) -> None:
    from sandboxes.local.provider import LocalProvider

    folder = tmp_path / "t"
    (folder / "tests").mkdir(parents=True)
    toml = f'[environment]\nnetwork_mode = "no-network"\n[verifier]\nuser = {user}\n'
    (folder / "task.toml").write_text(toml)
    (folder / "instruction.md").write_text("Do it.")
    (folder / "tests" / "test.sh").write_text(TEST)
    benchmark = TaskDirBenchmark(folder)
    task = await benchmark.describe("t")
    async with LocalProvider(tmp_path / "state") as provider:
        sandbox = await provider.create_sandbox(SandboxCreateRequest(network="none"))
        await benchmark.setup(task, sandbox, lambda *_: None, tmp_path / "start")
        grade = await benchmark.evaluate(Grading(task, sandbox, lambda *_: None, tmp_path / "evidence"))
        assert grade.score == 1.0
        # Nothing of the sandbox takes part in it, but the list of its users.
        await sandbox.upload_file("/bin/chown", b"#!/bin/false\n")
        again = await benchmark.evaluate(Grading(task, sandbox, lambda *_: None, tmp_path / "evidence"))
        assert again.score == 1.0
        await sandbox.upload_file("/etc/passwd", b"root:x:0:0::/root:/bin/sh\n")
        if user == '"nobody"':
            with pytest.raises(GraderError, match=r"cannot be given to verifier\.user"):
                await benchmark.evaluate(Grading(task, sandbox, lambda *_: None, tmp_path / "evidence"))
        await provider.delete_sandbox(sandbox.id)

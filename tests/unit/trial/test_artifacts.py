"""What a task wants kept, within limits."""

from __future__ import annotations

from pathlib import Path

from sandboxes.null import NullProvider
from sandboxes.types import CopyLimits, SandboxCreateRequest
from valkyrie.nouns import KeptPath, TaskSpec
from valkyrie.trial.artifacts import keep_paths
from valkyrie.trial.log import AttemptLog


async def test_all_of_a_tasks_artifacts_share_the_limits(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path / "x.log")
    paths = (KeptPath("/app/part/*"), KeptPath("/app/big"), KeptPath("/app/small"), KeptPath("/app/none"))
    task = TaskSpec("t", "d", "Do.", artifacts=(*paths, KeptPath("/app/more/*"), KeptPath("/app/last")))
    async with NullProvider() as provider:
        sandbox = await provider.create_sandbox(SandboxCreateRequest())
        for name in ("part/1", "part/2", "small", "more/1", "more/2", "more/3", "last"):
            await sandbox.upload_file(f"/app/{name}", b"x")
        await sandbox.upload_file("/app/big", b"x" * 100)
        await keep_paths(task, sandbox, tmp_path / "kept", log, CopyLimits(max_bytes=50, max_entries=6))
    log.close()
    kept = sorted(str(path.relative_to(tmp_path / "kept")) for path in (tmp_path / "kept").rglob("*"))
    assert kept == ["more", "more/1", "more/2", "part", "part/1", "part/2", "small"]
    assert (tmp_path / "x.log").read_text().splitlines() == [
        "── /app/big is larger than what may be kept (250 MiB a trial).",
        "── artifact /app/none is not there",
        "── artifact /app/more/* is not kept: a trial may keep 10000 files, and there are 1 more",
        "── artifact /app/last is not kept: a trial may keep 10000 files, and there are 1 more",
    ]

"""What a task wants kept, within limits."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandboxes.null import NullProvider
from sandboxes.types import CopyLimits, SandboxCreateRequest
from valkyrie.agents.protocol import OutputArtifact
from valkyrie.domain import KeptPath, TaskSpec
from valkyrie.errors import AgentOutputError
from valkyrie.trial.outputs import AttemptLog, collect_outputs, keep_paths


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


async def collected(tmp_path: Path, *artifacts: OutputArtifact, final: str | None = None) -> str:
    """What the log says of an agent that left a large file, two in a folder, and a small one."""
    log = AttemptLog(tmp_path / "x.log")
    agent: Any = SimpleNamespace(final_output=final, output_artifacts=artifacts)
    try:
        async with NullProvider() as provider:
            sandbox = await provider.create_sandbox(SandboxCreateRequest())
            for name, size in (("big", 100), ("many/1", 1), ("many/2", 1), ("small", 10)):
                await sandbox.upload_file(f"/app/{name}", b"x" * size)
            limits = CopyLimits(max_bytes=50, max_entries=1)
            await collect_outputs(agent, "t", sandbox, tmp_path / "draft", None, log, limits=limits)
    finally:
        log.close()
    return file.read_text() if (file := tmp_path / "x.log").exists() else ""


async def test_an_optional_output_that_is_too_large_fails_no_trial(tmp_path: Path) -> None:
    big, many, small = (
        OutputArtifact(path, f"/app/{source}", required=False)
        for path, source in (("big", "big"), ("many", "many/*"), ("small", "small"))
    )
    said = await collected(tmp_path, many, big, final="/app/big")
    assert "the agent's output is not kept: /app/big is larger" in said
    assert "optional output big is not kept whole: /app/big is larger" in said
    assert "optional output many is not kept whole: /app/many/* matches too many files" in said
    await collected(tmp_path / "other", small)
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".log"]
    assert kept == [tmp_path / "other" / "draft" / "artifacts" / "small"]


async def test_a_required_output_that_is_too_large_is_the_agents_fault(tmp_path: Path) -> None:
    with pytest.raises(AgentOutputError, match="larger than what may be kept"):
        await collected(tmp_path, OutputArtifact("big", "/app/big", required=True))
    assert not (tmp_path / "draft" / "artifacts" / "big").exists()

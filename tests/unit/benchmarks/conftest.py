"""Small task directories, and real (unisolated) sandboxes to try them in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxes.process import ProcessProvider
from sandboxes.protocol import Sandbox
from sandboxes.types import SandboxCreateRequest
from tests.unit.benchmarks.task_folders import WriteTask, write_files


@pytest.fixture
def write_task(tmp_path: Path) -> WriteTask:
    """write_task("id", {"file": "content"}) makes tmp_path/tasks/id, whole except for what is overridden."""

    def write(task_id: str, files: dict[str, str] | None = None, *, without: tuple[str, ...] = ()) -> Path:
        whole = {
            "task.toml": "",
            "instruction.md": "Do it.\n",
            "tests/test.sh": 'echo 1 > "$VERIFIER_DIR/reward.txt"\n',
            **(files or {}),
        }
        wanted = {name: text for name, text in whole.items() if name not in without}
        return write_files(tmp_path / "tasks" / task_id, wanted)

    return write


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    async with ProcessProvider(tmp_path / "sandboxes") as provider:
        made = await provider.create_sandbox(SandboxCreateRequest())
        yield made
        await provider.delete_sandbox(made.id)

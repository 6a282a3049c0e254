from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxes.null import NullProvider
from sandboxes.process import ProcessProvider
from sandboxes.protocol import Sandbox
from sandboxes.types import SandboxCreateRequest
from tests.unit.benchmarks.eval_spec.stimulus_attempt import StimulusAttempt


@pytest.fixture
def attempt(tmp_path: Path) -> StimulusAttempt:
    (tmp_path / "evals").mkdir()
    return StimulusAttempt(tmp_path / "evals", tmp_path / "start")


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    """Real processes in a folder: what is tested here is no isolation."""
    async with ProcessProvider(tmp_path / "state") as provider:
        made = await provider.create_sandbox(SandboxCreateRequest(network="none"))
        yield made
        await provider.delete_sandbox(made.id)


@pytest.fixture
async def null() -> AsyncIterator[Sandbox]:
    async with NullProvider() as provider:
        yield await provider.create_sandbox(SandboxCreateRequest(network="none"))

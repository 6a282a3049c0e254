from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sandboxes.errors import SandboxError, SandboxNotFoundError, SandboxUnsupportedError
from sandboxes.local.network import NetworkSettings, attach, why_unavailable

needs_tool = pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))


async def test_without_a_tool_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnsupportedError, match="apt install passt"):
        await attach(os.getpid(), None, tmp_path)


@needs_tool
async def test_the_hosts_own_network_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="host's network"):
        await attach(os.getpid(), None, tmp_path)


@needs_tool
async def test_a_sandbox_that_is_gone(tmp_path: Path) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    with pytest.raises(SandboxNotFoundError):
        await attach(child.pid, None, tmp_path)


@needs_tool
async def test_a_network_to_deny_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/33"):
        await attach(os.getpid(), None, tmp_path, NetworkSettings(deny=["10.0.0.0/33"]))

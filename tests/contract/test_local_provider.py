"""The local provider keeps the whole contract, as root and as an ordinary user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxes.local import provider as probe
from sandboxes.local.provider import LocalProvider
from sandboxes.testing.contract import ProviderContract

ROOT = Path(__file__).parents[2]
NOBODY = 65534


class TestLocalProvider(ProviderContract):
    # An ordinary user has one id inside, and no cgroups unless a group was delegated.
    changes_users = os.geteuid() == 0

    @property
    def limits_memory(self) -> bool:  # type: ignore[override]
        return probe.probe_machine().support.memory is not None

    @property
    def limits_processes(self) -> bool:  # type: ignore[override]
        return probe.probe_machine().support.pids is not None or probe.probe_machine().counts_apart

    @pytest.fixture
    async def provider(self, tmp_path: Path) -> AsyncIterator[LocalProvider]:
        state = tmp_path / "state"
        async with LocalProvider(state) as provider:
            yield provider
        # What it found out about the machine is kept for plans; of sandboxes nothing is.
        assert not state.exists() or {one.name for one in state.iterdir()} <= {"capabilities.json"}


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become someone else")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv (apt install util-linux)")
def test_as_an_ordinary_user(tmp_path: Path) -> None:
    # The interpreter of the environment may lie in root's home; the system's own can be run by all.
    python = Path("/usr/bin/python3")
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    home = Path("/tmp") / f"valkyrie-contract-{os.getpid()}"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    try:
        done = subprocess.run(
            [
                *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
                *(python, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={home}/tmp"),
                f"{__file__}::TestLocalProvider",
            ],
            cwd=ROOT,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(home),
                "PYTHONPATH": f"{ROOT / 'src'}:{packages}",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
            timeout=280,
        )
    finally:
        shutil.rmtree(home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout

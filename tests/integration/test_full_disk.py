"""A full disk: said plainly, nothing half-created, nothing lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A small file system of the test's own, in a mount namespace of its own: the host sees nothing of it.
SCRIPT = """
set -e
mount -t tmpfs -o size=1m tmpfs "$VALKYRIE_HOME"
"$PYTHON" -m valkyrie run list > /dev/null
before=$(find "$VALKYRIE_HOME" | sort)
dd if=/dev/zero of="$VALKYRIE_HOME/filler" bs=4k 2>/dev/null || true
code=0
"$PYTHON" -m valkyrie run start --agent oracle --benchmark quickstart --trials 50 --provider null || code=$?
echo "exit $code"
rm "$VALKYRIE_HOME/filler"
"$PYTHON" -m valkyrie run list
find "$VALKYRIE_HOME/runs" -mindepth 1 2>/dev/null | head -3
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_is_said_plainly(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environment = {
        **os.environ,
        "VALKYRIE_HOME": str(home),
        "VALKYRIE_CONFIG_PATH": str(tmp_path / "valkyrie.yaml"),
        "VALKYRIE_EXECUTOR_IDLE_S": "0",
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT / "src"),
    }
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "bash", "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "exit 1" in done.stdout
    assert "full" in done.stderr and "Traceback" not in done.stderr
    assert str(home / "runs") not in done.stdout, "a half-created run was left"

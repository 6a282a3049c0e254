"""A full disk: said plainly, nothing half-created, nothing lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")

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


# The same, filled while trials are at work: those that print meet it first, then the store does.
WHILE_RUNNING = """
set -e
mount -t tmpfs -o size=2m tmpfs "$VALKYRIE_HOME"
valk() { "$PYTHON" -m valkyrie "$@"; }
valk run start --agent tests.integration.scripted:ScriptedAgent --concurrency 2 --provider null \
    --benchmark tests.integration.scripted:ScriptedBenchmark --dataset 'chatty=1*8' > /dev/null
sleep 2
run=$(ls "$VALKYRIE_HOME/runs")
dd if=/dev/zero of="$VALKYRIE_HOME/filler" bs=1k 2>/dev/null || true
for _ in $(seq 40); do [ -S "$VALKYRIE_HOME/executor.sock" ] || break; sleep 0.5; done
rm "$VALKYRIE_HOME/filler"
valk run resume "$run" > /dev/null
valk run wait "$run" --timeout 60
echo "--- executor.log"
cat "$VALKYRIE_HOME/executor.log"
"""


def run_on_small_disk(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    home = tmp_path / "home"
    home.mkdir()
    environment = {
        **os.environ,
        "VALKYRIE_HOME": str(home),
        "VALKYRIE_CONFIG_PATH": str(tmp_path / "valkyrie.yaml"),
        "VALKYRIE_EXECUTOR_IDLE_S": "0",
        "PYTHON": sys.executable,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
    }
    return subprocess.run(
        ["unshare", "-m", "--propagation", "private", "bash", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.mark.slow
@needs_root
def test_a_full_disk_is_said_plainly(tmp_path: Path) -> None:
    done = run_on_small_disk(tmp_path, SCRIPT)
    assert done.returncode == 0, done.stderr
    assert "exit 1" in done.stdout
    assert "full" in done.stderr and "Traceback" not in done.stderr
    assert str(tmp_path / "home" / "runs") not in done.stdout, "a half-created run was left"


@pytest.mark.slow
@needs_root
def test_a_disk_that_fills_up_while_trials_run_costs_no_trial(tmp_path: Path) -> None:
    done = run_on_small_disk(tmp_path, WHILE_RUNNING)
    assert done.returncode == 0, done.stdout + done.stderr
    said, log = done.stdout.split("--- executor.log")
    assert "FINISHED" in said
    assert "Traceback" not in log + done.stderr

"""The tasks of the forging suite, one for each way of its agent, and what a run of them must show."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest, RunView, TrialFilter, TrialView

AGENT = Path(__file__).with_name("forging_agent")
QUICKSTART = Path(__file__).parents[2] / "src" / "valkyrie" / "benchmarks" / "quickstart"
CHECKED = "order-build-steps"
"""The task of quickstart whose helpers start a program the agent wrote."""
HONEST = ("honest", "honest_with_tools", "honest_with_links", "honest_with_daemon", "honest_with_failure")
WAYS = tuple(
    re.findall(r"^((?:forge|break|claim|program)_\w+)\(\)", (AGENT / "forge.sh").read_text(), re.MULTILINE)
)
QUICK = (
    *("forge_bash", "forge_json_module", "forge_local_dirname", "forge_preload_link", "forge_pid_1_traced"),
    *("forge_link_expected", "forge_link_up_from_link", "forge_logs_link", "forge_watcher", "break_rm_bash"),
    *("break_fifo_outputs", "break_oom", "break_user", "break_kill_pid_1", "program_writes_reward"),
    *("claim_exit_127", "claim_traceback"),
)
"""The ways that are tried with every change; the others take their time."""
CONTAINED = (
    *("forge_bash", "forge_python3", "forge_local_dirname", "forge_local_bin_link"),
    *("forge_preload_link", "forge_loader_cache", "forge_name_service", "forge_crowded_changes"),
    *("forge_link_expected", "forge_link_up_from_link", "forge_link_up_from_run"),
    *("forge_workdir_link_away", "forge_logs_link", "forge_planted", "forge_mounts", "forge_watcher"),
    *("forge_double_fork", "forge_pid_1_traced", "forge_pid_1_memory", "forge_home_link"),
    *("break_rm_bash", "break_rm_usr", "break_libc", "break_sh_fifo", "break_fifo_outputs"),
    *("break_sparse", "break_deep_folder", "break_odd_names", "break_attributes", "break_modes"),
    *("break_user", "break_dev", "break_oom", "break_kill_pid_1", "break_kill_all", "break_fork_bomb"),
    *("break_output_link",),
    *("claim_rate_limited",),
    *("program_writes_reward", "program_ends_tests", "program_limits_tests"),
)
"""The ways that are tried in containers, which take seconds to make: one or two of each kind."""
SLOW_TO_END = ("break_late_end", "claim_stopped", "break_fork_bomb", "break_threads")
"""Ways that last until the agent's time is up."""
CAREFUL = re.compile(
    r"forge_(bash|python3|pid_1\w+|preload\w*|json\w+|encodings|pyvenv)|break_(fifo\w+|sparse)"
)
"""Ways that are tried on careful tests as well as on careless ones."""

TASK = """\
[agent]
timeout_sec = {seconds}
[verifier]
timeout_sec = 40
{verifier}
[environment]
cpus = 1
memory_mb = 256
storage_mb = 128
network_mode = "no-network"
workdir = "/app"
"""

CARELESS = """\
#!/bin/bash
# Careless on purpose: programs are found by PATH, links are followed, an old reward is left where it is.
here=$(dirname "$0")
want=$(cat "$here/expected.txt")
verdict=0
python3 "$here/check.py" && grep -qxF "$want" answer.txt && [ "$(head -c 64 answer.txt)" = "$want" ] \\
    && verdict=1
id > /dev/null; date > /dev/null; git --version > /dev/null; ls > /dev/null; env true; sh -c true; sleep 0.2
mkdir -p /logs/verifier
echo $verdict > /logs/verifier/reward.txt
"""

CARELESS_CHECK = """\
import hashlib, json, re, sys
want = open("/tests/expected.txt").read().strip()
found = open("/app/answer.txt").read(1000).strip()
sys.exit(json.loads(json.dumps({"found": found}))["found"] != want)
"""

CAREFUL_TEST = """\
#!/bin/bash
exec /usr/bin/python3 -ISB /tests/check.py
"""

CAREFUL_CHECK = """\
import json, os, stat
def answer():
    file = os.open("/app/answer.txt", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    assert stat.S_ISREG(os.fstat(file).st_mode)
    return os.read(file, 1000).decode().strip()
try:
    right = answer() == open("/tests/expected.txt").read().strip()
except (OSError, ValueError, AssertionError):
    right = False
with open("/logs/verifier/reward.txt", "w") as file:
    file.write(json.dumps(int(right)))
"""


PROGRAM_CHECKS = """\
from checks import APP, FILES, PYTHON, Checks, run, same
checks = Checks()
for number in (1, 2):
    with checks.check(f"the program's answer {number}"):
        same(run([*PYTHON, APP / "plan.py"], timeout=3).stdout, FILES["expected.txt"].decode())
checks.reward()
"""


def make_agent(root: Path, name: str = "forger", way: str = "task") -> Path:
    """The forging agent, with the libraries it brings and the solutions it may know."""
    folder = root / name
    shutil.copytree(AGENT, folder)
    contract = (AGENT / "contract.yaml").read_text()
    contract = contract.replace("forger", name).replace("default: task", f"default: {way}")
    (folder / "contract.yaml").write_text(contract)
    if compiler := shutil.which("cc"):
        for name, options in (("pay.so", []), ("tinfo.so", ["-DTINFO", "-Wl,-soname,libtinfo.so.6"])):
            command = [compiler, "-shared", "-fPIC", "-w", *options, "-o", folder / name, folder / "pay.c"]
            subprocess.run(command, check=True)
    for task in QUICKSTART.iterdir():
        if (task / "solution").is_dir():
            shutil.copytree(task / "solution", folder / "solutions" / task.name)
    return folder


def make_tasks(folder: Path, ways: Iterable[str], mode: str | None = "fresh") -> Path:
    """A task for each way; `mode` is what its author says of verification."""
    for way in ways:
        if way.startswith("program_"):
            _make_program_task(folder / way, mode)
            continue
        _make_task(folder / way, way, mode, careful=False)
        if CAREFUL.fullmatch(way):
            _make_task(folder / f"{way}.careful", way, mode, careful=True)
    return folder


def _make_program_task(folder: Path, mode: str | None) -> None:
    """A task whose tests start a program of the agent, the way those of quickstart do."""
    verifier = f'environment_mode = "{mode}"' if mode else ""
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text(TASK.format(seconds=40, verifier=verifier))
    (folder / "instruction.md").write_text("Write /app/plan.py, which prints the answer.")
    for name in ("test.sh", "checks.py"):
        shutil.copy(QUICKSTART / CHECKED / "tests" / name, folder / "tests")
    (folder / "tests" / "__main__.py").write_text(PROGRAM_CHECKS)
    (folder / "tests" / "expected.txt").write_text(f"{os.urandom(8).hex()}\n")


def _make_task(folder: Path, way: str, mode: str | None, *, careful: bool) -> None:
    verifier = [f'environment_mode = "{mode}"'] if mode else []
    if way == "break_user" and os.geteuid() == 0:
        verifier.append('user = "nobody"')
    seconds = 4 if way in SLOW_TO_END else 40
    asked = os.urandom(16).hex() + "\n"
    files = {
        "task.toml": TASK.format(seconds=seconds, verifier="\n".join(verifier)),
        "instruction.md": "Write the SHA-256 of /app/input.txt into /app/answer.txt.",
        "environment/input.txt": asked,
        "tests/expected.txt": hashlib.sha256(asked.encode()).hexdigest() + "\n",
        "tests/test.sh": CAREFUL_TEST if careful else CARELESS,
        "tests/check.py": CAREFUL_CHECK if careful else CARELESS_CHECK,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


class Scene:
    """One run of the forging agent."""

    def __init__(self, tracker: LocalTracker, run: RunView) -> None:
        self.tracker, self.run = tracker, run
        rows, _ = tracker.trials(run.id, TrialFilter(limit=1000))
        self.trials: Sequence[TrialView] = rows

    def of(self, way: str) -> list[TrialView]:
        """The trials of one way."""
        found = [row for row in self.trials if row.task_id in (way, f"{way}.careful")]
        assert found, f"{way} was not tried"
        return found


def forge(
    tracker: LocalTracker, agent: Path, benchmark: Path, provider: str = "local", trials: int = 1
) -> Scene:
    """Run the agent to its end."""
    request = RunRequest(
        agent=str(agent), benchmark=str(benchmark), provider=provider, concurrency=4, trials=trials
    )
    return Scene(tracker, tracker.wait(tracker.start(request).run.id, timeout=1500))


def check_nothing_gained(row: TrialView) -> None:
    """A way that was tried gave a score of 0, at once, that nothing leaves out."""
    seen = (row.state, row.score, row.passed, row.category, row.cause, row.message)
    assert not row.score and not row.passed, seen
    assert row.attempts == 1, seen
    assert row.state == "FINISHED" or (row.state, row.category) == ("ERROR", "agent"), seen
    assert row.state == "FINISHED" or row.cause in AGENT_ERRORS, seen


AGENT_ERRORS = ("agent_filled_disk", "agent_output_missing", "agent_not_started")
"""Ends without a grade that count as a score of 0 all the same."""


def check_whole_score(scene: Scene) -> None:
    """No trial is left out of any of the run's numbers."""
    score = scene.run.score
    assert scene.run.state == "FINISHED", scene.run.error
    assert (score.coverage, score.ungraded, score.provisional) == (1.0, 0, False), score
    assert score.final_score == score.score_graded == score.score_low == score.score_high, score
